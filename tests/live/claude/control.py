"""Settings and commands: what confirms each, and what is refused."""

from __future__ import annotations

import threading

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from tests.live.claude.registry import scenario
from tests.live.claude.rig import Rig, Talk
from tests.live.model import Reply, failing, say
from tests.support.session import failing as refused


async def _setting(talk: Talk, name: str, **action: object) -> str:
    """Change a setting and return what is confirmed, with the id of the request."""
    request_id = f"change-{name}-{len(talk.events)}"
    response = await talk.control(request_id=request_id, **action)
    event = await talk.until("settings_changed", lambda s: s.HasField(name), after=response.seq)
    assert event.request_id == request_id, event
    return str(getattr(event.settings_changed, name))


@scenario
async def settings_while_idle(rig: Rig) -> None:
    async with rig.talk(Reply([say("Hello.")])) as talk:
        offered = talk.bodies("options_reported")[0]
        assert {"haiku", "sonnet"} <= {choice.id for choice in offered.models}
        model = await _setting(talk, "model", set_model=api.SetModel(model="haiku"))
        assert "haiku" in model
        mode = api.SetPermissionMode(permission_mode="acceptEdits")
        assert await _setting(talk, "permission_mode", set_permission_mode=mode) == "acceptEdits"
        title = await _setting(talk, "title", set_title=api.SetTitle(title="A new title"))
        assert title == "A new title"
        await talk.run("hi")
        assert talk.model.requests[-1].body["model"].startswith(model.split("[")[0])
        session = await talk.get()
        assert (session.settings.permission_mode, session.title) == ("acceptEdits", "A new title")


@scenario
async def effort(rig: Rig) -> None:
    async with rig.talk(Reply([say("Hm.")])) as talk:
        offered = [choice.id for choice in talk.bodies("options_reported")[0].efforts]
        assert offered[0] == "low"
        confirmed = await _setting(talk, "effort", set_effort=api.SetEffort(effort="low"))
        assert confirmed == "low"
        await talk.run("think")
        requests = [r.body.get("output_config", {}) for r in talk.model.requests if r.body.get("tools")]
        assert requests[-1].get("effort") == "low"


@scenario
async def settings_in_a_turn(rig: Rig) -> None:
    gate = threading.Event()
    async with rig.talk(Reply([say("word " * 20)], gate=gate), Reply([say("Next.")])) as talk:
        sent = await talk.send("talk")
        await talk.until("assistant_text", after=sent.seq)
        mode = api.SetPermissionMode(permission_mode="plan")
        assert await _setting(talk, "permission_mode", set_permission_mode=mode) == "plan"
        assert "sonnet" in await _setting(talk, "model", set_model=api.SetModel(model="sonnet"))
        gate.set()
        assert (await talk.end(sent.seq)).outcome == ev.TURN_OUTCOME_COMPLETED
        await talk.run("and now")
        assert "sonnet" in talk.model.requests[-1].body["model"]


@scenario
async def settings_that_are_not_offered(rig: Rig) -> None:
    async with rig.talk() as talk:
        async with refused("INVALID_ARGUMENT", "INVALID_FIELD"):
            await talk.control(set_permission_mode=api.SetPermissionMode(permission_mode="nonsense"))
        async with refused("INVALID_ARGUMENT", "INVALID_FIELD"):
            await talk.control(set_model=api.SetModel(model="no-such-model"))
        assert not talk.bodies("error_raised")


@scenario
async def compact(rig: Rig) -> None:
    script = [Reply([say(f"Answer {n}.")], match=f"question {n}") for n in range(4)]
    summary = Reply([say("<summary>All of it.</summary>")], times=3)
    async with rig.talk(*script, summary) as talk:
        for n in range(3):
            await talk.run(f"question {n} " + "and more " * 20)
        after = talk.events[-1].seq
        await talk.control(compact=api.Compact(instructions="keep the numbers"))
        compacted = await talk.until("compacted", after=after)
        await talk.end(after)
        assert compacted.compacted.trigger == "manual"
        assert compacted.compacted.post_tokens > 0
        states = [s.state for s in talk.bodies("state_changed", after)]
        assert session_pb2.SESSION_STATE_COMPACTING in states
        started = await talk.until("turn_started", after=after)
        assert started.turn_started.origin == ev.TURN_ORIGIN_COMMAND
        assert [c.text for c in talk.bodies("command_sent")] == ["compact keep the numbers"]
        last = await talk.run("question 3")
        assert talk.text(last) == "Answer 3."


