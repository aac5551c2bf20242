"""A restart: what comes in one step with it is for the new process, and so is what was not read."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_drivers.base import StopPlan
from sessiond_drivers.echo.driver import EchoDriver
from sessiond_server.session import Core, Session, calls
from tests.unit.session.house import House, events, kinds, until

IDLE, EXITED = session_pb2.SESSION_STATE_IDLE, session_pb2.SESSION_STATE_EXITED
STOP = api.ControlRequest(stop=api.Stop())


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with House() as opened:
        yield opened


async def _control(session: Session, request: api.ControlRequest) -> api.ControlResponse:
    """Carry out one action as the service does."""

    def run(core: Core) -> api.ControlResponse:
        if request.HasField("restart"):
            restarted = session.restart(core)
            assert isinstance(restarted, api.ControlResponse)
            return restarted
        return calls.control(core, request, "")

    return await session.call(request, run, api.ControlResponse, request_id=request.request_id)


async def _exited(house: House) -> tuple[Session, int]:
    """Return a session whose agent was stopped, and its last seq."""
    session = await house.create()
    await until(session, "state_changed", state=IDLE)
    await _control(session, STOP)
    exited = await until(session, "state_changed", state=EXITED)
    return session, exited.seq


async def _restart_and(session: Session, request: api.ControlRequest) -> api.ControlResponse:
    """Restart; `request` waits behind it when the step begins. Return what Restart was answered."""
    restart = api.ControlRequest(restart=api.Restart(), request_id="first")
    restarted, _ = await asyncio.gather(_control(session, restart), _control(session, request))
    return restarted


async def test_a_second_restart_ends_the_process_that_the_first_one_starts(house: House) -> None:
    session, seq = await _exited(house)
    again = api.ControlRequest(restart=api.Restart(), request_id="second")
    await _restart_and(session, again)
    ended = await until(session, "process_exited", after=seq)
    await until(session, "state_changed", after=ended.seq, state=IDLE)
    assert kinds(session)[seq:].count("process_started") == 2


async def test_a_stop_by_signal_ends_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    session, seq = await _exited(house)
    monkeypatch.setattr(EchoDriver, "stop", lambda self: StopPlan(signal=signal.SIGTERM))
    await _restart_and(session, STOP)
    await until(session, "state_changed", after=seq, state=EXITED)
    assert "process_exited" in kinds(session)[seq:]
    assert not session.row.alive


async def test_a_setting_reaches_it(house: House) -> None:
    session, seq = await _exited(house)
    wanted = api.ControlRequest(set_model=api.SetModel(model="echo-2"), request_id="wanted")
    restarted = await _restart_and(session, wanted)
    await until(session, "settings_changed", after=seq, model="echo-2")
    # What the restart causes comes behind the seq that it was answered.
    assert restarted.seq == seq
    first = events(session)[seq]
    assert (first.WhichOneof("body"), first.request_id) == ("state_changed", "first")


_DEAF = """#!{python}
import os, sys, time
if "--version" in sys.argv or os.path.exists({marker!r}):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
open({marker!r}, "w").close()
os.close(0)
print('{{"kind": "hello", "version": "1", "session": ""}}', flush=True)
time.sleep(300)
"""


async def test_what_an_agent_without_stdin_was_sent_is_not_lost_without_a_word(tmp_path: Path) -> None:
    # The first process closes its stdin, the next one is the true agent.
    program, marker = tmp_path / "agent", str(tmp_path / "marker")
    program.write_text(_DEAF.format(python=sys.executable, marker=marker))
    program.chmod(0o755)
    async with House(drivers={"echo": {"binary": str(program)}}) as house:
        session = await house.create()
        await until(session, "state_changed", state=IDLE)
        request = api.SendRequest(text="hello?")
        sent = await session.call(
            request, lambda core: calls.send(core, request, "m", (), ""), api.SendResponse
        )
        told = await until(session, "error_raised", after=sent.seq, reason="SESSION_UNREACHABLE")
        assert "closed its input" in told.error_raised.message
        await until(session, "state_changed", after=told.seq, state=session_pb2.SESSION_STATE_UNKNOWN)
        await _control(session, api.ControlRequest(restart=api.Restart()))
        await until(session, "user_message", after=told.seq, message_id="m")
