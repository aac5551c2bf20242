"""Talking: turns, text, tools, steering, interrupts, what waits."""

from __future__ import annotations

import threading

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from tests.live.claude.registry import scenario
from tests.live.claude.rig import Rig
from tests.live.model import Reply, say, think, use

# The program refuses to run a bare sleep.
_WAIT = "while [ ! -e go ]; do sleep 0.1; done; echo went"
_BYPASS = session_pb2.Settings(permission_mode="bypassPermissions")


@scenario
async def a_turn(rig: Rig) -> None:
    reply = Reply([think("I weigh it up."), say("The answer is forty-two, as always.")])
    async with rig.talk(reply) as talk:
        sent = await talk.send("What is it?")
        ended = await talk.end(sent.seq)
        assert (ended.outcome, ended.reason) == (ev.TURN_OUTCOME_COMPLETED, ev.TURN_END_REASON_DONE)
        assert talk.text() == "The answer is forty-two, as always."
        assert "".join(r.delta for r in talk.bodies("reasoning")) == "I weigh it up."
        kinds = [
            k for k in talk.kinds(sent.seq - 1) if k in ("turn_started", "user_message", "reasoning")
        ]
        assert kinds[:3] == ["turn_started", "user_message", "reasoning"], kinds
        (message,) = talk.bodies("user_message")
        assert (message.message_id, message.text) == (sent.message_id, "What is it?")
        session = await talk.get()
        assert session.total_tokens == session_pb2.Tokens(
            input=100, cache_read=3000, cache_write=20, output=10
        )
        assert session.context_tokens == 3120
        assert session.context_window > 100_000
        assert session.total_cost_usd > 0
        assert session.native_session_id
        assert talk.settings()["permission_mode"] == "default"
        assert talk.settings()["model"].startswith("claude-")


@scenario
async def a_tool_without_asking(rig: Rig) -> None:
    script = (
        Reply([say("I look."), use("Bash", command="echo seen", description="Look")]),
        Reply([say("Done.")]),
    )
    async with rig.talk(*script, settings=_BYPASS) as talk:
        await talk.run("look")
        (started,) = talk.bodies("tool_started")
        assert (started.tool, started.title) == ("Bash", "Look")
        (ended,) = talk.bodies("tool_ended")
        assert (ended.output, ended.outcome) == ("seen", ev.TOOL_OUTCOME_SUCCEEDED)
        assert ended.tool_id == started.tool_id
        assert talk.text() == "I look.Done."


@scenario
async def a_tool_that_fails(rig: Rig) -> None:
    script = (Reply([use("Bash", command="exit 3", description="Fail")]), Reply([say("Oh.")]))
    async with rig.talk(*script, settings=_BYPASS) as talk:
        await talk.run("try")
        assert talk.bodies("tool_ended")[0].outcome == ev.TOOL_OUTCOME_FAILED


@scenario
async def interrupt_in_the_stream(rig: Rig) -> None:
    gate = threading.Event()
    script = (Reply([say("word " * 40)], gate=gate, gate_at=3), Reply([say("Back again.")]))
    async with rig.talk(*script) as talk:
        sent = await talk.send("talk on")
        await talk.until("assistant_text", after=sent.seq)
        await talk.control(interrupt=api.Interrupt())
        ended = await talk.end(sent.seq)
        assert ended.outcome == ev.TURN_OUTCOME_INTERRUPTED
        assert not talk.bodies("error_raised")
        after = await talk.run("go on")
        assert talk.text(after) == "Back again."


@scenario
async def interrupt_in_a_tool(rig: Rig) -> None:
    script = (Reply([use("Bash", command=_WAIT, description="Wait")]), Reply([say("Fine.")]))
    async with rig.talk(*script, settings=_BYPASS) as talk:
        sent = await talk.send("wait")
        await talk.until("tool_started", after=sent.seq)
        await talk.control(interrupt=api.Interrupt())
        assert (await talk.end(sent.seq)).outcome == ev.TURN_OUTCOME_INTERRUPTED
        assert talk.bodies("tool_ended")[0].outcome == ev.TOOL_OUTCOME_INTERRUPTED
        after = await talk.run("and now")
        assert talk.text(after) == "Fine."