@scenario
async def compact_with_nothing_to_do(rig: Rig) -> None:
    async with rig.talk(Reply([say("Still here.")])) as talk:
        after = talk.events[-1].seq
        await talk.control(compact=api.Compact())
        error = (await talk.until("error_raised", after=after)).error_raised
        assert error.reason == "COMMAND_FAILED"
        await talk.end(after)
        assert not talk.bodies("compacted")
        last = await talk.run("hello")
        assert talk.text(last) == "Still here."


@scenario
async def compact_that_fails(rig: Rig) -> None:
    script = [Reply([say(f"Answer {n}.")], match=f"question {n}") for n in range(3)]
    # It tries several times, more often in newer versions.
    broken = failing(400, "invalid_request_error", "no summary today", times=50)
    async with rig.talk(*script, broken) as talk:
        for n in range(3):
            await talk.run(f"question {n} " + "and more " * 20)
        after = talk.events[-1].seq
        await talk.control(compact=api.Compact())
        error = (await talk.until("error_raised", after=after)).error_raised
        assert error.reason == "COMMAND_FAILED"
        assert "no summary today" in error.message
        await talk.end(after)
        assert not talk.bodies("compacted")


@scenario
async def clear_waits_for_the_end_of_the_turn(rig: Rig) -> None:
    gate = threading.Event()
    script = (Reply([say("secret " * 20)], gate=gate), Reply([say("I know nothing.")]))
    async with rig.talk(*script) as talk:
        sent = await talk.send("remember the word otter")
        await talk.until("assistant_text", after=sent.seq)
        former = (await talk.get()).native_session_id
        await talk.control(clear=api.Clear())
        await talk.until("command_queued")
        gate.set()
        ended = await talk.until("turn_ended", after=sent.seq)
        cleared = await talk.until("cleared")
        assert talk.seq("command_sent") > ended.seq
        await talk.end(cleared.seq)
        assert (await talk.get()).native_session_id not in ("", former)
        after = await talk.run("what was the word?")
        assert talk.text(after) == "I know nothing."
        assert "otter" not in talk.model.requests[-1].messages
        await talk.control(restart=api.Restart())
        await talk.until("process_started", after=after)
        assert not talk.bodies("error_raised")


@scenario
async def a_raw_command(rig: Rig) -> None:
    async with rig.talk(Reply([say("Hello.")])) as talk:
        await talk.run("hi")
        response = await talk.control(run_command=api.RunCommand(text="/context"))
        output = (await talk.until("command_output", after=response.seq - 1)).command_output
        assert output.command_id == response.command_id
        assert "Tokens" in output.text
        await talk.end(response.seq)
        async with refused("INVALID_ARGUMENT", "INVALID_FIELD"):
            await talk.control(run_command=api.RunCommand(text="/nosuchcommand now"))
        async with refused("INVALID_ARGUMENT", "INVALID_FIELD"):
            await talk.control(run_command=api.RunCommand(text="no slash"))


@scenario
async def a_command_of_the_workspace(rig: Rig) -> None:
    async with rig.talk(Reply([say("unused")])) as talk:
        folder = talk.workspace / ".claude" / "commands"
        folder.mkdir(parents=True)
        (folder / "greet.md").write_text("Greet $ARGUMENTS warmly.")
        talk.model.script[:] = [Reply([say("Hello, Otter!")])]
        await talk.control(restart=api.Restart())
        again = await talk.until("options_reported", after=talk.seq("options_reported"))
        await talk.ready(again.seq)
        response = await talk.control(run_command=api.RunCommand(text="/greet Otter"))
        await talk.end(response.seq)
        assert talk.text() == "Hello, Otter!"
        assert talk.model.asked("Greet Otter warmly.") == 1
