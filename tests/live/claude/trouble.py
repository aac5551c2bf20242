"""What goes wrong: the model's API, cut streams, programs and folders that are not there."""

from __future__ import annotations

import shutil
import sys

import grpc

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2, session_service_pb2_grpc
from sessiond.v1 import session_service_pb2 as api
from tests.live.claude.registry import scenario
from tests.live.claude.rig import Rig
from tests.live.model import Model, Reply, failing, say, think, use
from tests.support.daemon import Daemon
from tests.support.session import TIMEOUT, Watched
from tests.support.session import failing as refused


@scenario
async def retries_are_explained(rig: Rig) -> None:
    busy = failing(529, "overloaded_error", "Overloaded")
    async with rig.talk(busy, Reply([say("At last.")])) as talk:
        await talk.run("hello")
        (retrying,) = talk.bodies("retrying")
        assert (retrying.attempt, retrying.max_attempts) == (1, 2)
        assert retrying.delay.ToMilliseconds() > 0
        assert "529" in retrying.reason
        assert talk.text() == "At last."


@scenario
async def a_request_that_is_refused(rig: Rig) -> None:
    wrong = failing(400, "invalid_request_error", "something is wrong", times=9)
    async with rig.talk(wrong, Reply([say("Fine.")])) as talk:
        sent = await talk.send("hello")
        ended = await talk.end(sent.seq)
        assert (ended.outcome, ended.reason) == (ev.TURN_OUTCOME_FAILED, ev.TURN_END_REASON_MODEL_ERROR)
        assert "something is wrong" in ended.message
        assert "something is wrong" in talk.bodies("error_raised")[0].message
        assert talk.text() == ""
        talk.model.script[0].times = 0
        after = await talk.run("again")
        assert talk.text(after) == "Fine."


@scenario
async def overloaded_for_good(rig: Rig) -> None:
    async with rig.talk(failing(529, "overloaded_error", "Overloaded", times=9)) as talk:
        sent = await talk.send("hello")
        ended = await talk.end(sent.seq)
        assert ended.reason == ev.TURN_END_REASON_MODEL_ERROR
        assert len(talk.bodies("retrying")) == 2
        assert talk.text() == ""


@scenario
async def rate_limited_for_good(rig: Rig) -> None:
    async with rig.talk(failing(429, "rate_limit_error", "Slow down", times=9)) as talk:
        sent = await talk.send("hello")
        assert (await talk.end(sent.seq)).reason == ev.TURN_END_REASON_RATE_LIMITED


