"""Many idle streams: what each costs the daemon, and how long an event takes to reach the last one.

`python -m tests.bench.idle [--streams N]`; the streams are held by other processes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import grpc

from sessiond.v1 import session_service_pb2 as api
from sessiond.v1 import session_service_pb2_grpc
from tests.bench.measure import finish, rss_mb
from tests.support.daemon import Daemon
from tests.support.session import watched

_EACH = 2500
_TIMEOUT = 300.0


async def _hold(target: str, session_id: str, head: int, count: int) -> None:
    """Hold `count` streams; say so; end when every one of them got the next event."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_concurrent_streams", count)]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        stub: session_service_pb2_grpc.SessionServiceAsyncStub
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        request = api.SubscribeRequest(session_id=session_id, after_seq=head)
        calls = [stub.Subscribe(request) for _ in range(count)]
        for call in calls:
            assert isinstance(await call.read(), api.SubscribeResponse)
        print("held", flush=True)
        for call in calls:
            response = await call.read()
            assert isinstance(response, api.SubscribeResponse)
            assert response.events
        print("got", flush=True)
        for call in calls:
            call.cancel()


async def measure(streams: int) -> dict[str, float]:
    """Return the memory that the streams take, and the time for one event to reach all."""
    settings = {"log.level": '"error"', "heartbeat_interval": "120.0"}
    async with (
        Daemon(settings=settings) as daemon,
        daemon.channel() as channel,
        watched(channel, str(daemon.workspace)) as session,
    ):
        await session.run("hello")
        head = (await session.get()).head_seq
        before, started = rss_mb(daemon.pid), time.perf_counter()
        holders = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.bench.idle", "--hold"),
                *(daemon.unix, session.session_id, str(head), str(min(_EACH, streams - held))),
                stdout=asyncio.subprocess.PIPE,
            )
            for held in range(0, streams, _EACH)
        ]
        async with asyncio.timeout(_TIMEOUT):
            for holder in holders:
                assert holder.stdout is not None
                assert await holder.stdout.readline() == b"held\n"
            opened, during = time.perf_counter() - started, rss_mb(daemon.pid)
            started = time.perf_counter()
            await session.send("to all")
            sent = time.perf_counter() - started
            for holder in holders:
                assert holder.stdout is not None
                assert await holder.stdout.readline() == b"got\n"
            reached = time.perf_counter() - started
            for holder in holders:
                await holder.wait()
        await session.run("still served")
        return {
            "streams": streams,
            "open_s": opened,
            "rss_mb_before": before,
            "rss_growth_mb": during - before,
            "kb_per_stream": (during - before) * 1000 / streams,
            "send_ms": sent * 1000,
            "reach_all_s": reached,
            "rss_mb_after": rss_mb(daemon.pid),
        }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--hold"]:
        target, session_id, head, count = sys.argv[2:]
        asyncio.run(_hold(target, session_id, int(head), int(count)))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--streams", type=int, default=10_000)
        # The watching stream has a place too.
        finish(asyncio.run(measure(parser.parse_args().streams - 1)))
