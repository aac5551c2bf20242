"""Streams opened and cancelled in a loop: the daemon's memory stays as it is, and no place stays taken.

`python -m tests.bench.leak [--streams N]`. A third are cancelled at once, a third after their first
response, a third with their connection. The exit code is 1 when memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
from collections.abc import Iterator

from sessiond.v1 import session_service_pb2 as api
from sessiond.v1 import session_service_pb2_grpc
from tests.bench.measure import finish, rss_mb
from tests.support.daemon import Daemon
from tests.support.session import watched

_AT_ONCE = 40
_BATCH = 1000
_WARM_UP = 4000
# Growth over all streams after the warm-up that counts as flat, in MB: allocators breathe.
_FLAT_MB = 8.0
_TIMEOUT = 30.0


async def _open_and_cancel(daemon: Daemon, session_id: str, ways: Iterator[float]) -> None:
    """Open streams, each left in its own way, until there are no more to open."""
    async with contextlib.AsyncExitStack() as stack:
        channel = await stack.enter_async_context(daemon.channel())
        for way in ways:
            stub: session_service_pb2_grpc.SessionServiceAsyncStub
            stub = session_service_pb2_grpc.SessionServiceStub(channel)
            call = stub.Subscribe(api.SubscribeRequest(session_id=session_id), timeout=_TIMEOUT)
            if way > 0.33:
                await call.read()
            if way > 0.98:
                await stack.aclose()
                channel = await stack.enter_async_context(daemon.channel())
            call.cancel()


async def measure(streams: int) -> dict[str, float]:
    """Return the daemon's memory at the start and the end, in MB, and the growth for each stream."""
    # Fewer places than streams: one that stays taken is missed at once.
    settings = {"limits.max_subscribers": str(_AT_ONCE * 4), "log.level": '"error"'}
    async with Daemon(settings=settings) as daemon, daemon.channel() as channel:
        async with watched(channel, str(daemon.workspace)) as session:
            await session.run("!burst @flat 2000")
            sizes: list[float] = []
            for done in range(0, _WARM_UP + streams, _BATCH):
                rng = random.Random(done)
                ways = iter([rng.random() for _ in range(_BATCH)])
                await asyncio.gather(
                    *(_open_and_cancel(daemon, session.session_id, ways) for _ in range(_AT_ONCE))
                )
                sizes.append(rss_mb(daemon.pid))
                print(f"{done + _BATCH} streams: {sizes[-1]:.1f} MB", flush=True)
            await session.run("still served")
        await _all_places_are_free(daemon, session.session_id)
    before = statistics.median(sizes[_WARM_UP // _BATCH - 2 : _WARM_UP // _BATCH + 1])
    after = statistics.median(sizes[-3:])
    return {
        "streams": streams,
        "rss_mb_before": before,
        "rss_mb_after": after,
        "growth_mb": after - before,
        "bytes_per_stream": (after - before) * 1e6 / streams,
    }


async def _all_places_are_free(daemon: Daemon, session_id: str) -> None:
    async with daemon.channel() as channel:
        stub: session_service_pb2_grpc.SessionServiceAsyncStub
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        calls = [
            stub.Subscribe(api.SubscribeRequest(session_id=session_id)) for _ in range(_AT_ONCE * 4)
        ]
        for response in await asyncio.gather(*(call.read() for call in calls)):
            assert isinstance(response, api.SubscribeResponse)
        for call in calls:
            call.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=20_000)
    figures = asyncio.run(measure(parser.parse_args().streams))
    finish(figures)
    sys.exit(figures["growth_mb"] > _FLAT_MB)
