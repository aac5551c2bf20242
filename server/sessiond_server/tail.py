"""The live end of a transcript, shared by all its subscribers; each of them is only a position."""

from __future__ import annotations

import asyncio
from collections import deque

from sessiond_server.store import records

_MAX_BYTES = 512 * 1024


class Tail:
    """The newest events of one session in memory, and the wake-up of those who wait for more.

    It keeps events only while somebody reads; what it does not have is read from the store.
    """

    def __init__(self, head_seq: int) -> None:
        self.head_seq = head_seq
        self.closed = False
        self.readers = 0
        self._chunks: deque[tuple[int, int, bytes]] = deque()
        self._bytes = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._joined: tuple[int, int, int, bytes] | None = None

    def append(self, chunks: list[tuple[int, int, bytes]], head_seq: int) -> None:
        """Take (first seq, last seq, records) of what was committed and wake everybody."""
        self.head_seq = head_seq
        if self.readers:
            for chunk in chunks:
                self._chunks.append(chunk)
                self._bytes += len(chunk[2])
            while self._bytes > _MAX_BYTES and len(self._chunks) > 1:
                self._bytes -= len(self._chunks.popleft()[2])
        else:
            self.forget()
        self.wake()

    def catch_up(self, head_seq: int) -> None:
        """Go on at `head_seq`, with what is stored up to there."""
        if head_seq != self.head_seq:
            self.forget()
            self.head_seq = head_seq
            self.wake()

    def forget(self) -> None:
        """Drop what is kept in memory."""
        self._chunks.clear()
        self._bytes = 0
        self._joined = None

    def read(self, after_seq: int, most: int) -> tuple[bytes, int] | None:
        """Return joined records after `after_seq`, about `most` bytes, and the last seq.

        None when the memory does not reach back that far.
        """
        if not self._chunks or self._chunks[0][0] > after_seq + 1:
            return None
        joined = self._joined
        if joined is not None and joined[0] == after_seq and joined[1] == self.head_seq:
            return joined[3], joined[2]
        parts: list[bytes] = []
        size, last = 0, after_seq
        for first_seq, last_seq, data in self._chunks:
            if last_seq <= after_seq:
                continue
            part = records.skip(data, after_seq - first_seq + 1)
            if size and size + len(part) > most:
                break
            parts.append(part)
            size += len(part)
            last = last_seq
        result = parts[0] if len(parts) == 1 else b"".join(parts)
        # Live readers stand at the same place: one join serves them all.
        self._joined = (after_seq, self.head_seq, last, result)
        return result, last

    async def wait(self, after_seq: int, timeout: float) -> None:
        """Return when there is something after `after_seq`, when the tail is closed, or in time."""
        if self.head_seq > after_seq or self.closed:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait((future,), timeout=timeout)
        finally:
            self._waiting.discard(future)

    def wake(self) -> None:
        """Wake everybody who waits."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """The session is deleted, or the server goes: nothing more will come."""
        self.closed = True
        self.wake()
