"""The processes below a daemon: its shims, their agents, and whatever those started."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

__all__ = ["Handle", "agents", "below", "command", "shims"]


class Handle:
    """A process that was found; signals go to it and never to another one that has its pid since."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process has ended."""
        try:
            signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)


def below(folder: Path) -> list[int]:
    """Pids of all processes that have a path below `folder` in their arguments or environment."""
    mark = os.fsencode(folder) + b"/"
    return [pid for pid in _pids() if mark in _read(pid, "cmdline") or mark in _read(pid, "environ")]


def command(pid: int) -> str:
    """Return the command line of a process, for people."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace")[:200]


def shims(data_dir: Path) -> list[int]:
    """Pids of the shims (and their launchers) of a daemon."""
    mark = os.fsencode(data_dir) + b"/sessions/"
    return [pid for pid in _pids() if mark in _read(pid, "cmdline")]


def agents(data_dir: Path) -> list[int]:
    """Pids of what the shims started themselves."""
    parents = set(shims(data_dir))
    return [pid for pid in _pids() if _parent(pid) in parents and pid not in parents]


def _pids() -> list[int]:
    me = os.getpid()
    return [pid for name in os.listdir("/proc") if name.isdigit() and (pid := int(name)) != me]


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0
