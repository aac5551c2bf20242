"""A small disk of its own, which can be filled without hurting anybody."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = ["fill", "no_file_over", "small_disk"]


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[bool]:
    """Make the folder `path` (0700) and mount a file system in memory there; False where that can't be.

    Mounting needs root. What still has files open there keeps them till it ends.
    """
    path.mkdir(mode=0o700)
    options = f"size={megabytes}m,mode=700"
    command = ["mount", "-t", "tmpfs", "-o", options, "sessiond-test", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room there is, though others write meanwhile; remove the returned file to end it."""
    filler = folder / "filler"
    with filler.open("wb") as file:
        taken = 0
        for _ in range(10):
            free = os.statvfs(folder)
            room = max(1, free.f_bavail * free.f_frsize)
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), taken, room)
                taken += room
    return filler


@contextlib.contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """Let no file of this process grow over `size` bytes: the kernel refuses, as it does with a quota.

    Not for longer than one call: what pytest prints may go to a file too.
    """
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
