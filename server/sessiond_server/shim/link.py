"""The server's end of a shim: starting one, connecting to one, and what goes over the connection."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import program
from .rawlog import Exited, is_alive

# What one `receive` returns at most, about, in bytes.
_BATCH_BYTES = 1 << 20
# Longer paths don't fit in a socket address (108 bytes on Linux, 104 on macOS).
_LONGEST_ADDRESS = 100
_RETRY_SECONDS = 0.01
_FAREWELL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes of the agent's stdout, cut anywhere; `offset` is the first one's place in the raw log."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Acked:
    """The shim has taken the input with this id: it will reach the agent once, whatever happens here."""

    input_id: int


@dataclass(frozen=True, slots=True)
class Paused:
    """The shim stopped reading the agent's output: too much of it is not committed, or, with `disk`,
    it can't be written."""

    reason: str
    disk: bool


@dataclass(frozen=True, slots=True)
class Resumed:
    """The shim reads the agent's output again."""


@dataclass(frozen=True, slots=True)
class OutputClosed:
    """The agent closed its stdout and lives on; comes after all its output."""


@dataclass(frozen=True, slots=True)
class InputClosed:
    """The agent closed its stdin and lives on: inputs, also acknowledged ones, did not reach it."""


Received = Output | Acked | Exited | Paused | Resumed | OutputClosed | InputClosed


@dataclass(frozen=True, slots=True)
class Hello:
    """What the shim says of itself when a connection is made.

    `base` and `size` bound the offsets that can be attached at; `last_input_id` is 0 before the first
    input; `exited` says that the agent has ended and an `Exited` will follow its output; `paused` is the
    reason why its output isn't read, or empty.
    """

    protocol: int
    run: int
    shim_pid: int
    agent_pid: int
    base: int
    size: int
    last_input_id: int
    exited: bool
    paused: str


class ShimGone(Exception):
    """Nobody lives there: the lock is free. What is left is in the run's files."""


class ShimUnreachable(Exception):
    """The lock is held, but no shim that can be talked to answered in time."""


class LinkLost(Exception):
    """The connection broke. `Link.connect` tells what became of the shim."""


def supports(protocol: int) -> bool:
    """Whether this server can talk to a shim that speaks `protocol`: its own, or the one before."""
    return max(program.OLDEST_PROTOCOL, program.PROTOCOL - 1) <= protocol <= program.PROTOCOL


