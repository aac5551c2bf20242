"""One run's process never speaks for another one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_server.errors import DomainError
from sessiond_server.session import process as process_module
from sessiond_server.session.process import Command, Delivery, Gone, Process, Unreachable
from sessiond_server.shim import (
    Acked,
    Exited,
    LaunchFailed,
    Link,
    LinkLost,
    Output,
    Received,
    find_leftovers,
    launch,
    wait_gone,
)
from tests.chaos import processes
from tests.support.daemon import wait_until_gone
from tests.unit.session.house import TIMEOUT, House, kinds, until


class SaidBehind:
    """A link over which something comes behind the exit, in the same read."""

    heard = 0.0

    def __init__(self, *batches: list[Received]) -> None:
        self._batches = list(batches)

    async def receive(self) -> list[Received]:
        if not self._batches:
            raise LinkLost("over")
        return self._batches.pop(0)


@pytest.mark.parametrize("behind", [[], [Acked(3)]])
async def test_an_exit_ends_the_supervision_whatever_comes_behind_it(
    tmp_path: Path, behind: list[Received]
) -> None:
    taken: list[Delivery] = []

    async def deliver(delivery: Delivery) -> None:
        taken.append(delivery)

    process = Process(tmp_path, 1, position=lambda: 0, deliver=deliver, log_cap=1, marker="m")
    link = SaidBehind([Output(0, b"x\n")], [Exited(0, None, 2), *behind])
    assert await process._carry(cast(Link, link))
    assert taken == [[Output(0, b"x\n")], [Exited(0, None, 2), *behind]]


async def test_what_nobody_thought_of_does_not_leave_a_session_without_supervision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_MAX_BACKOFF", 0.0)
    taken: list[Delivery] = []
    given: list[Command | None] = []

    async def deliver(delivery: Delivery) -> None:
        taken.append(delivery)

    class Failing(Process):
        async def _supervise(
            self, command: Command | None, session_id: str, after: asyncio.Task[None] | None
        ) -> None:
            given.append(command)
            if len(given) < 3:
                raise RuntimeError("never thought of")

    process = Failing(tmp_path, 1, position=lambda: 0, deliver=deliver, log_cap=1, marker="m")
    command = Command(("true",), {}, "/")
    process.start(command, "s")
    assert process._task is not None
    await process._task
    assert given == [command, None, None]
    assert taken == [Unreachable(), Unreachable()]


async def test_an_agent_that_a_dead_daemon_had_begun_to_start_makes_way() -> None:
    async with House() as house:
        session = await house.create()
        await until(session, "state_changed", state=session_pb2.SESSION_STATE_IDLE)
        run, marker, directory = session.row.run, session.marker, session.directory
        await house.crash()
        # What the daemon that died had asked for comes up only now, under the next number.
        await wait_until_gone(house.config.data_dir)
        command = [sys.executable, "-c", "import time; time.sleep(300)"]
        await launch(directory, run + 1, argv=command, env={}, cwd="/", session_id=marker)
        await house.open()
        session = house.roster.get(session.session_id)
        await until(session, "process_exited")
        row = session.row
        # As the store has it when the start was recorded.
        row.run = run + 1
        await session.call(api.ControlRequest(), session.restart, api.ControlResponse)
        await until(session, "process_started", after=row.head_seq)
        assert len(processes.agents(house.config.data_dir)) == 1


async def test_what_a_former_run_says_is_not_heard() -> None:
    async with House() as house:
        session = await house.create()
        await until(session, "state_changed", state=session_pb2.SESSION_STATE_IDLE)
        before = kinds(session)
        await session._deliver(session.row.run - 1, [Output(77, b"{}\n")])
        await session._deliver(session.row.run - 1, Gone(None, "", started=False))
        assert kinds(session) == before
        assert session.row.alive


async def test_an_agent_that_came_up_though_its_start_failed_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []

    async def late(directory: Path, run: int, **order: Any) -> None:
        await launch(directory, run, **order)
        started.extend(processes.agents(house.config.data_dir))
        # As when the launcher stands still: the shim serves, and nobody says so in time.
        raise LaunchFailed("the agent did not start in time")

    async with House() as house:
        monkeypatch.setattr("sessiond_server.shim.launch", late)
        with pytest.raises(DomainError) as failed:
            await house.create(session_id="mine")
        assert failed.value.reason == reasons.ERROR_REASON_LAUNCH_FAILED
        assert len(started) == 1
        assert not processes.agents(house.config.data_dir)
        assert not any((house.config.data_dir / "sessions").iterdir())
        monkeypatch.undo()
        await until(await house.create(session_id="mine"), "process_started")


async def test_an_agent_that_nobody_knew_of_goes_with_its_session() -> None:
    async with House() as house:
        session = await house.create()
        await until(session, "state_changed", state=session_pb2.SESSION_STATE_IDLE)
        assert await session.kill(TIMEOUT)
        await wait_gone(session.directory)
        command = [sys.executable, "-c", "import time; time.sleep(300)"]
        directory, run = session.directory, session.row.run + 1
        await launch(directory, run, argv=command, env={}, cwd="/", session_id=session.marker)
        await house.roster.delete(api.DeleteSessionRequest(session_id=session.session_id))
        assert not processes.shims(house.config.data_dir)
        assert not find_leftovers(session.marker)
        assert not directory.exists()