@scenario
async def steer_in_a_tool(rig: Rig) -> None:
    script = (Reply([use("Bash", command=_WAIT, description="Wait")]), Reply([say("I heard you.")]))
    async with rig.talk(*script, settings=_BYPASS) as talk:
        sent = await talk.send("first")
        await talk.until("tool_started", after=sent.seq)
        steer = await talk.send("second")
        assert not [m for m in talk.bodies("user_message") if m.message_id == steer.message_id]
        (talk.workspace / "go").touch()
        await talk.end(sent.seq)
        read = await talk.until("user_message", lambda m: m.message_id == steer.message_id)
        assert talk.seq("tool_ended") < read.seq < talk.seq("assistant_text", read.seq)
        assert len(talk.bodies("turn_started")) == 1
        assert talk.model.asked("second") == 1


@scenario
async def steer_in_the_last_text(rig: Rig) -> None:
    gate = threading.Event()
    script = (Reply([say("word " * 20)], gate=gate, gate_at=2), Reply([say("And to the second.")]))
    async with rig.talk(*script) as talk:
        sent = await talk.send("first")
        await talk.until("assistant_text", after=sent.seq)
        steer = await talk.send("second")
        gate.set()
        first = await talk.until("turn_ended", after=sent.seq)
        read = await talk.until("user_message", lambda m: m.message_id == steer.message_id)
        assert first.seq < read.seq
        assert (await talk.end(read.seq)).outcome == ev.TURN_OUTCOME_COMPLETED
        assert talk.text(read.seq) == "And to the second."
        ids = [m.message_id for m in talk.bodies("user_message")]
        assert ids == [sent.message_id, steer.message_id]


@scenario
async def unqueue_in_time(rig: Rig) -> None:
    script = (Reply([use("Bash", command=_WAIT, description="Wait")]), Reply([say("Done.")]))
    async with rig.talk(*script, settings=_BYPASS) as talk:
        sent = await talk.send("first")
        await talk.until("tool_started", after=sent.seq)
        steer = await talk.send("never mind")
        taken_back = await talk.unqueue(steer.message_id)
        assert taken_back.outcome == api.UNQUEUE_OUTCOME_DROPPED
        (talk.workspace / "go").touch()
        await talk.end(sent.seq)
        assert [m.message_id for m in talk.bodies("message_dropped")] == [steer.message_id]
        assert talk.model.asked("never mind") == 0


@scenario
async def unqueue_too_late(rig: Rig) -> None:
    gate = threading.Event()
    async with rig.talk(Reply([say("word " * 20)], gate=gate)) as talk:
        sent = await talk.send("first")
        await talk.until("assistant_text", after=sent.seq)
        late = await talk.unqueue(sent.message_id)
        assert late.outcome == api.UNQUEUE_OUTCOME_ALREADY_SENT
        assert (await talk.unqueue("no-such-message")).outcome == api.UNQUEUE_OUTCOME_UNKNOWN
        gate.set()
        assert (await talk.end(sent.seq)).outcome == ev.TURN_OUTCOME_COMPLETED


@scenario
async def a_message_for_the_context_alone(rig: Rig) -> None:
    async with rig.talk(Reply([say("Noted.")])) as talk:
        told = await talk.send("The sky is green.", delivery=session_pb2.DELIVERY_APPEND)
        await talk.until("user_message", after=told.seq)
        assert not talk.bodies("turn_started")
        await talk.run("What colour?")
        assert len(talk.bodies("turn_started")) == 1
        assert talk.model.asked("The sky is green.") == 1


