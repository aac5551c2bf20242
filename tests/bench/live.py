"""From an agent's line to its subscribers, through shim, driver, commit and stream.

`python -m tests.bench.live [--seconds S] [--lines N]`. The agent writes the time into each line; the
subscribers, in a process of their own, take the difference. Then one agent writes flat out, while one
subscriber is stalled and many read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import grpc

from sessiond.v1 import session_service_pb2 as api
from sessiond.v1 import session_service_pb2_grpc
from tests.bench.measure import finish, percentile, rss_mb
from tests.support.daemon import Daemon
from tests.support.session import Watched, watched

_RATE = 100
_TIMEOUT = 120.0
_CHANNELS = 8


async def _follow(channel: grpc.aio.Channel, session_id: str, head: int, delays: list[float]) -> int:
    """Read one turn live; return how many events came."""
    stub: session_service_pb2_grpc.SessionServiceAsyncStub
    stub = session_service_pb2_grpc.SessionServiceStub(channel)
    request = api.SubscribeRequest(session_id=session_id, after_seq=head)
    count, seq = 0, head
    async for response in stub.Subscribe(request, timeout=_TIMEOUT):
        now = time.time_ns()
        for event in response.events:
            count, seq = count + 1, seq + 1
            assert event.seq == seq, f"seq {event.seq} in place of {seq}"
            words = event.assistant_text.delta.split()
            if len(words) > 1 and words[1].isdigit():
                delays.append((now - int(words[1])) / 1e6)
            if event.HasField("turn_ended"):
                return count
    raise AssertionError("the stream ended before its turn")


async def _subscribers(target: str, session_id: str, head: int, count: int) -> None:
    """Be `count` subscribers on a few connections; print what they saw."""
    channels = [
        grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(min(count, _CHANNELS))
    ]
    await asyncio.gather(*(channel.channel_ready() for channel in channels))
    delays: list[float] = []
    follows = [_follow(channels[i % len(channels)], session_id, head, delays) for i in range(count)]
    print("ready", flush=True)
    counts = await asyncio.gather(*follows)
    seen = {
        "events": sum(counts),
        "p50": percentile(delays, 0.5) if delays else 0.0,
        "p99": percentile(delays, 0.99) if delays else 0.0,
    }
    print(json.dumps(seen), flush=True)
    for channel in channels:
        await channel.close()


async def _turn(daemon: Daemon, session: Watched, text: str, count: int) -> dict[str, Any]:
    """Send a message and return what `count` subscribers of another process saw of its turn."""
    head = (await session.get()).head_seq
    command = [
        *(sys.executable, "-m", "tests.bench.live", "--follow"),
        *(daemon.unix, session.session_id, str(head), str(count)),
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(_TIMEOUT):
        await process.stdout.readline()
        await session.send(text)
        output, _ = await process.communicate()
    seen: dict[str, Any] = json.loads(output)
    return seen


async def _latency(daemon: Daemon, seconds: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for count in (1, 100):
        async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
            await session.until_state("IDLE")
            await session.close()
            lines = _RATE * seconds
            seen = await _turn(daemon, session, f"!burst @{_RATE} stamp=1 {lines}", count)
            assert seen["events"] >= lines * count
            figures[f"p50_ms_{count}"] = seen["p50"]
            figures[f"p99_ms_{count}"] = seen["p99"]
            print(
                f"{count} subscribers at {_RATE}/s: p50 {seen['p50']:.2f} ms, p99 {seen['p99']:.2f} ms"
            )
    return figures


async def _ingest(daemon: Daemon, lines: int) -> float:
    """One agent flat out, one subscriber: the last line is durable and seen at the end."""
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.until_state("IDLE")
        await session.close()
        started = time.perf_counter()
        await _turn(daemon, session, f"!burst @flat size=150 {lines}", 1)
        rate = lines / (time.perf_counter() - started)
        print(f"flat out: {rate:,.0f} lines/s of 150 bytes, the reader's start included")
        return rate


async def _memory(daemon: Daemon, lines: int) -> float:
    """Growth of the daemon while one subscriber is stalled and 100 read a burst."""
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.until_state("IDLE")
        await _turn(daemon, session, f"!burst @flat size=150 {lines}", 100)
        stalled = session.stub.Subscribe(api.SubscribeRequest(session_id=session.session_id))
        await anext(aiter(stalled))
        before = rss_mb(daemon.pid)
        await _turn(daemon, session, f"!burst @flat size=150 {lines}", 100)
        after = rss_mb(daemon.pid)
        stalled.cancel()
        print(f"daemon: {before:.0f} MB before, {after:.0f} MB after a burst with a stalled reader")
        return after - before


async def measure(seconds: int, lines: int) -> dict[str, float]:
    """Return all figures."""
    async with Daemon(settings={"log.level": '"warning"'}) as daemon:
        figures = await _latency(daemon, seconds)
        figures["ingest_lines_per_s"] = round(await _ingest(daemon, lines))
        figures["rss_growth_mb"] = await _memory(daemon, lines // 4)
        return figures


def _main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--follow"]:
        target, session_id, head, count = arguments[1:]
        asyncio.run(_subscribers(target, session_id, int(head), int(count)))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--lines", type=int, default=400_000)
    options = parser.parse_args(arguments)
    finish(asyncio.run(measure(options.seconds, options.lines)))


if __name__ == "__main__":
    _main(sys.argv[1:])
