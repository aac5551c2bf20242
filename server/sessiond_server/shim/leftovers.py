"""Processes that came from an agent and outlived its shim (Linux only: they are found through /proc)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import program, rawlog

_PAUSE_SECONDS = 0.02
# Without these a shim's own file does not tell it apart from whoever has its pid now.
_NEEDED = {"boot_id", "session_id", "shim_pid", "shim_start_time"}


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
            _kill(leftover.pid, leftover.start_time)
        if asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(_PAUSE_SECONDS)
    return left


async def kill_runs(directory: Path) -> None:
    """Kills the shim that lives in a session's directory, frozen or not, and all that came from it.

    The last resort: a shim that answers does it better when it is asked to `kill`.
    """
    states = list(_states(directory))
    if rawlog.is_alive(directory):
        for state in states:
            _kill(int(state["shim_pid"]), int(state["shim_start_time"]))
        await rawlog.wait_gone(directory)
    for session_id in {str(state["session_id"]) for state in states}:
        await kill_leftovers(session_id)


def is_frozen(pid: int) -> bool:
    """Whether a process stands still until it gets SIGCONT (proc(5): state T, or t under a debugger)."""
    return "".join(_read(pid, "stat")).rpartition(")")[2].strip()[:1] in ("T", "t")


def frozen_shims(directory: Path) -> list[int]:
    """The pids of shims that live in a session's directory and stand still."""
    shims = ((int(state["shim_pid"]), int(state["shim_start_time"])) for state in _states(directory))
    return [pid for pid, started in shims if program.start_time(pid) == started and is_frozen(pid)]


def _states(directory: Path) -> Iterator[dict[str, str | int]]:
    """What the shims of all runs wrote about themselves in this boot of the machine."""
    for path in directory.glob(f"{program.run_name(0)[:-1]}*/{program.STATE_NAME}"):
        with suppress(OSError, ValueError):
            state = json.loads(path.read_bytes())
            whole = isinstance(state, dict) and state.keys() >= _NEEDED
            if whole and state["boot_id"] == program.boot_id():
                yield state


def _kill(pid: int, started: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # Only now the pid can't change hands: is it still the process that was found?
        if program.start_time(pid) == started:
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
