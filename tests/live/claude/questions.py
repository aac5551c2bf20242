"""What the program asks: permissions, its own questions, plans, forms of tool servers."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from tests.live.claude.registry import scenario
from tests.live.claude.rig import Rig
from tests.live.model import Model, Reply, say, use

_TOUCH = use("Bash", command="touch made.txt", description="Make a file")
_QUESTIONS = [
    {
        "question": "Which store?",
        "header": "Store",
        "multiSelect": False,
        "options": [
            {"label": "Files", "description": "Plain", "preview": "a/\n  b"},
            {"label": "Table", "description": "Rows", "preview": "CREATE TABLE t();"},
        ],
    },
    {
        "question": "Which parts?",
        "header": "Parts",
        "multiSelect": True,
        "options": [
            {"label": "Reader", "description": "reads"},
            {"label": "Writer", "description": "writes"},
            {"label": "Index", "description": "finds"},
        ],
    },
    {
        "question": "Which name?",
        "header": "Name",
        "multiSelect": False,
        "options": [{"label": "Otter", "description": ""}, {"label": "Heron", "description": ""}],
    },
]


@scenario
async def permission_allowed(rig: Rig) -> None:
    async with rig.talk(Reply([_TOUCH]), Reply([say("Made.")])) as talk:
        sent = await talk.send("make it")
        question = await talk.question(sent.seq)
        assert question.tool_id == talk.bodies("tool_started")[0].tool_id
        assert question.options[0].kind == ev.OPTION_KIND_ALLOW_ONCE
        assert question.options[-1].kind == ev.OPTION_KIND_REJECT_ONCE
        await talk.until_state("AWAITING_INPUT")
        await talk.answer(question.question_id, question.options[0].label)
        await talk.end(sent.seq)
        assert (talk.workspace / "made.txt").exists()
        assert talk.bodies("tool_ended")[0].outcome == ev.TOOL_OUTCOME_SUCCEEDED


@scenario
async def permission_denied_with_a_note(rig: Rig) -> None:
    async with rig.talk(Reply([_TOUCH]), Reply([say("As you wish.")])) as talk:
        sent = await talk.send("make it")
        question = await talk.question(sent.seq)
        deny = question.options[-1].label
        await talk.answer(question.question_id, deny, note="not in this folder, please")
        await talk.end(sent.seq)
        assert not (talk.workspace / "made.txt").exists()
        (ended,) = talk.bodies("tool_ended")
        assert (ended.outcome, ended.output) == (ev.TOOL_OUTCOME_DENIED, "not in this folder, please")
        assert talk.model.asked("not in this folder, please") == 1


@scenario
async def permission_for_always(rig: Rig) -> None:
    script = (
        Reply([use("Write", file_path="WORKSPACE/a.txt", content="a")]),
        Reply([use("Write", file_path="WORKSPACE/b.txt", content="b")]),
        Reply([say("Both.")]),
    )
    with Model(*script) as model:
        home = rig.new_home()
        for reply in script[:2]:
            given = reply.blocks[0]["input"]
            given["file_path"] = given["file_path"].replace("WORKSPACE", str(home.workspace))
        async with rig.session(model, home) as talk:
            await talk.ready()
            sent = await talk.send("write both")
            question = await talk.question(sent.seq)
            always = [o.label for o in question.options if o.kind == ev.OPTION_KIND_ALLOW_ALWAYS]
            (wanted,) = [label for label in always if "acceptEdits" in label]
            await talk.answer(question.question_id, wanted)
            await talk.end(sent.seq)
            assert len(talk.bodies("question_asked")) == 1
            assert talk.settings()["permission_mode"] == "acceptEdits"
            assert [(home.workspace / n).read_text() for n in ("a.txt", "b.txt")] == ["a", "b"]


@scenario
async def two_permissions_in_one_reply(rig: Rig) -> None:
    both = [_TOUCH, use("Bash", command="touch other.txt", description="Make another")]
    async with rig.talk(Reply(both), Reply([say("One of two.")])) as talk:
        sent = await talk.send("make both")
        first = await talk.until("question_asked", after=sent.seq)
        await talk.answer(first.question_asked.question_id, "Allow")
        second = await talk.until("question_asked", after=first.seq)
        await talk.answer(second.question_asked.question_id, "Deny")
        await talk.end(sent.seq)
        assert (talk.workspace / "made.txt").exists()
        assert not (talk.workspace / "other.txt").exists()
        outcomes = sorted(t.outcome for t in talk.bodies("tool_ended"))
        assert outcomes == [ev.TOOL_OUTCOME_SUCCEEDED, ev.TOOL_OUTCOME_DENIED]


@scenario
async def questions_of_its_own(rig: Rig) -> None:
    script = (Reply([use("AskUserQuestion", questions=_QUESTIONS)]), Reply([say("Thanks.")]))
    async with rig.talk(*script) as talk:
        sent = await talk.send("ask me")
        await talk.until("question_asked", lambda q: q.header == "Name", after=sent.seq)
        asked = talk.bodies("question_asked")
        assert [q.multi_select for q in asked] == [False, True, False]
        assert len({q.group_id for q in asked}) == 1
        assert asked[0].options[1].preview == "CREATE TABLE t();"
        assert not asked[0].tool_id
        await talk.answer(asked[1].question_id, "Reader", "Index")
        await talk.answer(asked[0].question_id, "Table", note="for now")
        assert not talk.bodies("tool_ended")
        await talk.answer(asked[2].question_id, "Kingfisher")
        await talk.end(sent.seq)
        for said in ("Reader, Index", "Table", "Kingfisher", "for now"):
            assert talk.model.asked(said) == 1, said


@scenario
async def a_plan_with_a_change(rig: Rig) -> None:
    plan = "1. Do the one thing\n2. Do the other"
    script = (
        Reply([use("ExitPlanMode", plan=plan)]),
        Reply([use("ExitPlanMode", plan="1. Do one thing")]),
        Reply([say("I begin.")]),
    )
    async with rig.talk(*script, settings=session_pb2.Settings(permission_mode="plan")) as talk:
        sent = await talk.send("plan it")
        first = await talk.until("question_asked", after=sent.seq)
        question = first.question_asked
        assert question.options[0].preview == plan
        await talk.answer(question.question_id, question.options[-1].label, note="only one thing")
        second = await talk.until("question_asked", after=first.seq)
        question = second.question_asked
        await talk.answer(question.question_id, question.options[1].label)
        await talk.end(sent.seq)
        outcomes = [t.outcome for t in talk.bodies("tool_ended")]
        assert outcomes == [ev.TOOL_OUTCOME_DENIED, ev.TOOL_OUTCOME_SUCCEEDED]
        assert talk.model.asked("only one thing") >= 1
        assert talk.settings()["permission_mode"] == "acceptEdits"


@scenario
async def interrupt_with_a_question_open(rig: Rig) -> None:
    async with rig.talk(Reply([_TOUCH]), Reply([say("Never mind.")])) as talk:
        sent = await talk.send("make it")
        question = await talk.question(sent.seq)
        await talk.control(interrupt=api.Interrupt())
        assert (await talk.end(sent.seq)).outcome == ev.TURN_OUTCOME_INTERRUPTED
        (withdrawn,) = talk.bodies("question_withdrawn")
        assert withdrawn.question_id == question.question_id
        assert withdrawn.reason == ev.WITHDRAW_REASON_INTERRUPTED
        assert talk.seq("question_withdrawn") < talk.seq("tool_ended") < talk.seq("turn_ended")
        after = await talk.run("go on")
        assert talk.text(after) == "Never mind."


@scenario
async def a_steering_message_while_asked(rig: Rig) -> None:
    async with rig.talk(Reply([_TOUCH]), Reply([say("Both heard.")])) as talk:
        sent = await talk.send("make it")
        question = await talk.question(sent.seq)
        steer = await talk.send("and hurry")
        await talk.answer(question.question_id, "Allow")
        await talk.end(sent.seq)
        read = await talk.until("user_message", lambda m: m.message_id == steer.message_id)
        assert read.seq > talk.seq("tool_ended")
        assert len(talk.bodies("turn_started")) == 1


@scenario
async def a_form_of_a_tool_server(rig: Rig) -> None:
    script = (
        Reply([use("mcp__forms__ask")]),
        Reply([say("Good.")]),
        Reply([use("mcp__forms__ask")]),
        Reply([say("Well.")]),
    )
    with Model(*script) as model:
        home = rig.new_home()
        server = Path(__file__).parent / "tool_server.py"
        servers = {"forms": {"command": sys.executable, "args": [str(server)]}}
        (home.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        allowed = {"enableAllProjectMcpServers": True}
        (home.home / ".claude").mkdir()
        (home.home / ".claude" / "settings.json").write_text(json.dumps(allowed))
        settings = session_pb2.Settings(permission_mode="bypassPermissions")
        async with rig.session(model, home, settings=settings) as talk:
            await talk.ready()
            sent = await talk.send("fill in")
            await talk.until("question_asked", lambda q: "ok" in q.prompt, after=sent.seq)
            asked = {q.header: q for q in talk.bodies("question_asked")}
            assert [o.label for o in asked["colour"].options] == ["red", "blue", "Leave out", "Decline"]
            assert asked["Name"].allow_text
            answers = {"Name": "Otter", "age": "Leave out", "colour": "blue", "ok": "Yes"}
            for header, words in answers.items():
                await talk.answer(asked[header].question_id, words)
            await talk.end(sent.seq)
            filled = json.loads(talk.bodies("tool_ended")[0].output.partition("got ")[2])
            content = {"name": "Otter", "colour": "blue", "ok": True}
            assert filled == {"action": "accept", "content": content}
            again = await talk.send("once more")
            question = await talk.until("question_asked", after=again.seq)
            await talk.answer(question.question_asked.question_id, "Decline")
            await talk.end(again.seq)
            assert '"decline"' in talk.bodies("tool_ended")[1].output
            assert len(talk.bodies("question_withdrawn")) == 3


@scenario
async def first_answer_wins(rig: Rig) -> None:
    gate = threading.Event()
    async with rig.talk(Reply([_TOUCH]), Reply([say("Made.")], gate=gate, gate_at=0)) as talk:
        sent = await talk.send("make it")
        question = await talk.question(sent.seq)
        await talk.answer(question.question_id, "Allow")
        await talk.answer(question.question_id, "Allow")
        gate.set()
        await talk.end(sent.seq)
        assert len(talk.bodies("question_answered")) == 1
