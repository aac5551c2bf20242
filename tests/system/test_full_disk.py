"""A disk that is really full: nothing is lost, everything says so, and it goes on by itself."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.support.daemon import Daemon
from tests.support.disk import fill, small_disk
from tests.support.session import failing, watched
from tests.support.waiting import until


@pytest.fixture
async def small() -> AsyncIterator[Daemon]:
    """A daemon, not started, whose data is on a disk of 24 MiB."""
    with tempfile.TemporaryDirectory(prefix="sessiond-", ignore_cleanup_errors=True) as folder:
        daemon = Daemon(Path(folder), {"log.level": '"warning"'})
        with small_disk(daemon.data_dir, 24) as mounted:
            if not mounted:
                pytest.skip("a small disk can be mounted by root only")
            yield daemon
            await daemon.close()


async def test_a_turn_waits_for_room_and_goes_on(small: Daemon) -> None:
    await small.start()
    async with small.channel() as channel, watched(channel, str(small.workspace)) as session:
        await session.until_state("IDLE")
        await session.send("!burst @2000 6000")
        await session.until("assistant_text")
        free = fill(small.data_dir).unlink
        refused = False
        for _ in range(200):
            try:
                await session.send("no room for this", request_id="later")
            except grpc.aio.AioRpcError:
                refused = True
                break
            await asyncio.sleep(0.02)
        assert refused
        async with failing("RESOURCE_EXHAUSTED", "STORAGE_FULL") as full:
            await session.send("nor for this", request_id="another")
        assert full.failure.retry.retry_delay.ToMilliseconds() > 0
        free()
        await session.until("turn_ended")
        assert session.text().split() == [f"#{number}" for number in range(1, 6001)]
        await session.run("going on")


async def test_a_daemon_that_cannot_start_says_why(small: Daemon) -> None:
    await small.start()
    async with small.channel() as channel, watched(channel, str(small.workspace)) as session:
        await session.run("hello")
        await small.kill()
        free = fill(small.data_dir).unlink
        with pytest.raises(RuntimeError) as refused:
            await small.start()
        last = str(refused.value).splitlines()[-1]
        assert "full" in last or "No space" in last
        assert "Traceback" not in small.log()
        free()
        await small.start()
        await until(lambda: "process_adopted" in session.kinds(), "the agent is found again")
        await session.run("going on")
