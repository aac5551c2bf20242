"""What a shim left in its run's folder, read without it: raw log, exit status, stderr."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from . import program

_PAUSE_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Exited:
    """The agent ended: with an exit code, or by a signal (the other is None).

    `size` is the whole length of the raw log in bytes: nothing comes after it.
    """

    exit_code: int | None
    signal: int | None
    size: int


def is_alive(directory: Path, run: int | None = None) -> bool:
    """Whether a session's shim lives (that of one run, if given), by the lock in the directory.

    The lock is the only truth about that. A shim whose agent has ended counts as alive until its exit
    was collected or its linger time is over.
    """
    try:
        fd = os.open(directory / program.LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        # Shared: two tests at the same time must not take each other for a shim.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0)
        return run is None or not holder or holder == str(run).encode()
    finally:
        os.close(fd)
    return False


def was_started(directory: Path, run: int) -> bool:
    """Whether a run ever had an agent, as far as its files tell."""
    return (directory / program.run_name(run) / program.STATE_NAME).exists()


def is_kept(directory: Path, run: int) -> bool:
    """Whether there are files of a run, which `discard` would remove."""
    return (directory / program.run_name(run)).exists()


async def wait_gone(directory: Path, timeout: float = 5.0) -> bool:
    """Waits until no shim lives in a directory, as after `collected`; False after `timeout` seconds."""
    deadline = asyncio.get_running_loop().time() + timeout
    # A lock that others hold can be asked about, but nothing tells when it comes free.
    while is_alive(directory):
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(_PAUSE_SECONDS)
    return True


def raw_size(directory: Path, run: int) -> int:
    """Length in bytes of a run's raw log, counted from the agent's first byte; 0 when there is none."""
    segments = _segments(directory, run)
    if not segments:
        return 0
    base, path = segments[-1]
    return base + path.stat().st_size


def read_rest(directory: Path, run: int, offset: int, limit: int) -> bytes:
    """Up to `limit` bytes of a run's raw log from `offset` on; empty at its end.

    Raises ValueError when the log doesn't hold that offset: it is beyond the end, or was let go of as
    committed.
    """
    segments = _segments(directory, run)
    end = raw_size(directory, run)
    if offset > end or (segments and offset < segments[0][0]) or offset < 0:
        first = segments[0][0] if segments else 0
        raise ValueError(f"offset {offset} of run {run} is not in its raw log ({first} to {end})")
    parts: list[bytes] = []
    for index, (base, path) in enumerate(segments):
        following = segments[index + 1][0] if index + 1 < len(segments) else end
        while base <= offset < following and limit > 0:
            with path.open("rb") as file:
                file.seek(offset - base)
                part = file.read(min(limit, following - offset))
            if not part:
                raise ValueError(f"the raw log of run {run} has a hole at {offset}")
            parts.append(part)
            offset += len(part)
            limit -= len(part)
    return b"".join(parts)


def read_exit(directory: Path, run: int) -> Exited | None:
    """How the agent of a run ended; None when its shim didn't live to write that down."""
    path = directory / program.run_name(run) / program.EXIT_NAME
    try:
        content = json.loads(path.read_bytes())
        return Exited(content["exit_code"], content["signal"], content["size"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        # A power cut can leave an empty file under the right name.
        return None


def stderr_tail(directory: Path, run: int, limit: int = 4096) -> str:
    """The end of what the agent wrote to stderr, at most `limit` bytes, as valid text."""
    path = directory / program.run_name(run) / program.STDERR_NAME
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            return file.read(limit).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def discard(directory: Path, run: int) -> None:
    """Removes the files of a finished run; nothing when there are none.

    Raises ValueError when the run's shim is alive, as its agent would lose its log.
    """
    folder = directory / program.run_name(run)
    if is_alive(directory, run):
        raise ValueError(f"run {run} is still alive: collect its exit first")
    shutil.rmtree(folder, ignore_errors=True)


def _segments(directory: Path, run: int) -> list[tuple[int, Path]]:
    folder = directory / program.run_name(run)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    bases = [base for base in map(program.segment_base, names) if base is not None]
    return [(base, folder / program.segment_name(base)) for base in sorted(bases)]
