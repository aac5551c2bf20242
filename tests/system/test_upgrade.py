"""A daemon meets agents that were started by the daemon of another version."""

from __future__ import annotations

import signal

from sessiond.v1 import session_service_pb2 as api
from sessiond_server.shim import program
from tests.chaos.processes import shims
from tests.support.daemon import Daemon
from tests.support.session import watched
from tests.support.waiting import until


def _versions_later(number: int) -> str:
    """The prelude of a daemon of a later version, as far as shims can tell."""
    return f"from sessiond_server.shim import program; program.PROTOCOL += {number}"


async def test_the_next_version_takes_a_running_turn_over(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        sent = await session.send("!burst @200 600")
        await session.until("assistant_text")
        daemon.prelude = _versions_later(1)
        await daemon.restart(signal.SIGTERM)
        await session.until("process_adopted")
        await session.until("turn_ended", after=sent.seq)
        assert session.text().split() == [f"#{number}" for number in range(1, 601)]
        assert session.kinds().count("error_raised") == 0


async def test_a_version_too_late_says_so_and_harms_nothing(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        sent = await session.send("!burst @200 600")
        await session.until("assistant_text")
        daemon.prelude = _versions_later(2)
        await daemon.restart(signal.SIGTERM)
        raised = (await session.until("error_raised")).error_raised
        assert raised.reason == "SESSION_UNREACHABLE"
        assert f"protocol {program.PROTOCOL}" in raised.message
        assert "run the version of sessiond that started it" in raised.message
        unknown = await session.until_state("UNKNOWN", after=sent.seq)
        daemon.prelude = _versions_later(0)
        await daemon.restart(signal.SIGTERM)
        await session.until("turn_ended", after=unknown.seq)
        assert session.text().split() == [f"#{number}" for number in range(1, 601)]
        assert session.kinds().count("error_raised") == 1


async def test_an_agent_of_a_version_too_early_can_be_stopped_and_restarted(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        session.patience = 60.0
        await session.run("hello")
        (former,) = shims(daemon.data_dir)
        daemon.prelude = _versions_later(2)
        await daemon.restart(signal.SIGTERM)
        raised = await session.until("error_raised")
        await session.control(stop=api.Stop())
        exited = await session.until("process_exited", after=raised.seq)
        await until(lambda: former not in shims(daemon.data_dir), "the shim is gone")
        assert session.kinds().count("error_raised") == 1
        # What this one starts are shims that it could not speak to either.
        daemon.prelude = _versions_later(0)
        await daemon.restart(signal.SIGTERM)
        await session.control(restart=api.Restart())
        await session.until_state("IDLE", after=exited.seq)