@scenario
async def a_context_that_is_full(rig: Rig) -> None:
    full = failing(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", 9)
    async with rig.talk(full) as talk:
        sent = await talk.send("hello")
        assert (await talk.end(sent.seq)).reason == ev.TURN_END_REASON_CONTEXT_FULL


@scenario
async def a_model_that_declines(rig: Rig) -> None:
    reply = Reply([say("I cannot")], stop_reason="refusal", times=9)
    async with rig.talk(reply) as talk:
        sent = await talk.send("hello")
        ended = await talk.end(sent.seq)
        assert (ended.outcome, ended.reason) == (ev.TURN_OUTCOME_FAILED, ev.TURN_END_REASON_REFUSED)
        assert talk.bodies("error_raised")


@scenario
async def a_stream_that_is_cut(rig: Rig) -> None:
    script = (
        Reply([say("void " * 20)], drop_at=2),
        Reply([say("The whole reply.")]),
        Reply([say("unused")]),
    )
    async with rig.talk(*script) as talk:
        await talk.run("hello")
        (retracted,) = talk.bodies("retracted")
        void = [e.seq for e in talk.events if e.assistant_text.delta.startswith("void")]
        assert retracted.since_seq == void[0]
        at = talk.seq("retracted")
        assert all(seq < at for seq in void)
        assert talk.text(at) == "The whole reply."


@scenario
async def a_stream_that_is_cut_late(rig: Rig) -> None:
    whole, cut = "This block is complete. ", "This one is not, for it is long. "
    script = (Reply([think("Hm."), say(whole), say(cut)], drop_at=4), Reply([say("The rest.")]))
    async with rig.talk(*script) as talk:
        await talk.run("hello")
        (retracted,) = talk.bodies("retracted")
        said = [(e.seq, e.assistant_text.delta) for e in talk.events if e.HasField("assistant_text")]
        at = talk.seq("retracted")
        assert "".join(text for seq, text in said if seq < retracted.since_seq) == whole
        assert cut.startswith("".join(t for seq, t in said if retracted.since_seq <= seq < at))


@scenario
async def no_credentials(rig: Rig) -> None:
    with Model() as model:
        environment = {"ANTHROPIC_API_KEY": ""}
        async with rig.session(model, rig.new_home(), environment=environment) as talk:
            await talk.ready()
            sent = await talk.send("hello")
            ended = await talk.end(sent.seq)
            assert ended.reason == ev.TURN_END_REASON_UNAUTHENTICATED
            assert "log" in ended.message.lower()


@scenario
async def a_conversation_that_does_not_exist(rig: Rig) -> None:
    native = "00000000-0000-4000-8000-0000000000ab"
    with Model() as model:
        async with rig.session(model, rig.new_home(), native_session_id=native) as talk:
            error = (await talk.until("error_raised")).error_raised
            assert error.reason == "RESUME_FAILED"
            assert f"No conversation found with session ID: {native}" in error.message
            await talk.until_state("EXITED")
            assert len(talk.bodies("error_raised")) == 1


@scenario
async def a_flag_that_it_does_not_know(rig: Rig) -> None:
    settings = {
        "drivers.claude.binary": f'"{rig.program}"',
        "drivers.claude.args": '["--no-such-flag"]',
    }
    async with Daemon(settings=settings) as daemon, daemon.channel() as channel:
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        request = api.CreateSessionRequest(driver="claude", workspace=str(daemon.workspace))
        created = await stub.CreateSession(request, timeout=TIMEOUT)
        talk = Watched(stub, created.session.session_id)
        try:
            error = (await talk.until("error_raised")).error_raised
            assert error.reason == "LAUNCH_FAILED"
            assert "--no-such-flag" in error.message
            await talk.until_state("EXITED")
        finally:
            await talk.close()


@scenario
async def no_program_and_the_wrong_one(rig: Rig) -> None:
    for binary in ("/no/such/claude", sys.executable):
        daemon = Daemon(settings={"drivers.claude.binary": f'"{binary}"'})
        async with daemon, daemon.channel() as channel:
            stub = session_service_pb2_grpc.SessionServiceStub(channel)
            request = api.CreateSessionRequest(driver="claude", workspace=str(daemon.workspace))
            async with refused("FAILED_PRECONDITION", "DRIVER_UNAVAILABLE") as caught:
                await stub.CreateSession(request, timeout=TIMEOUT)
            assert binary in caught.failure.text


@scenario
async def a_workspace_that_vanished(rig: Rig) -> None:
    async with rig.talk(Reply([say("Hello.")])) as talk:
        await talk.run("hi")
        await talk.control(stop=api.Stop())
        await talk.until_state("EXITED")
        stopped = talk.events[-1].seq
        shutil.rmtree(talk.workspace)
        refusals: list[grpc.StatusCode] = []
        try:
            await talk.control(restart=api.Restart())
        except grpc.aio.AioRpcError as error:
            refusals.append(error.code())
        if not refusals:
            raised = (await talk.until("error_raised", after=stopped)).error_raised
            assert str(talk.workspace) in raised.message
            assert len(talk.bodies("error_raised")) == 1
        assert refusals in ([], [grpc.StatusCode.FAILED_PRECONDITION])
        assert (await talk.get()).state == session_pb2.SESSION_STATE_EXITED


@scenario
async def a_tool_that_does_not_exist(rig: Rig) -> None:
    async with rig.talk(Reply([use("NoSuchTool", x=1)]), Reply([say("Sorry.")])) as talk:
        await talk.run("use it")
        (ended,) = talk.bodies("tool_ended")
        assert ended.outcome == ev.TOOL_OUTCOME_FAILED
        assert talk.text() == "Sorry."
