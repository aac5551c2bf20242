"""A TCP proxy that is a bad network: it drops, delays, half-closes, truncates and swallows."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

__all__ = ["Proxy"]

_CHUNK = 16 * 1024
# What may happen to a connection, and how often; most are only slow now and then.
_FATES = {"well": 3, "drop": 3, "half": 2, "truncate": 3, "swallow": 1}
_LIFE = 4.0
_SWALLOW = 20.0


class Proxy:
    """Listens on a port of its own and carries each connection to whatever `target` says (host:port).

    Each connection has a fate from the seed: how it ends and after how long. `calm()` lets all live.
    """

    def __init__(self, target: Callable[[], str], seed: str) -> None:
        self.cuts = 0
        self.port = 0
        self._target = target
        self._random = random.Random(f"{seed}/proxy")
        self._wild = True
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
        # Aborted transports are closed in the loop's next turns.
        await asyncio.sleep(0.05)

    def calm(self) -> None:
        """From now on a good network; connections that are to end badly end now."""
        self._wild = False
        for task in list(self._tasks):
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Also when it is cancelled before it has begun.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fate, life = "well", 1e9
        if self._wild:
            fate = self._random.choices(list(_FATES), list(_FATES.values()))[0]
            life = self._random.expovariate(1 / _LIFE) if fate != "well" else 1e9
        try:
            host, _, port = self._target().rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
        except (OSError, ValueError):
            return  # there is no daemon just now
        try:
            with contextlib.suppress(OSError):
                await self._fate(fate, life, (reader, back), (there, writer))
        finally:
            back.transport.abort()

    async def _fate(
        self,
        fate: str,
        life: float,
        *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        valves = [_Valve() for _ in ways]
        pumps = [
            asyncio.create_task(self._pump(valve, *way)) for valve, way in zip(valves, ways, strict=True)
        ]
        try:
            done, _ = await asyncio.wait(pumps, timeout=life, return_when=asyncio.FIRST_COMPLETED)
            if done or not self._wild:
                return
            self.cuts += 1
            if fate == "half":
                # One direction ends as if all were said, the other goes on for a while.
                which = self._random.randrange(2)
                valves[which].room = 0
                await asyncio.sleep(0.1)
                ways[which][1].write_eof()
                await asyncio.sleep(self._random.uniform(0.0, 2.0))
            elif fate == "truncate":
                for valve in valves:
                    valve.room = self._random.randrange(_CHUNK)
                await asyncio.wait(pumps, timeout=1.0)
            elif fate == "swallow":
                for valve in valves:
                    valve.room, valve.ends = 0, False
                await asyncio.sleep(self._random.uniform(0.0, _SWALLOW))
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, valve: _Valve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry bytes in order: like any network, it may stop anywhere and never leaves out any."""
        while data := await reader.read(_CHUNK):
            if self._wild and self._random.random() < 0.02:
                await asyncio.sleep(self._random.uniform(0.0, 0.5))
            if valve.room is not None:
                data, valve.room = data[: valve.room], max(0, valve.room - len(data))
            if data:
                writer.write(data)
                await writer.drain()
            if valve.room == 0 and valve.ends:
                return


class _Valve:
    """How many more bytes go through (None: all), and whether the end of them is the end at all."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.ends = True
