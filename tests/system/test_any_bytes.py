"""Whatever an agent writes passes through shim, driver, store and stream, and takes bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.bench.measure import rss_mb
from tests.support.daemon import Daemon
from tests.support.session import watched

MEGABYTES = 100
# A line is held whole, decoded and encoded; and in the end all of it is let go of.
PEAK_MB, AFTER_MB = 10 * MEGABYTES, 4 * MEGABYTES
ODD = [
    r"caf\xc3",  # a character cut in two
    r"\x00\x00\x00",
    r"\xed\xa0\x80 a surrogate in bytes",
    r'{"kind":"text","delta":"\\ud83d"}',
    r'{"kind":"text","delta":"a\\u0000b"}',
    r'{"kind":"usage","input":1e400,"output":-99999999999999999999999999}',
    r'{"kind":"usage","input":18446744073709551616}',
    r'{"kind":"text","delta":"' + "x" * 300,
    r'{"kind":"tool","id":"","name":""}',
    r'{"kind":"end","outcome":"\\udfff"}',
    r'{"kind":"read","id":"nobody sent it"}',
    r'{"kind":"ask","id":"q","prompt":null,"options":[[]]}',
]


@contextlib.asynccontextmanager
async def _peak(pid: int) -> AsyncIterator[list[float]]:
    """Yield a list that holds the most memory that a process had, in MB."""
    peak = [rss_mb(pid)]

    async def look() -> None:
        while True:
            peak[0] = max(peak[0], rss_mb(pid))
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look())
    try:
        yield peak
    finally:
        looking.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["raw", "text", "tool"])
async def test_a_line_of_a_hundred_megabytes(shape: str) -> None:
    async with (
        Daemon() as daemon,
        daemon.channel() as channel,
        watched(channel, str(daemon.workspace)) as session,
        _peak(daemon.pid) as peak,
    ):
        # The agent itself takes seconds to make it.
        session.patience = 90.0
        await session.run(f"!huge as={shape} {MEGABYTES}\nafter it")
        assert session.text().endswith("after it")
        if shape == "text":
            assert len(session.text()) == MEGABYTES * 1_000_000 + len("after it")
        elif shape == "tool":
            ended = (await session.until("tool_ended")).tool_ended
            assert ended.full_output.size_bytes == MEGABYTES * 1_000_000
        else:
            added = (await session.until("attachment_added")).attachment_added
            assert added.attachment.size_bytes == MEGABYTES * 1_000_000
        assert peak[0] < PEAK_MB
        assert rss_mb(daemon.pid) < AFTER_MB


async def test_odd_lines_are_notices_or_nothing(daemon: Daemon) -> None:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.run("\n".join(f"!raw {line}" for line in ODD))
        await session.run("still here")
        assert session.text().endswith("still here")
        assert all(event.ignorable for event in session.events if event.HasField("notice"))
        assert session.kinds().count("turn_started") == session.kinds().count("turn_ended") == 2
        assert "Traceback" not in daemon.log()


async def test_characters_that_are_cut_by_writes_arrive_whole(daemon: Daemon) -> None:
    words = "\u00e9\u4e2d\U0001f600" * 30_000
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        # Longer than any pipe's room, so it comes in parts that end anywhere.
        await session.run(words)
        assert session.text() == words
