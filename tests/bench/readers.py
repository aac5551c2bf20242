"""One stalled and 200 live readers while an agent writes flat out.

`python -m tests.bench.readers [--live N] [--lines N]`. The agent's own time for its burst, with readers
and without any, tells whether a reader slows it down. The daemon's memory tells whether one costs more
than its place: `rss_growth_mb` is what is left when all have the burst, `rss_peak_mb` what batches on
their way take meanwhile. The readers are other processes of the same machine, which get what processor
time the daemon and the agent leave, as if they were on others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any

from sessiond.v1 import session_service_pb2 as api
from tests.bench.measure import finish, rss_mb
from tests.support.daemon import Daemon
from tests.support.session import Watched, watched

_TIMEOUT = 600.0


async def _burst(session: Watched, lines: int) -> float:
    """Return the seconds that the agent took for a burst, by its own clock."""
    head = (await session.get()).head_seq
    await session.send(f"!burst @flat size=150 {lines}")
    while True:
        page = await session.stub.ListEvents(
            api.ListEventsRequest(session_id=session.session_id, page_size=5), timeout=_TIMEOUT
        )
        for event in page.events:
            if event.HasField("turn_ended") and event.seq > head:
                return event.turn_ended.duration.ToMilliseconds() / 1000
        await asyncio.sleep(0.05)


async def _live(daemon: Daemon, session: Watched, count: int) -> asyncio.subprocess.Process:
    """Start that many readers in another process; return once they follow."""
    head = (await session.get()).head_seq
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", "19", sys.executable, "-m", "tests.bench.live", "--follow"),
        *(daemon.unix, session.session_id, str(head), str(count)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(_TIMEOUT):
        await process.stdout.readline()
    # The calls are under way; give them the time to arrive.
    await asyncio.sleep(1.0)
    return process


async def _round(daemon: Daemon, session: Watched, live: int, lines: int) -> dict[str, float]:
    alone = statistics.median([await _burst(session, lines) for _ in range(3)])
    process = await _live(daemon, session, live)
    before, started = rss_mb(daemon.pid), time.perf_counter()
    peak = before
    together = await _burst(session, lines)
    reading = asyncio.create_task(process.communicate())
    async with asyncio.timeout(_TIMEOUT):
        while not reading.done():
            peak = max(peak, rss_mb(daemon.pid))
            await asyncio.wait((reading,), timeout=0.05)
        output, _ = await reading
    seconds = time.perf_counter() - started
    seen: dict[str, Any] = json.loads(output)
    assert seen["events"] >= live * lines
    figures = {
        "delivered_per_s": seen["events"] / seconds,
        "agent_slowdown": together / alone,
        "rss_growth_mb": rss_mb(daemon.pid) - before,
        "rss_peak_mb": peak - before,
    }
    print(f"agent alone {alone:.2f} s, with readers {together:.2f} s; all delivered in {seconds:.1f} s")
    return figures


async def measure(live: int, lines: int, rounds: int) -> dict[str, float]:
    """Return medians over some rounds; the growth is the biggest of all."""
    async with (
        Daemon(settings={"log.level": '"warning"'}) as daemon,
        daemon.channel() as channel,
        watched(channel, str(daemon.workspace)) as session,
    ):
        await session.until_state("IDLE")
        await session.close()
        # Caches and pools get their size before anything is measured.
        await _burst(session, lines)
        await _round(daemon, session, live, lines)
        stalled = session.stub.Subscribe(api.SubscribeRequest(session_id=session.session_id))
        assert isinstance(await stalled.read(), api.SubscribeResponse)
        results = [await _round(daemon, session, live, lines) for _ in range(rounds)]
        stalled.cancel()
    return {
        "stalled": 1,
        "live": live,
        "delivered_per_s": round(statistics.median(r["delivered_per_s"] for r in results)),
        "agent_slowdown": statistics.median(r["agent_slowdown"] for r in results),
        "rss_growth_mb": max(r["rss_growth_mb"] for r in results),
        "rss_peak_mb": max(r["rss_peak_mb"] for r in results),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", type=int, default=200)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    finish(asyncio.run(measure(options.live, options.lines, options.rounds)))
