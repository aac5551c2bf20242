"""Whoever is killed: the daemon, the program; resuming, adopting, stopping."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2, session_service_pb2_grpc
from sessiond.v1 import session_service_pb2 as api
from tests.live.claude.registry import scenario
from tests.live.claude.rig import Rig, Talk
from tests.live.model import Model, Reply, say, use
from tests.support.waiting import until

_BYPASS = session_pb2.Settings(permission_mode="bypassPermissions")
# The program refuses to run a bare sleep.
_WAIT = "while [ ! -e go ]; do sleep 0.1; done"
_TOUCH = use("Bash", command="touch made.txt", description="Make a file")


def _kill(talk: Talk) -> None:
    """Kill the program, and nothing else."""
    os.kill(talk.bodies("process_started")[-1].pid, signal.SIGKILL)


@scenario
async def daemon_killed_in_the_stream(rig: Rig) -> None:
    gate = threading.Event()
    words = "".join(f"word{n} " for n in range(60))
    async with rig.talk(Reply([say(words)], gate=gate, gate_at=4), Reply([say("Next.")])) as talk:
        sent = await talk.send("talk")
        await talk.until("assistant_text", after=sent.seq)
        await rig.daemon.restart(signal.SIGKILL)
        adopted = await talk.until("process_adopted")
        gate.set()
        await talk.end(adopted.seq)
        assert talk.text() == words
        assert len(talk.bodies("user_message")) == len(talk.bodies("turn_ended")) == 1
        assert not talk.bodies("process_exited")
        after = await talk.run("more")
        assert talk.text(after) == "Next."


@scenario
async def daemon_killed_with_a_permission_open(rig: Rig) -> None:
    async with rig.talk(Reply([_TOUCH]), Reply([say("Made.")])) as talk:
        sent = await talk.send("make it")
        question = await talk.question(sent.seq)
        await rig.daemon.restart(signal.SIGKILL)
        await talk.until("process_adopted")
        assert (await talk.get()).open_question_count == 1
        await talk.answer(question.question_id, "Allow")
        await talk.end(sent.seq)
        assert (talk.workspace / "made.txt").exists()
        assert len(talk.bodies("question_asked")) == 1
        assert not talk.bodies("question_withdrawn")
        assert talk.text() == "Made."


@scenario
async def daemon_killed_between_two_answers(rig: Rig) -> None:
    options = [{"label": "Yes", "description": ""}, {"label": "No", "description": ""}]
    asked = [
        {"question": f"{name}?", "header": name, "multiSelect": False, "options": options}
        for name in ("First", "Second")
    ]
    async with rig.talk(
        Reply([use("AskUserQuestion", questions=asked)]), Reply([say("So be it.")])
    ) as talk:
        sent = await talk.send("ask")
        second = await talk.until("question_asked", lambda q: q.header == "Second", after=sent.seq)
        await talk.answer(talk.bodies("question_asked")[0].question_id, "Yes")
        await rig.daemon.restart(signal.SIGKILL)
        await talk.until("process_adopted")
        await talk.answer(second.question_asked.question_id, "No")
        await talk.end(sent.seq)
        assert talk.model.asked('\\"First?\\"=\\"Yes\\"') == 1
        assert talk.model.asked('\\"Second?\\"=\\"No\\"') == 1


@scenario
async def daemon_gone_while_the_turn_ends(rig: Rig) -> None:
    gate = threading.Event()
    async with rig.talk(Reply([say("word " * 30)], gate=gate, gate_at=2)) as talk:
        sent = await talk.send("talk")
        await talk.until("assistant_text", after=sent.seq)
        await rig.daemon.kill()
        gate.set()
        done = talk.home.home / ".claude"
        await until(lambda: _holds(done, "word word"), "the program has saved its reply")
        await rig.daemon.start()
        await talk.end(sent.seq)
        assert talk.text() == "word " * 30
        assert talk.bodies("turn_ended")[0].outcome == ev.TURN_OUTCOME_COMPLETED


def _holds(folder: Path, text: str) -> bool:
    return any(text in path.read_text() for path in folder.glob("projects/*/*.jsonl"))


@scenario
async def program_killed_in_a_tool(rig: Rig) -> None:
    script = (
        Reply([say("Hello.")]),
        Reply([use("Bash", command=_WAIT, description="Wait")]),
        Reply([say("I am back.")], times=2),
    )
    async with rig.talk(*script, settings=_BYPASS) as talk:
        await talk.run("hello")
        sent = await talk.send("wait")
        await talk.until("tool_started", after=sent.seq)
        await until(lambda: _holds(talk.home.home / ".claude", "-e go "), "the call is saved")
        unread = await talk.send("read me later")
        native = (await talk.get()).native_session_id
        _kill(talk)
        exited = await talk.until("process_exited")
        assert exited.process_exited.signal == signal.SIGKILL
        (ended,) = talk.bodies("tool_ended")
        assert ended.outcome == ev.TOOL_OUTCOME_INTERRUPTED, ended
        assert talk.bodies("turn_ended")[1].reason == ev.TURN_END_REASON_AGENT_EXITED
        await talk.control(restart=api.Restart())
        read = await talk.until("user_message", lambda m: m.message_id == unread.message_id)
        await talk.end(read.seq)
        assert read.seq > exited.seq
        assert (await talk.get()).native_session_id == native
        assert talk.settings()["permission_mode"] == "bypassPermissions"
        last = talk.model.requests[-1].messages
        assert last.count("read me later") == 1
        assert '"wait"' in last
        ids = [m.message_id for m in talk.bodies("user_message")]
        assert ids[1:] == [sent.message_id, unread.message_id]


@scenario
async def program_killed_in_the_stream(rig: Rig) -> None:
    gate = threading.Event()
    script = (
        Reply([say("Hello.")]),
        Reply([say("word " * 30)], gate=gate, gate_at=3),
        Reply([say("Again.")], times=2),
    )
    async with rig.talk(*script) as talk:
        await talk.run("hello")
        sent = await talk.send("talk")
        await talk.until("assistant_text", after=sent.seq)
        _kill(talk)
        await talk.until("process_exited")
        await talk.control(restart=api.Restart())
        await talk.until_state("IDLE", after=talk.seq("process_exited"))
        after = await talk.run("say it again")
        assert talk.text(after) == "Again."
        assert len(talk.bodies("turn_started")) == len(talk.bodies("turn_ended"))


@scenario
async def program_killed_with_a_permission_open(rig: Rig) -> None:
    async with rig.talk(Reply([say("Hello.")]), Reply([_TOUCH]), Reply([say("Anew.")])) as talk:
        await talk.run("hello")
        sent = await talk.send("make it")
        await talk.question(sent.seq)
        _kill(talk)
        exited = await talk.until("process_exited")
        (withdrawn,) = talk.bodies("question_withdrawn")
        assert withdrawn.reason == ev.WITHDRAW_REASON_AGENT_EXITED
        await talk.control(restart=api.Restart())
        await talk.until_state("IDLE", after=exited.seq)
        after = await talk.run("go on")
        assert talk.text(after) == "Anew."


@scenario
async def program_killed_before_it_saved(rig: Rig) -> None:
    gate = threading.Event()
    script = (Reply([say("word " * 30)], gate=gate, gate_at=1), Reply([say("Anew.")], times=2))
    async with rig.talk(*script) as talk:
        sent = await talk.send("the first words")
        await talk.until("assistant_text", after=sent.seq)
        _kill(talk)
        exited = await talk.until("process_exited")
        await talk.control(restart=api.Restart())
        settled = await talk.until(
            "state_changed",
            lambda s: s.state in (session_pb2.SESSION_STATE_IDLE, session_pb2.SESSION_STATE_EXITED),
            after=exited.seq + 1,
        )
        if settled.state_changed.state == session_pb2.SESSION_STATE_EXITED:
            # Older versions write a conversation down late; one that nobody can resume begins anew.
            assert talk.bodies("error_raised")[0].reason == "RESUME_FAILED"
            await talk.control(restart=api.Restart())
            await talk.until_state("IDLE", after=settled.seq)
            await talk.until("cleared", after=settled.seq)
        after = await talk.run("and now?")
        assert talk.text(after) == "Anew."


@scenario
async def restart_right_after_a_clear(rig: Rig) -> None:
    async with rig.talk(Reply([say("I remember.")]), Reply([say("Nothing.")])) as talk:
        await talk.run("remember otter")
        await talk.control(clear=api.Clear())
        cleared = await talk.until("cleared")
        await talk.end(cleared.seq)
        await talk.control(restart=api.Restart())
        started = await talk.until("process_started", after=cleared.seq)
        await talk.ready(started.seq)
        after = await talk.run("what do you remember?")
        assert talk.text(after) == "Nothing."
        assert "otter" not in talk.model.requests[-1].messages
        assert not talk.bodies("error_raised")
        assert len(talk.bodies("cleared")) == 1


@scenario
async def stop_in_a_tool_ends_its_process_too(rig: Rig) -> None:
    command = f"echo $$ > pid; {_WAIT}"
    async with rig.talk(
        Reply([use("Bash", command=command, description="Wait")]), settings=_BYPASS
    ) as talk:
        await talk.send("wait")
        marker = talk.workspace / "pid"
        await until(lambda: marker.exists() and marker.read_text().strip(), "the tool runs")
        await talk.control(stop=api.Stop())
        exited = await talk.until("process_exited")
        await talk.until_state("EXITED")
        assert exited.process_exited.exit_code == 0
        assert talk.bodies("turn_ended")[0].outcome == ev.TURN_OUTCOME_INTERRUPTED
        pid = int(marker.read_text())
        await until(lambda: not Path(f"/proc/{pid}").exists(), "the tool's process is gone")


@scenario
async def resume_after_a_stop(rig: Rig) -> None:
    script = (Reply([say("I remember otter.")]), Reply([say("Otter.")]))
    async with rig.talk(*script, settings=_BYPASS, title="Words") as talk:
        await talk.run("remember otter")
        cost = (await talk.get()).total_cost_usd
        await talk.control(stop=api.Stop())
        exited = await talk.until_state("EXITED")
        await talk.control(restart=api.Restart())
        await talk.ready(exited.seq)
        await talk.run("which word?")
        assert "remember otter" in talk.model.requests[-1].messages
        session = await talk.get()
        assert session.settings.permission_mode == "bypassPermissions"
        assert session.total_cost_usd > cost * 1.5
        assert session.total_tokens.output == 20


@scenario
async def a_conversation_begun_elsewhere(rig: Rig) -> None:
    with Model(Reply([say("I remember heron.")]), Reply([say("Heron.")])) as model:
        home = rig.new_home()
        async with rig.session(model, home) as first:
            await first.ready()
            await first.run("remember heron")
            native = (await first.get()).native_session_id
            # As one leaves it in a terminal: killed, it might not have saved the conversation yet.
            await first.control(stop=api.Stop())
            await first.until("process_exited")
        async with rig.session(model, home, native_session_id=native) as second:
            await second.ready()
            await second.run("which word?")
            assert second.text() == "Heron."
            assert "remember heron" in model.requests[-1].messages
            assert (await second.get()).native_session_id == native


@scenario
async def two_sessions_at_once(rig: Rig) -> None:
    gate = threading.Event()
    async with (
        rig.talk(Reply([say("One " * 20)], gate=gate)) as one,
        rig.talk(Reply([say("Two.")])) as two,
    ):
        sent = await one.send("first")
        await one.until("assistant_text", after=sent.seq)
        await two.run("second")
        assert two.text() == "Two."
        gate.set()
        await one.end(sent.seq)
        assert one.text() == "One " * 20


@scenario
async def settings_asked_for_at_the_start(rig: Rig) -> None:
    wanted = session_pb2.Settings(model="haiku", permission_mode="plan", effort="high")
    with Model(Reply([say("Hello.")])) as model:
        home = rig.new_home()
        fields = {"settings": wanted, "title": "A title", "system_prompt": "Say otter often."}
        async with rig.session(model, home, **fields) as talk:
            await talk.ready()
            await talk.run("hi")
            confirmed = talk.settings()
            assert "haiku" in confirmed["model"]
            assert confirmed["permission_mode"] == "plan"
            assert "Say otter often." in str(model.requests[-1].body["system"])


@scenario
async def sent_before_it_was_ready(rig: Rig) -> None:
    with Model(Reply([say("Early.")]), Reply([say("Early too.")])) as model:
        async with rig.session(model, rig.new_home()) as talk:
            first, second = await talk.send("at once"), await talk.send("and more")
            await talk.until("user_message", lambda m: m.message_id == second.message_id)
            await talk.until("turn_ended", after=talk.seq("user_message"))
            await talk.until_state("IDLE", after=talk.seq("turn_ended"))
            ids = [m.message_id for m in talk.bodies("user_message")]
            assert ids == [first.message_id, second.message_id]


async def _exists(rig: Rig, session_id: str) -> bool:
    async with rig.daemon.channel() as channel:
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        listed = await stub.ListSessions(api.ListSessionsRequest(), timeout=20)
        return session_id in [s.session_id for s in listed.sessions]


@scenario
async def delete_in_a_turn(rig: Rig) -> None:
    gate = threading.Event()
    async with rig.talk(Reply([say("word " * 30)], gate=gate)) as talk:
        sent = await talk.send("talk")
        await talk.until("assistant_text", after=sent.seq)
        pid = talk.bodies("process_started")[0].pid
        await talk.stub.DeleteSession(api.DeleteSessionRequest(session_id=talk.session_id), timeout=30)
        await talk.until_gone()
        await until(lambda: not Path(f"/proc/{pid}").exists(), "the program is gone")
        assert not await _exists(rig, talk.session_id)
