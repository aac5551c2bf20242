"""Starts and ends that are cut in the middle: they are finished, and nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import grpc
import pytest

from sessiond.v1 import session_pb2, session_service_pb2_grpc
from sessiond.v1 import session_service_pb2 as api
from tests.chaos.processes import shims
from tests.support.daemon import Daemon
from tests.support.session import TIMEOUT, Watched, failing, watched
from tests.support.waiting import until


def _agents(session_id: str, daemon: Daemon) -> list[int]:
    """Pids of living agents of a session of this daemon, by the folder that they were told."""
    mark = f"ECHO_STATE_DIR={daemon.folder}/echo-{session_id}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def _request(daemon: Daemon, session_id: str) -> api.CreateSessionRequest:
    return api.CreateSessionRequest(
        session_id=session_id,
        driver="echo",
        workspace=str(daemon.workspace),
        environment={"ECHO_STATE_DIR": f"{daemon.folder}/echo-{session_id}"},
        request_id=f"create-{session_id}",
    )


async def _ends(
    call: grpc.aio.UnaryUnaryCall[api.CreateSessionRequest, api.CreateSessionResponse],
) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        await call


@pytest.mark.slow
async def test_a_create_that_a_kill_cut_is_finished_by_the_next_daemon(daemon: Daemon) -> None:
    async with daemon.channel() as channel:
        stub: session_service_pb2_grpc.SessionServiceAsyncStub
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        for number, delay in enumerate((0.005, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2)):
            session_id = f"s{number}"
            request = _request(daemon, session_id)
            await channel.channel_ready()
            call = stub.CreateSession(request)
            await asyncio.sleep(delay)
            await daemon.restart(signal.SIGKILL)
            await _ends(call)
            created = await stub.CreateSession(request, timeout=TIMEOUT, wait_for_ready=True)
            assert created.session.session_id == session_id
            assert created.session.transcript_id
            session = Watched(stub, session_id)
            await session.until_state("IDLE")
            await session.run("hello")
            assert session.text() == "hello"
            assert "error_raised" not in session.kinds()
            await session.close()
            assert len(_agents(session_id, daemon)) == 1
            assert await stub.CreateSession(request, timeout=TIMEOUT) == created


async def test_a_create_whose_caller_went_away_is_finished(daemon: Daemon) -> None:
    async with daemon.channel() as channel:
        stub: session_service_pb2_grpc.SessionServiceAsyncStub
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        await channel.channel_ready()
        for number in range(12):
            session_id = f"s{number}"
            call = stub.CreateSession(_request(daemon, session_id))
            await asyncio.sleep(0.004 * number)
            call.cancel()
            created = await stub.CreateSession(_request(daemon, session_id), timeout=TIMEOUT)
            assert created.session.session_id == session_id
            session = Watched(stub, session_id)
            await session.until_state("IDLE")
            await session.close()
            assert len(_agents(session_id, daemon)) == 1
        listed = await stub.ListSessions(api.ListSessionsRequest(), timeout=TIMEOUT)
        assert len(listed.sessions) == 12


def _shim(session: Watched, agent: int) -> int:
    return int(Path(f"/proc/{agent}/stat").read_text().rsplit(")", 1)[1].split()[1])


async def test_a_session_whose_shim_is_frozen_can_be_deleted(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.run("!spawn 300")
        child = int(session.text().removeprefix("pid "))
        agent = (await session.until("process_started")).process_started.pid
        os.kill(_shim(session, agent), signal.SIGSTOP)
        request = api.DeleteSessionRequest(session_id=session.session_id)
        await session.stub.DeleteSession(request, timeout=TIMEOUT)
        await session.until_gone()
        await until(lambda: not (_lives(agent) or _lives(child)), "both have ended")


async def test_a_shim_that_freezes_is_an_unknown_state_until_it_goes_on(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.until_state("IDLE")
        agent = (await session.until("process_started")).process_started.pid
        shim = _shim(session, agent)
        os.kill(shim, signal.SIGSTOP)
        try:
            unknown = await session.until_state("UNKNOWN", after=len(session.events))
        finally:
            os.kill(shim, signal.SIGCONT)
        await session.until_state("IDLE", after=unknown.seq)
        await session.run("served again")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("left", [0, 300])
async def test_output_that_a_power_cut_took_does_not_hold_a_session(daemon: Daemon, left: int) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.run("hello wide world")
        agent = (await session.until("process_started")).process_started.pid
        await daemon.kill()
        os.kill(_shim(session, agent), signal.SIGKILL)
        await until(lambda: not _lives(agent), "the agent has ended")
        for log in daemon.data_dir.glob("sessions/*/run-*/out.*.log"):
            os.truncate(log, left)
        await daemon.start()
        exited = await session.until_state("EXITED")
        await session.control(restart=api.Restart())
        await session.until_state("IDLE", after=exited.seq)
        await session.run("going on")


async def test_what_deleted_sessions_left_is_swept_by_the_next_daemon(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.until_state("IDLE")
        agent = (await session.until("process_started")).process_started.pid
        await daemon.kill()
        # As if the session were of a store that was since put back to an earlier state.
        directory = next(daemon.data_dir.glob("sessions/*"))
        stranger = directory.with_name("4711")
        directory.rename(stranger)
        (stranger.parent / ".stray").touch()
        assert "1 live on" in await _doctor(daemon)
        await daemon.start()
        await until(lambda: not stranger.exists(), "the directory is gone")
        await until(lambda: not _lives(agent), "the agent has ended")
        await session.until_state("EXITED")


async def test_two_restarts_at_once_start_one_process(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.until_state("IDLE")
        await session.control(stop=api.Stop())
        exited = await session.until_state("EXITED")
        await asyncio.gather(
            *(session.control(restart=api.Restart(), request_id=f"r{n}") for n in (1, 1, 1))
        )
        await session.until_state("IDLE", after=exited.seq)
        await session.run("hello")
        assert session.kinds(exited.seq).count("process_started") == 1
        request = api.CreateSessionRequest(
            driver="echo", workspace=str(daemon.workspace), session_id=session.session_id
        )
        async with failing("ALREADY_EXISTS", "SESSION_EXISTS"):
            await session.stub.CreateSession(request, timeout=TIMEOUT)
        shown = await session.get()
        assert shown.state == session_pb2.SESSION_STATE_IDLE


@pytest.mark.parametrize("end", ["stop", "delete"])
async def test_what_a_crashed_agent_left_goes_with_its_session(daemon: Daemon, end: str) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.run("!spawn 300")
        child = int(session.text().removeprefix("pid "))
        await session.send("!crash KILL")
        exited = await session.until_state("EXITED")
        # Perhaps somebody wants it: a server that was started to be looked at.
        assert _lives(child)
        if end == "stop":
            await session.control(restart=api.Restart())
            await session.until_state("IDLE", after=exited.seq)
            assert _lives(child)
            await session.control(stop=api.Stop())
        else:
            request = api.DeleteSessionRequest(session_id=session.session_id)
            await session.stub.DeleteSession(request, timeout=TIMEOUT)
        await until(lambda: not _lives(child), "the child has ended")


async def _doctor(daemon: Daemon) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from sessiond_server.main import main; main()", "doctor"),
        *(f"--data-dir={daemon.data_dir}", f"--runtime-dir={daemon.runtime_dir}"),
        stdout=asyncio.subprocess.PIPE,
        env=daemon.env,
    )
    async with asyncio.timeout(TIMEOUT):
        output, _ = await process.communicate()
    return output.decode()


async def test_doctor_tells_what_lives_on_without_a_daemon_and_without_an_agent(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.run("!spawn 300")
        child = int(session.text().removeprefix("pid "))
        assert "ok    agents: 1 running" in await _doctor(daemon)
        await daemon.kill()
        told = await _doctor(daemon)
        assert "note  agents: 1 live on without a daemon" in told
        assert "it was killed, the next start takes over" in told
        await daemon.start()
        await session.send("!crash KILL")
        await session.until_state("EXITED")
        told = await _doctor(daemon)
        assert f"note  leftover: pid {child} of session {session.session_id}" in told
        assert "agents:" not in told
        request = api.DeleteSessionRequest(session_id=session.session_id)
        await session.stub.DeleteSession(request, timeout=TIMEOUT)
        assert f"pid {child}" not in await _doctor(daemon)


async def test_doctor_tells_who_stands_still(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.until_state("IDLE")
        (shim,) = shims(daemon.data_dir)
        for pid, subject in ((shim, "agents"), (daemon.pid, "daemon")):
            assert f"kill -CONT {pid}" not in await _doctor(daemon)
            os.kill(pid, signal.SIGSTOP)
            try:
                told = await _doctor(daemon)
            finally:
                os.kill(pid, signal.SIGCONT)
            (line,) = (line for line in told.splitlines() if f"kill -CONT {pid}" in line)
            assert line.startswith(f"wrong {subject}: ")


class _Impatient(Daemon):
    """Takes a shim that says nothing for a second for one that never will."""

    prelude = (
        "from sessiond_server.session import process\n"
        "process._PING_INTERVAL, process._SILENCE = 0.2, 1.0"
    )


@pytest.mark.slow
async def test_a_session_whose_shim_is_frozen_says_so_and_can_be_stopped() -> None:
    async with (
        _Impatient() as daemon,
        daemon.channel() as channel,
        watched(channel, str(daemon.workspace)) as session,
    ):
        session.patience = 90.0
        await session.run("hello")
        agent = (await session.until("process_started")).process_started.pid
        (frozen,) = shims(daemon.data_dir)
        os.kill(frozen, signal.SIGSTOP)
        raised = await session.until("error_raised")
        assert raised.error_raised.reason == "SESSION_UNREACHABLE"
        await session.until_state("UNKNOWN", after=raised.seq)
        await session.control(stop=api.Stop())
        await session.until_state("EXITED", after=raised.seq)
        await until(lambda: not _lives(agent) and not _lives(frozen), "both have ended")
        assert session.kinds().count("error_raised") == 1
