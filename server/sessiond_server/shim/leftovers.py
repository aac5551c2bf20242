"""Processes that came from an agent and outlived its shim (Linux only: they are found through /proc)."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from . import program

_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process with a session's marker and no shim; its `start_time` tells a reused pid apart."""

    session_id: str
    pid: int
    start_time: int
    command: str


def find_leftovers(session_id: str | None = None) -> list[Leftover]:
    """This user's processes that were started by an agent whose shim is gone, of one session or all.

    An agent that ends by itself may leave some on purpose (a development server it started).
    """
    return [found for pid in program.processes() if (found := _examine(pid, session_id))]


async def kill_leftovers(session_id: str, timeout: float = 5.0) -> list[Leftover]:
    """Kills a session's leftovers, and returns those that are still there after `timeout` seconds."""
    deadline = asyncio.get_running_loop().time() + timeout
    while left := find_leftovers(session_id):
        for leftover in left:
            _kill(leftover)
        if asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(_PAUSE_SECONDS)
    return left


def _kill(leftover: Leftover) -> None:
    try:
        handle = os.pidfd_open(leftover.pid)
    except OSError:
        return
    try:
        # Only now the pid can't change hands: is it still the process that was found?
        if program.start_time(leftover.pid) == leftover.start_time:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)


def _examine(pid: int, session_id: str | None) -> Leftover | None:
    started = program.start_time(pid)
    marks = _environment(pid)
    session, shim = marks.get(program.SESSION_MARKER), marks.get(program.SHIM_MARKER, "")
    if session is None or (session_id is not None and session != session_id) or _is_running(shim):
        return None
    return Leftover(session, pid, started, _command(pid))


def _is_running(shim: str) -> bool:
    pid, _, started = shim.partition(".")
    return pid.isdigit() and started.isdigit() and 0 < program.start_time(int(pid)) == int(started)


def _environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty for another user's, a finished one, or none."""
    return dict(
        (name, value)
        for name, separator, value in (entry.partition("=") for entry in _read(pid, "environ"))
        if separator
    )


def _command(pid: int) -> str:
    return " ".join(_read(pid, "cmdline")).strip()


def _read(pid: int, name: str) -> list[str]:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return []
