"""One run's process never speaks for another one."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from sessiond.v1 import session_pb2
from sessiond_server.session.process import Delivery, Gone, Process
from sessiond_server.shim import Acked, Exited, Link, LinkLost, Output, Received
from tests.unit.session.house import House, kinds, until


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


async def test_what_a_former_run_says_is_not_heard() -> None:
    async with House() as house:
        session = await house.create()
        await until(session, "state_changed", state=session_pb2.SESSION_STATE_IDLE)
        before = kinds(session)
        await session._deliver(session.row.run - 1, [Output(77, b"{}\n")])
        await session._deliver(session.row.run - 1, Gone(None, "", started=False))
        assert kinds(session) == before
        assert session.row.alive
