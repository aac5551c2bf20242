"""From bytes to lines: split on line feeds only, counting what is consumed."""

from __future__ import annotations

from sessiond.v1 import event_pb2 as ev
from sessiond_server.session.oversize import preview


class LineBuffer:
    """Collects raw output until its lines are whole.

    `offset` is the raw-log offset of the first byte that belongs to no finished line: what is committed,
    and from where the shim is asked again after a crash. Bytes before it are ignored.

    `most` is no limit on lines but the room for what is not committed: a line that outgrows it (128 MiB
    by default) is handed on in pieces.
    """

    def __init__(self, offset: int, most: int) -> None:
        self.offset = offset
        self._most = most
        self._parts: list[bytes] = []
        self._waiting = 0

    @property
    def received(self) -> int:
        """The raw-log offset after the last byte seen."""
        return self.offset + self._waiting

    def feed(self, offset: int, data: bytes) -> list[bytes]:
        """Take the bytes at `offset` and return the lines they finish, without line feeds."""
        repeated = self.received - offset
        if repeated > 0:
            data = data[repeated:]
        elif repeated < 0:
            raise ValueError(f"bytes {self.received} to {offset} of the raw log are missing")
        if not data:
            return []
        last = data.rfind(b"\n")
        if last < 0:
            self._parts.append(data)
            self._waiting += len(data)
            return self.finish() if self._waiting > self._most else []
        self._parts.append(data[:last])
        whole = b"".join(self._parts)
        lines = whole.split(b"\n")
        self.offset += len(whole) + 1
        rest = data[last + 1 :]
        self._parts = [rest] if rest else []
        self._waiting = len(rest)
        return lines

    def finish(self) -> list[bytes]:
        """Return the unfinished line as it is, if there is one."""
        rest = b"".join(self._parts)
        self.offset += len(rest)
        self._parts, self._waiting = [], 0
        return [rest] if rest else []


def unreadable(line: bytes) -> ev.Event:
    """Return the notice that keeps a line of which nobody could make anything, or not all."""
    text = preview(line.decode("utf-8", "replace"))
    notice = ev.Notice(level=ev.NOTICE_LEVEL_WARNING, text=text, native_kind="unreadable")
    return ev.Event(ignorable=True, notice=notice)
