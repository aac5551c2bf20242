"""A proxy that cuts connections: at a byte, at once, or all of them until told otherwise."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

__all__ = ["CuttingProxy"]

_CHUNK = 65536


class CuttingProxy:
    """Forwards a unix socket and a loopback port to a server's unix socket, and cuts in between.

    `cut_after` lists, for one connection after another, how many bytes from the server pass before it is
    cut; connections beyond the list live until `cut`. What was read and not yet passed on is lost, as on
    a real network.
    """

    def __init__(self, target: Path, cut_after: list[int]) -> None:
        self._target = target
        self._limits = list(cut_after)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self.cuts = 0

    async def start(self, unix: Path) -> int:
        """Listen on the unix socket and on a free loopback port, which is returned."""
        self._servers.append(await asyncio.start_unix_server(self._serve, path=unix))
        tcp = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._servers.append(tcp)
        port: int = tcp.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Stop listening and cut what is open."""
        for server in self._servers:
            server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut every open connection, without a word of farewell to either side."""
        for writer in self._writers:
            transport = writer.transport
            transport.abort()
        self.cuts += bool(self._writers)
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_unix_connection(str(self._target))
        except OSError:
            writer.transport.abort()
            return
        limit = self._limits.pop(0) if self._limits else None
        self._writers |= {writer, to_writer}
        up = asyncio.create_task(self._pump(reader, to_writer, None))
        down = asyncio.create_task(self._pump(to_reader, writer, limit))
        self._tasks |= {up, down}
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, to_writer):
            end.transport.abort()
            self._writers.discard(end)
        await asyncio.gather(up, down, return_exceptions=True)
        self._tasks -= {up, down}

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None
    ) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if limit is not None and passed + len(data) >= limit:
                    writer.write(data[: limit - passed])
                    await writer.drain()
                    self.cuts += 1
                    return
                passed += len(data)
                writer.write(data)
                await writer.drain()
