"""A session's directory with real shims, real agents and bounded waits."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from sessiond_server.shim import (
    Exited,
    Link,
    Output,
    Received,
    ShimGone,
    ShimUnreachable,
    kill_leftovers,
    launch,
    program,
)

PATIENCE = 30.0
_T = TypeVar("_T")

# Repeats its stdin, line by line.
ECHO = (
    "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"
)


def is_dead(pid: int) -> bool:
    """Gone, or a zombie that nobody has reaped yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def peak_memory(pid: int) -> int:
    """Of a process, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_named(text: str) -> bool:
    """Whether a running process has the text in its arguments."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if text.encode() in (folder / "cmdline").read_bytes():
                return True
    return False


async def until(condition: Callable[[], bool]) -> None:
    """Looks until it holds; the test fails when it never does."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


class Stream:
    """An attached link and all that was received over it."""

    def __init__(self, link: Link, offset: int) -> None:
        self.link = link
        self.notices: list[Received] = []
        self.data = bytearray()
        self.offset = offset
        self.keep = True

    async def take(self) -> None:
        """One batch; checks that output is gapless and comes once."""
        async with asyncio.timeout(PATIENCE):
            batch = await self.link.receive()
        assert batch
        for received in batch:
            if isinstance(received, Output):
                assert received.data
                assert received.offset == self.offset
                self.offset += len(received.data)
                if self.keep:
                    self.data += received.data
            else:
                self.notices.append(received)

    async def line(self) -> bytes:
        """The next whole line, without its end."""
        while b"\n" not in self.data:
            await self.take()
        line, _, rest = bytes(self.data).partition(b"\n")
        self.data = bytearray(rest)
        return line

    async def upto(self, offset: int) -> None:
        while self.offset < offset:
            await self.take()

    async def notice(self, kind: type[_T]) -> _T:
        """The next notice of a kind; those before it are let go."""
        while True:
            while self.notices:
                notice = self.notices.pop(0)
                if isinstance(notice, kind):
                    return notice
            await self.take()


class Home:
    """One session's directory, and the links made to its shims."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._links: list[Link] = []

    async def start(
        self,
        source: str,
        run: int = 1,
        linger: float = program.LINGER_SECONDS,
        log_cap: int = program.LOG_CAP_BYTES,
        segment_bytes: int = program.SEGMENT_BYTES,
        stderr_cap: int = program.STDERR_CAP_BYTES,
    ) -> None:
        """Starts an agent that is a Python program."""
        await launch(
            self.directory,
            run,
            argv=[sys.executable, "-I", "-S", "-c", source],
            env={"PATH": os.defpath},
            cwd="/",
            linger=linger,
            log_cap=log_cap,
            segment_bytes=segment_bytes,
            stderr_cap=stderr_cap,
        )

    async def connect(self, run: int = 1, timeout: float = 5.0) -> Link:
        link = await Link.connect(self.directory, run, timeout)
        self._links.append(link)
        return link

    async def attach(self, offset: int = 0, run: int = 1) -> Stream:
        link = await self.connect(run)
        await link.attach(offset)
        return Stream(link, offset)

    async def session(
        self,
        source: str,
        log_cap: int = program.LOG_CAP_BYTES,
        segment_bytes: int = program.SEGMENT_BYTES,
    ) -> Stream:
        """Starts an agent and attaches at the beginning."""
        await self.start(source, log_cap=log_cap, segment_bytes=segment_bytes)
        return await self.attach()

    def folder(self, run: int = 1) -> Path:
        return self.directory / program.run_name(run)

    async def end(self) -> None:
        """Ends whatever a test left, stopped shims too."""
        for link in self._links:
            await link.close()
        for state in self.directory.glob("run-*/shim.json"):
            run = int(state.parent.name.removeprefix("run-"))
            with suppress(ShimGone, ShimUnreachable):
                link = await Link.connect(self.directory, run, 2.0)
                link.kill()
                await link.attach(link.hello.size)
                stream = Stream(link, link.hello.size)
                stream.keep = False
                await stream.notice(Exited)
                link.collected()
                await link.close()
        await kill_leftovers(self.directory.name)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
