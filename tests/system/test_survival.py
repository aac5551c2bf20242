"""Whoever is killed: turns go on where they can, and nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from tests.support.daemon import Daemon
from tests.support.session import TIMEOUT, Watched, failing, watched
from tests.support.waiting import until

NUMBERS = 1200
KILLS = [signal.SIGKILL, signal.SIGTERM]


def _numbers(session: Watched) -> list[str]:
    return session.text().split()


@pytest.mark.parametrize("how", KILLS)
async def test_a_turn_goes_on_without_its_daemon(daemon: Daemon, how: signal.Signals) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        sent = await session.send(f"!burst @200 {NUMBERS}")
        for _ in range(2):
            seen = len(session.events)
            await session.until("assistant_text", after=seen)
            await daemon.restart(how)
            await session.until("process_adopted", after=seen)
        await session.until("turn_ended", after=sent.seq)
        assert _numbers(session) == [f"#{number}" for number in range(1, NUMBERS + 1)]
        assert session.kinds().count("process_started") == 1
        assert session.kinds().count("process_adopted") == 2
        assert session.kinds().count("turn_started") == 1


async def test_a_question_waits_for_the_next_daemon(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.send("!permit bash {} -> allowed and done")
        asked = await session.until("question_asked")
        await daemon.restart(signal.SIGKILL)
        await session.answer(asked.question_asked.question_id, "Allow", request_id="a1")
        ended = (await session.until("tool_ended")).tool_ended
        assert (ended.outcome, ended.output) == (ev.TOOL_OUTCOME_SUCCEEDED, "allowed and done")
        assert session.kinds().count("question_asked") == 1


async def test_a_retried_call_gets_its_first_answer_from_the_next_daemon(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.until_state("IDLE")
        first = await session.send("once", request_id="s1")
        create = api.CreateSessionRequest(
            driver="echo", workspace=str(daemon.workspace), request_id="c1"
        )
        created = await session.stub.CreateSession(create, timeout=TIMEOUT)
        await daemon.restart(signal.SIGKILL)
        assert await session.send("once", request_id="s1") == first
        again = await session.stub.CreateSession(create, timeout=TIMEOUT, wait_for_ready=True)
        assert again == created
        async with failing("ALREADY_EXISTS", "REQUEST_ID_REUSED", "request_id"):
            await session.send("something else", request_id="s1")
        async with failing("ALREADY_EXISTS", "REQUEST_ID_REUSED", "request_id"):
            create.title = "another"
            await session.stub.CreateSession(create, timeout=TIMEOUT)
        await session.run("the end")
        texts = [e.user_message.text for e in session.events if e.HasField("user_message")]
        assert texts == ["once", "the end"]


async def test_one_message_for_five_hundred_sends_with_one_request_id(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.until_state("IDLE")
        sends = [session.send("the same", request_id="same") for _ in range(500)]
        assert len({reply.SerializeToString() for reply in await asyncio.gather(*sends)}) == 1
        await session.run("the end")
        assert session.kinds().count("message_queued") == 2


async def test_messages_wait_through_a_restart_of_the_daemon(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.send("!sleep 1.5")
        await session.until("turn_started")
        for number in range(5):
            await session.send(f"message {number}", delivery=session_pb2.DELIVERY_NEXT_TURN)
        await daemon.restart(signal.SIGKILL)
        await session.until("user_message", lambda m: m.text == "message 4")
        texts = [e.user_message.text for e in session.events if e.HasField("user_message")]
        assert texts == ["!sleep 1.5", *(f"message {number}" for number in range(5))]


async def test_a_killed_shim_takes_its_agent_along_and_the_session_can_go_on(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.run("before")
        await session.send("!open bash\n!sleep 60")
        await session.until("tool_started")
        started = await session.until("process_started")
        os.kill(_parent(started.process_started.pid), signal.SIGKILL)
        await session.until("error_raised", lambda e: e.reason == "AGENT_LOST")
        exited = await session.until_state("EXITED")
        kinds = session.kinds()
        assert kinds.count("tool_started") == kinds.count("tool_ended")
        assert kinds.count("turn_started") == kinds.count("turn_ended")
        assert not _alive(started.process_started.pid)
        await session.control(restart=api.Restart())
        await session.until_state("IDLE", after=exited.seq)
        await session.run("!recall")
        assert "1: before" in session.text(exited.seq)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


async def test_what_ended_while_no_daemon_looked_is_told_by_the_next(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.send("!sleep 0.5\n!text last words\n!crash 7")
        await session.until("turn_started")
        await daemon.kill()
        pid = (await session.until("process_started")).process_started.pid
        await _until_dead(pid)
        await daemon.start()
        exited = (await session.until("process_exited")).process_exited
        assert exited.exit_code == 7
        assert session.text() == "last words"


async def _until_dead(pid: int) -> None:
    # Not our child, and nobody is there to tell: looking is all that is left.
    for _ in range(int(TIMEOUT / 0.02)):
        if not _alive(pid):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"process {pid} is still there")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_a_frozen_shim_is_an_unknown_state_and_delays_nobody(daemon: Daemon) -> None:
    async with (
        daemon.channel() as channel,
        watched(channel, str(daemon.workspace)) as stuck,
        watched(channel, str(daemon.workspace)) as well,
    ):
        await stuck.until_state("IDLE")
        await well.until_state("IDLE")
        shim = _parent((await stuck.until("process_started")).process_started.pid)
        os.kill(shim, signal.SIGSTOP)
        try:
            await daemon.restart(signal.SIGKILL)
            await well.run("still served")
            unknown = await stuck.until_state("UNKNOWN", after=len(stuck.events) - 1)
        finally:
            os.kill(shim, signal.SIGCONT)
        await stuck.until("process_adopted", after=unknown.seq)
        await stuck.until_state("IDLE", after=unknown.seq)
        await stuck.run("served again")


async def test_ephemeral_sessions_end_with_the_daemon(daemon: Daemon) -> None:
    async with daemon.channel() as channel:
        async with watched(channel, str(daemon.workspace), ephemeral=True) as session:
            pid = (await session.until("process_started")).process_started.pid
            await session.until_state("IDLE")
            await daemon.restart()
            await session.until_state("EXITED")
            assert not _alive(pid)
        async with watched(channel, str(daemon.workspace), ephemeral=True) as session:
            await session.until_state("IDLE")
            await daemon.restart(signal.SIGKILL)
            await session.until_state("EXITED")


async def test_streams_end_with_a_time_to_come_back_when_the_daemon_drains(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.until_state("IDLE")
        stream = session.stub.Subscribe(api.SubscribeRequest(session_id=session.session_id))
        await anext(aiter(stream))
        stopping = asyncio.create_task(daemon.stop())
        async with failing("UNAVAILABLE", "SERVER_DRAINING") as drained:
            async for _ in stream:
                pass
        assert drained.failure.retry.retry_delay.ToMilliseconds() > 0
        assert await stopping == 0
        await daemon.start()


async def test_an_agent_that_waited_for_the_daemon_is_no_error() -> None:
    cap = 1 << 20
    async with (
        Daemon(settings={"raw_log_cap": str(cap)}) as daemon,
        daemon.channel() as channel,
        watched(channel, str(daemon.workspace)) as session,
    ):
        await session.until_state("IDLE")
        sent = await session.send("!burst @100 10\n!burst @flat 40000")
        await session.until("assistant_text", after=sent.seq)
        await daemon.kill()
        logs = daemon.data_dir / "sessions"
        await until(lambda: _size(logs) >= cap, "the agent has filled its log")
        await daemon.start()
        await session.until("turn_ended", after=sent.seq)
        assert "error_raised" not in session.kinds()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def test_a_second_daemon_on_one_directory_refuses_to_start(daemon: Daemon) -> None:
    second = await asyncio.create_subprocess_exec(
        *daemon.command(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=daemon.env,
    )
    async with asyncio.timeout(TIMEOUT):
        output, _ = await second.communicate()
    assert second.returncode
    assert b"another" in output.lower() or b"in use" in output.lower()
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.run("the first one serves")


async def test_a_stale_position_is_told_apart_from_a_new_one(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.run("hello")
        head = (await session.get()).head_seq
        request = api.SubscribeRequest(session_id=session.session_id, after_seq=head + 1)
        async with failing("OUT_OF_RANGE", "SEQ_IN_FUTURE") as future:
            await anext(aiter(session.stub.Subscribe(request)))
        assert future.failure.metadata["head_seq"] == str(head)
        request = api.SubscribeRequest(session_id=session.session_id, transcript_id="other")
        async with failing("FAILED_PRECONDITION", "TRANSCRIPT_CHANGED"):
            await anext(aiter(session.stub.Subscribe(request)))
        request = api.SubscribeRequest(session_id=session.session_id, after_seq=-1)
        async with failing("INVALID_ARGUMENT", "INVALID_FIELD", "after_seq"):
            await anext(aiter(session.stub.Subscribe(request)))
        request = api.SubscribeRequest(session_id=session.session_id, after_seq=head)
        first = await anext(aiter(session.stub.Subscribe(request)))
        assert (len(first.events), first.head_seq, first.first_seq) == (0, head, 1)