class Link:
    """One connection to a living shim. Made with `connect`; not shared between tasks that receive."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._inbox = bytearray()
        self._payload_left = 0
        self._offset = 0
        self._hello: Hello | None = None
        self._outbox: deque[memoryview] = deque()
        self._writing = False
        self._lost = ""
        self._deaf = False
        self._emptied: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._heard = time.monotonic()

    @classmethod
    async def connect(cls, directory: Path, run: int, timeout: float = 5.0) -> Link:
        """Connects to the shim of a run and waits for its hello, both within `timeout` seconds.

        Raises ShimGone when no shim lives there, and ShimUnreachable when one does but doesn't answer,
        is another run's, or speaks a protocol this server doesn't know.
        """
        try:
            async with asyncio.timeout(timeout):
                link = cls(await _open(directory, run))
                try:
                    await link._greet(run)
                except BaseException:
                    await link.close()
                    raise
                return link
        except TimeoutError:
            if not is_alive(directory, run):
                raise ShimGone(f"no shim of run {run} lives in {directory.name}") from None
            raise ShimUnreachable(f"the shim did not answer within {timeout:g} seconds") from None
        except LinkLost as error:
            if not is_alive(directory, run):
                raise ShimGone(f"no shim of run {run} lives in {directory.name}") from None
            raise ShimUnreachable(f"the shim hung up: {error}") from None

    @property
    def hello(self) -> Hello:
        """What the shim said when the connection was made."""
        if self._hello is None:
            raise RuntimeError("a link is made with connect()")
        return self._hello

    @property
    def heard(self) -> float:
        """When something of the shim was last read, by `time.monotonic`; a `ping` is always answered."""
        return self._heard

    async def attach(self, offset: int) -> None:
        """Asks for the output from this offset of the raw log on, and for all notices. Once per link.

        Raises ValueError when the raw log doesn't hold the offset.
        """
        if not self.hello.base <= offset <= self.hello.size:
            span = f"{self.hello.base} to {self.hello.size}"
            raise ValueError(f"offset {offset} is not in the raw log ({span})")
        self._send({"kind": "attach", "offset": offset})

    async def receive(self) -> list[Received]:
        """Waits for something and returns all that is here, at least one, about 1 MiB at most.

        Outputs that follow each other come joined, and each byte comes once. While nobody receives,
        nothing is read and nothing grows. May be cancelled at any time without losing anything.
        Raises LinkLost when the connection broke, after all that came before.
        """
        # Lets others run even when there is always more to read.
        await asyncio.sleep(0)
        while True:
            received = self._collect()
            if received:
                return received
            if self._lost:
                raise LinkLost(self._lost)
            await self._readable()

    def send_input(self, input_id: int, data: bytes) -> None:
        """Sends bytes for the agent's stdin. Ids start at 1 and grow; one taken before is dropped.

        Confirmed by Acked. Raises ValueError when the data is over 64 MiB.
        """
        if len(data) > program.MAX_INPUT_BYTES:
            raise ValueError(
                f"an input has at most {program.MAX_INPUT_BYTES} bytes, this one {len(data)}"
            )
        self._send({"kind": "input", "id": input_id, "len": len(data)}, data)

    def close_stdin(self, input_id: int) -> None:
        """Closes the agent's stdin after all input before; has an id like an input, and its Acked."""
        self._send({"kind": "close_stdin", "id": input_id})

    def signal(self, signum: int) -> None:
        """Signals the agent's process group; nothing when the agent has ended."""
        self._send({"kind": "signal", "signal": int(signum)})

    def kill(self) -> None:
        """Kills the agent and every process that came from it, also those that an ended one left."""
        self._send({"kind": "kill"})

    def committed(self, offset: int) -> None:
        """Says that the output below this offset is recorded: the shim may let go of it."""
        self._send({"kind": "committed", "offset": offset})

    def collected(self) -> None:
        """Says that the exit is recorded: the shim ends. Nothing while the agent lives."""
        self._send({"kind": "collected"})

    def ping(self) -> None:
        """Asks for a sign of life, seen in `heard` by whoever receives."""
        self._send({"kind": "ping"})

    async def close(self) -> None:
        """Ends the connection, when what was sent has gone out (or a second is over)."""
        try:
            if self._writing:
                self._emptied = self._loop.create_future()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_FAREWELL_SECONDS):
                        await self._emptied
        finally:
            self._lose("the link was closed")
            if self._waiter is not None:
                _resolve(self._waiter)
            if self._sock.fileno() >= 0:
                self._loop.remove_reader(self._sock)
                self._sock.close()

    async def _greet(self, run: int) -> None:
        while self._hello is None:
            self._collect()
            if self._hello is None:
                if self._lost:
                    raise LinkLost(self._lost)
                await self._readable()
        if not supports(self._hello.protocol):
            raise ShimUnreachable(
                f"the agent works on under a shim of protocol {self._hello.protocol}, and this daemon "
                f"speaks protocol {program.PROTOCOL}: run the version of sessiond that started it, "
                "or stop the session and restart it"
            )
        if self._hello.run != run:
            raise ShimUnreachable(f"the shim there is of run {self._hello.run}, not {run}")

    async def _readable(self) -> None:
        """Only waits: reading happens later and at once, so that a cancelled wait loses no byte."""
        self._waiter = self._loop.create_future()
        self._loop.add_reader(self._sock, _resolve, self._waiter)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._sock.fileno() >= 0:
                self._loop.remove_reader(self._sock)

    def _collect(self) -> list[Received]:
        """Reads what is here, up to a batch."""
        batch = _Batch()
        while batch.size < _BATCH_BYTES and self._sock.fileno() >= 0:
            try:
                data = self._sock.recv(program.CHUNK_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._lose(str(error))
                break
            if not data:
                self._lose("the shim closed the connection")
                break
            self._heard = time.monotonic()
            try:
                self._parse(data, batch)
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                self._lose(f"the shim sent what can't be understood: {error}")
                break
        return batch.finish()

    def _parse(self, data: bytes, batch: _Batch) -> None:
        at = 0
        while at < len(data):
            if self._payload_left:
                part = data[at : at + self._payload_left]
                batch.output(self._offset, part)
                at += len(part)
                self._offset += len(part)
                self._payload_left -= len(part)
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._inbox += data[at:]
                if len(self._inbox) > program.MAX_HEADER_BYTES:
                    raise ValueError("a header without an end")
                return
            header = json.loads(self._inbox + data[at:end])
            self._inbox.clear()
            at = end + 1
            self._take(header, batch)

    def _take(self, header: dict[str, Any], batch: _Batch) -> None:
        kind = header["kind"]
        if kind == "out":
            self._offset, self._payload_left = int(header["offset"]), int(header["len"])
            if self._payload_left < 0:
                raise ValueError("an output of negative length")
        elif "len" in header:
            raise ValueError(f"a {kind!r} with content")
        elif kind == "hello":
            self._hello = Hello(
                **{name: header[name] for name in Hello.__slots__ if name != "exited"},
                exited=header["exit"] is not None,
            )
        elif kind == "exit":
            batch.add(Exited(header["exit_code"], header["signal"], header["size"]))
        elif kind in _NOTICES:
            batch.add(_NOTICES[kind](header))

    def _send(self, header: program.Header, payload: bytes = b"") -> None:
        """Sends at once what goes, the rest when there is room; on a broken link nothing."""
        if self._lost or self._deaf:
            return
        self._outbox.append(memoryview(program.encode(header)))
        if payload:
            self._outbox.append(memoryview(payload))
        if not self._writing:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                rest = self._outbox[0][self._sock.send(self._outbox[0]) :]
                if rest:
                    self._outbox[0] = rest
                else:
                    self._outbox.popleft()
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._sock, self._flush)
            return
        except OSError:
            # Not lost yet for the reader: what the shim sent before may still be read.
            self._deaf = True
            self._outbox.clear()
        self._stop_writing()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock)
        if self._emptied is not None:
            _resolve(self._emptied)

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._outbox.clear()
        self._stop_writing()


