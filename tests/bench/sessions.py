"""Many living sessions, each with an agent of its own: what one costs, and what it notices of the rest.

`python -m tests.bench.sessions [--sessions N]`. All are created, get a message at once, outlive a kill
of the daemon, get another message, and are deleted. `turn_ms` is the median time from a Send to the end
of its turn, in one session while all others are idle. It breaks off when a text is missing or another
session's; the exit code is also 1 when a process is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Awaitable, Iterable

import grpc

from sessiond.v1 import session_service_pb2 as api
from tests.bench.measure import finish, rss_mb
from tests.chaos.processes import agents, command, shims
from tests.support.daemon import Daemon
from tests.support.session import Watched, watched

_TIMEOUT = 1200.0
# Starts under way at once: more would only wait for the processor.
_AT_ONCE = 8
_TURNS = 30


async def _turn_ms(session: Watched) -> float:
    times: list[float] = []
    for _ in range(_TURNS):
        started = time.perf_counter()
        sent = await session.send("hello")
        await session.until("turn_ended", after=sent.seq)
        times.append((time.perf_counter() - started) * 1000)
        await session.until_state("IDLE", after=sent.seq)
    return statistics.median(times)


async def _seconds(work: Iterable[Awaitable[object]]) -> float:
    started = time.perf_counter()
    await asyncio.gather(*work)
    return time.perf_counter() - started


async def _create(
    stack: contextlib.AsyncExitStack, channel: grpc.aio.Channel, workspace: str, count: int
) -> list[Watched]:
    room = asyncio.Semaphore(_AT_ONCE)

    async def create() -> Watched:
        async with room:
            session = await stack.enter_async_context(watched(channel, workspace))
            session.patience = _TIMEOUT
            await session.until_state("IDLE")
            return session

    return await asyncio.gather(*(create() for _ in range(count)))


async def _delete(sessions: list[Watched]) -> None:
    room = asyncio.Semaphore(_AT_ONCE)

    async def delete(session: Watched) -> None:
        async with room:
            await session.stub.DeleteSession(api.DeleteSessionRequest(session_id=session.session_id))
            await session.until_gone()

    await asyncio.gather(*(delete(session) for session in sessions))


async def _said(session: Watched, text: str) -> None:
    """Every session has a text of its own to say, so that none can have another's."""
    before = len(session.events)
    await session.run(text)
    assert session.text(before) == text, f"{session.text(before)!r} instead of {text!r}"


async def measure(count: int) -> dict[str, float]:
    """Return memory, times and rates in the units of their names, and how many processes are left."""
    settings = {"log.level": '"warning"', "limits.max_sessions": str(count + 1)}
    async with (
        asyncio.timeout(_TIMEOUT),
        Daemon(settings=settings) as daemon,
        daemon.channel() as channel,
        contextlib.AsyncExitStack() as stack,
    ):
        figures: dict[str, float] = {"sessions": count}
        sessions = await _create(stack, channel, str(daemon.workspace), 1)
        figures["turn_ms_1"] = await _turn_ms(sessions[0])
        figures["rss_mb_1"] = rss_mb(daemon.pid)
        started = time.perf_counter()
        sessions += await _create(stack, channel, str(daemon.workspace), count - 1)
        figures["create_per_s"] = (count - 1) / (time.perf_counter() - started)
        figures["rss_mb"] = rss_mb(daemon.pid)
        figures["kb_per_session"] = (figures["rss_mb"] - figures["rss_mb_1"]) * 1000 / (count - 1)
        figures["turn_ms"] = await _turn_ms(sessions[-1])
        figures["all_turns_s"] = await _seconds(
            _said(session, f"first of {number}") for number, session in enumerate(sessions)
        )
        await daemon.kill()
        started = time.perf_counter()
        await daemon.start()
        await asyncio.gather(*(session.until("process_adopted") for session in sessions))
        figures["adopt_all_s"] = time.perf_counter() - started
        await asyncio.gather(
            *(_said(session, f"second of {number}") for number, session in enumerate(sessions))
        )
        figures["rss_mb_restarted"] = rss_mb(daemon.pid)
        children = {pid: command(pid) for pid in (*shims(daemon.data_dir), *agents(daemon.data_dir))}
        assert len(children) == 2 * count
        started = time.perf_counter()
        await _delete(sessions)
        figures["delete_per_s"] = count / (time.perf_counter() - started)
        figures["rss_mb_deleted"] = rss_mb(daemon.pid)
        figures["left"] = sum(command(pid) == text for pid, text in children.items())
        return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000)
    found = asyncio.run(measure(parser.parse_args().sessions))
    finish(found)
    sys.exit(1 if found["left"] else 0)