@scenario
async def now_interrupts_and_runs(rig: Rig) -> None:
    gate = threading.Event()
    script = (Reply([say("word " * 40)], gate=gate, gate_at=3), Reply([say("At once.")]))
    async with rig.talk(*script) as talk:
        sent = await talk.send("slowly")
        await talk.until("assistant_text", after=sent.seq)
        urgent = await talk.send("now!", delivery=session_pb2.DELIVERY_NOW)
        read = await talk.until("user_message", lambda m: m.message_id == urgent.message_id)
        await talk.end(read.seq)
        outcomes = [t.outcome for t in talk.bodies("turn_ended")]
        assert outcomes == [ev.TURN_OUTCOME_INTERRUPTED, ev.TURN_OUTCOME_COMPLETED]
        assert talk.text(read.seq) == "At once."


@scenario
async def a_text_with_a_slash_is_a_message(rig: Rig) -> None:
    async with rig.talk(Reply([say("That is a command's name.")])) as talk:
        await talk.run("/clear")
        assert talk.text() == "That is a command's name."
        assert talk.bodies("user_message")[0].text == "/clear"
        assert not talk.bodies("cleared")


@scenario
async def sub_agent(rig: Rig) -> None:
    task = "SUBTASK: look around"
    start = use("Agent", description="look", prompt=task, subagent_type="general-purpose")
    script = (
        Reply([start]),
        Reply([use("Bash", command="echo below", description="look")], match=task),
        Reply([say("Nothing there.")], match="below"),
        Reply([say("It found nothing.")], times=3),
    )
    async with rig.talk(*script, settings=_BYPASS) as talk:
        sent = await talk.send("delegate")
        nested = await talk.until("tool_ended", lambda t: t.output == "below", after=sent.seq)
        (agent,) = [t for t in talk.bodies("tool_started") if t.tool == "Agent"]
        assert nested.parent_tool_id == agent.tool_id
        await talk.until("assistant_text", lambda t: t.delta.startswith("It found"), after=sent.seq)
        await talk.end(talk.events[-1].seq - 1 if talk.events[-1].HasField("turn_ended") else 0)
        assert not [t for t in talk.bodies("user_message") if t.text == task]
        started = {t.tool_id for t in talk.bodies("tool_started")}
        assert started == {t.tool_id for t in talk.bodies("tool_ended")}


@scenario
async def talk_while_a_sub_agent_works(rig: Rig) -> None:
    task = "SUBTASK: take your time"
    given = {"description": "slow", "prompt": task, "subagent_type": "general-purpose"}
    ask = use("Bash", command="touch late.txt", description="Make a file")
    script = (
        Reply([say("Hello to you.")], match="hello there"),
        Reply([use("Agent", run_in_background=True, **given)], match="start it"),
        Reply([ask], match=task),
        Reply([say("It is done.")], times=4),
    )
    async with rig.talk(*script) as talk:
        sent = await talk.send("start it")
        await talk.until("turn_ended", after=sent.seq)
        question = await talk.question()
        after = (await talk.send("hello there")).seq
        ended = await talk.until("turn_ended", after=after)
        assert talk.text(after).startswith("Hello to you.")
        assert not talk.bodies("question_withdrawn")
        await talk.answer(question.question_id, "Allow")
        started = await talk.until("turn_started", after=ended.seq)
        assert started.turn_started.origin == ev.TURN_ORIGIN_AGENT
        await talk.end(started.seq)
        assert (talk.workspace / "late.txt").exists()


@scenario
async def work_in_the_background(rig: Rig) -> None:
    script = (
        Reply([use("Bash", command=_WAIT, description="job", run_in_background=True)]),
        Reply([say("It runs.")]),
        Reply([say("It ended.")]),
    )
    async with rig.talk(*script, settings=_BYPASS) as talk:
        after = await talk.run("start it")
        first = await talk.until("turn_ended", after=after)
        (talk.workspace / "go").touch()
        started = await talk.until("turn_started", after=first.seq)
        assert started.turn_started.origin == ev.TURN_ORIGIN_AGENT
        await talk.end(started.seq)
        assert talk.text(started.seq) == "It ended."
        assert len(talk.bodies("user_message")) == 1