_NOTICES: dict[str, Callable[[dict[str, Any]], Received]] = {
    "ack": lambda header: Acked(int(header["id"])),
    "paused": lambda header: Paused(str(header["reason"]), bool(header.get("disk", True))),
    "resumed": lambda header: Resumed(),
    "eof": lambda header: OutputClosed(),
    "deaf": lambda header: InputClosed(),
}


class _Batch:
    """What one `receive` returns, in order, with outputs that follow each other joined."""

    def __init__(self) -> None:
        self.size = 0
        self._received: list[Received] = []
        self._parts: list[bytes] = []
        self._offset = 0
        self._end = 0

    def output(self, offset: int, data: bytes) -> None:
        if self._parts and offset != self._end:
            self._join()
        if not self._parts:
            self._offset = offset
        self._parts.append(data)
        self._end = offset + len(data)
        self.size += len(data)

    def add(self, received: Received) -> None:
        self._join()
        self._received.append(received)

    def finish(self) -> list[Received]:
        self._join()
        return self._received

    def _join(self) -> None:
        if self._parts:
            self._received.append(Output(self._offset, b"".join(self._parts)))
            self._parts = []


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _open(directory: Path, run: int) -> socket.socket:
    """A connected socket; tries on while the shim's lock is held, as it may be just starting."""
    path = directory / program.run_name(run) / program.SOCKET_NAME
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            _connect(sock, path)
        except OSError as error:
            sock.close()
            if not isinstance(error, BlockingIOError) and not is_alive(directory, run):
                raise ShimGone(f"no shim of run {run} lives in {directory.name}") from None
        except BaseException:
            sock.close()
            raise
        else:
            return sock
        await asyncio.sleep(_RETRY_SECONDS)


def _connect(sock: socket.socket, path: Path) -> None:
    """Connecting to a unix socket never waits: it is done, or refused as the queue is full."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        sock.connect(os.fspath(path))
        return
    with tempfile.TemporaryDirectory(prefix="sessiond-") as folder:
        short = Path(folder) / "run"
        short.symlink_to(path.parent.resolve())
        sock.connect(os.fspath(short / path.name))
