"""A recording subscriber: `python -m tests.chaos.watcher TARGET SESSION FILE WAY SEED`.

It records what comes and checks nothing itself. WAY says how it behaves: `follow` resumes where it was,
`cut` leaves at random moments and resumes there, `wander` resumes at random seqs, `stall` reads slowly.
It may be killed at any moment and started again with the same FILE. A line on stdin with a seq tells it
where to stop: it leaves once it has that event. A TOKEN in the environment goes with its calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from pathlib import Path

import grpc

from sessiond.v1 import session_service_pb2 as api
from sessiond.v1 import session_service_pb2_grpc
from tests.chaos import record
from tests.support.session import Failure

WAYS = ("follow", "cut", "wander", "stall")
_PAUSE = 0.1
_SILENCE = 40.0
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]


class Watcher:
    """One client of one session."""

    def __init__(self, session_id: str, file: Path, way: str, seed: str) -> None:
        self.session_id = session_id
        self.way = way
        kept = record.read(file, "", session_id)
        self.position = max((seq for stream in kept.streams for seq in stream.seqs), default=0)
        # Another start is another part of the same random walk.
        self.random = random.Random(f"{seed}/{len(kept.streams)}")
        self.writer = record.Writer(file)
        self.goal: int | None = None
        self.goal_known = asyncio.Event()

    async def watch(self, target: str) -> None:
        """Subscribe again and again until the goal is reached or the session is deleted."""
        token = os.environ.get("TOKEN", "")
        metadata = [("authorization", f"Bearer {token}")] if token else []
        async with grpc.aio.insecure_channel(target, options=_OPTIONS) as channel:
            stub: session_service_pb2_grpc.SessionServiceAsyncStub
            stub = session_service_pb2_grpc.SessionServiceStub(channel)
            while True:
                after_seq = self._start()
                self.writer.opened(after_seq)
                request = api.SubscribeRequest(session_id=self.session_id, after_seq=after_seq)
                call = stub.Subscribe(request, metadata=metadata)
                end = await self._read(call)
                self.writer.ended(end)
                call.cancel()
                if end in (record.DELETED, record.COMPLETE):
                    return
                await asyncio.sleep(_PAUSE * self.random.uniform(0.5, 2.0))

    def _done(self) -> bool:
        return self.goal is not None and self.position >= self.goal

    def _start(self) -> int:
        if self.way == "wander" and self.goal is None:
            return self.random.randint(0, self.position)
        return self.position

    async def _read(
        self, call: grpc.aio.UnaryStreamCall[api.SubscribeRequest, api.SubscribeResponse]
    ) -> str:
        leaves = self.random.uniform(0.0, 1.5) if self.way in ("cut", "wander") else _SILENCE
        deadline = asyncio.get_running_loop().time() + leaves
        try:
            heard = False
            while not (heard and self._done()):
                limit = _SILENCE if self.goal is not None else max(0.0, deadline - _now())
                async with asyncio.timeout(limit):
                    response = await call.read()
                if not isinstance(response, api.SubscribeResponse):
                    return record.DELETED
                self.writer.got(response)
                heard = True
                for event in response.events:
                    self.position = max(self.position, event.seq)
                if self.way == "stall" and self.goal is None:
                    await self._stall()
                if self.way in ("follow", "stall"):
                    deadline = _now() + _SILENCE
        except TimeoutError:
            return record.LEFT if leaves < _SILENCE and self.goal is None else record.SILENT
        except grpc.aio.AioRpcError as error:
            return Failure(error).reason or error.code().name
        return record.COMPLETE

    async def _stall(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.random.uniform(0.0, 0.5)):
                await self.goal_known.wait()

    async def hear(self) -> None:
        """Wait for the goal on stdin."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        line = await reader.readline()
        if line:
            self.goal = int(line)
            self.goal_known.set()


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _main(target: str, session_id: str, file: str, way: str, seed: str) -> None:
    watcher = Watcher(session_id, Path(file), way, seed)
    watching = asyncio.create_task(watcher.watch(target))
    await watcher.hear()
    await watching


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
