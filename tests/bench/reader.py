"""A client process that reads seq, kind and text of every event, and prints the seconds it took.

`python -m tests.bench.reader subscribe TARGET SESSION N | one TARGET N | sse PORT N`
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp
import grpc

from sessiond.v1 import event_pb2, session_service_pb2_grpc
from sessiond.v1 import session_service_pb2 as api
from tests.bench.peers import METHOD


class Reader:
    """Counts events and checks their order."""

    def __init__(self) -> None:
        self.count = 0
        self.letters = 0

    def read(self, event: event_pb2.Event) -> None:
        """Look at one event as a client does."""
        self.count += 1
        assert event.seq == self.count
        if event.WhichOneof("body") == "assistant_text":
            self.letters += len(event.assistant_text.delta)


async def subscribe(target: str, session_id: str, count: int) -> float:
    """Read from sessiond."""
    reader = Reader()
    async with grpc.aio.insecure_channel(target) as channel:
        await channel.channel_ready()
        stub: session_service_pb2_grpc.SessionServiceAsyncStub
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        started = time.perf_counter()
        call = stub.Subscribe(api.SubscribeRequest(session_id=session_id), timeout=120)
        async for response in call:
            for event in response.events:
                reader.read(event)
            if reader.count >= count:
                return time.perf_counter() - started
    raise AssertionError(f"the stream ended after {reader.count} events")


async def one(target: str, count: int) -> float:
    """Read one gRPC message per event."""
    reader = Reader()
    async with grpc.aio.insecure_channel(target) as channel:
        await channel.channel_ready()
        call: grpc.aio.UnaryStreamMultiCallable[bytes, event_pb2.Event]
        call = channel.unary_stream(METHOD, None, event_pb2.Event.FromString)
        started = time.perf_counter()
        async for event in call(b""):
            reader.read(event)
        assert reader.count == count
        return time.perf_counter() - started


async def sse(port: str, count: int) -> float:
    """Read JSON over SSE."""
    read = letters = 0
    async with aiohttp.ClientSession(read_bufsize=1 << 20) as session:
        started = time.perf_counter()
        async with session.get(f"http://127.0.0.1:{port}/events") as response:
            async for line in response.content:
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    read += 1
                    assert int(event["seq"]) == read
                    if "assistantText" in event:
                        letters += len(event["assistantText"]["delta"])
        assert read == count
        return time.perf_counter() - started


if __name__ == "__main__":
    kind, *arguments, total = sys.argv[1:]
    if kind == "subscribe":
        print(asyncio.run(subscribe(arguments[0], arguments[1], int(total))))
    else:
        print(asyncio.run((one if kind == "one" else sse)(arguments[0], int(total))))
