"""Starting a shim with its agent."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sessiond_server import children

from . import program


class LaunchFailed(Exception):
    """The agent could not be started; the text says why, for people."""


class AlreadyRunning(LaunchFailed):
    """The session has a living shim already."""


async def launch(
    directory: Path,
    run: int,
    *,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    session_id: str = "",
    timeout: float = 20.0,
    log_cap: int = program.LOG_CAP_BYTES,
    segment_bytes: int = program.SEGMENT_BYTES,
    stderr_cap: int = program.STDERR_CAP_BYTES,
    linger: float = program.LINGER_SECONDS,
) -> None:
    """Starts a shim with an agent, and returns when the agent runs.

    `directory` is the session's (created 0700 if absent), `run` a number this session's processes have
    not used. `env` is the agent's whole environment; `session_id` (default: the directory's name) is put
    in it as a marker. `timeout` and `linger` (how long an exit waits to be collected) are in seconds,
    `log_cap` (output that is not committed), `segment_bytes` and `stderr_cap` in bytes.

    Raises AlreadyRunning when a shim lives there, and LaunchFailed when the agent can't be started or
    didn't start in time.
    """
    if not argv:
        raise LaunchFailed("there is no program to start")
    order = {
        "argv": list(argv),
        "env": dict(env),
        "cwd": cwd,
        "session_id": session_id or directory.name,
        "log_cap": log_cap,
        "segment_bytes": segment_bytes,
        "stderr_cap": stderr_cap,
        "linger_ms": round(linger * 1000),
    }
    try:
        _make_folders(directory, run)
        code, report, complaint = await _run_launcher(
            directory, run, json.dumps(order).encode(), timeout
        )
    except OSError as error:
        raise LaunchFailed(f"the shim can't be started: {error}") from error
    if code == program.EXIT_RUNNING:
        raise AlreadyRunning("the session has a running process already")
    if code != 0:
        raise LaunchFailed(_reason(report, complaint))


def _make_folders(directory: Path, run: int) -> None:
    # One by one: the mode of `mkdir` isn't that of the parents it makes.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (directory / program.run_name(run)).mkdir(mode=0o700, exist_ok=True)


async def _run_launcher(
    directory: Path, run: int, order: bytes, timeout: float
) -> tuple[int, bytes, bytes]:
    children.watch()
    launcher = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", "-X", "utf8", program.__file__, os.fspath(directory), str(run)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={},
        start_new_session=True,
        close_fds=True,
    )
    try:
        async with asyncio.timeout(timeout):
            report, complaint = await launcher.communicate(order)
            return await launcher.wait(), report, complaint
    except TimeoutError:
        raise LaunchFailed(f"the agent did not start within {timeout:g} seconds") from None
    finally:
        if launcher.returncode is None:
            with suppress(ProcessLookupError):
                launcher.kill()
            await launcher.wait()


def _reason(report: bytes, complaint: bytes) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(report)["error"])
    lines = complaint.decode("utf-8", "replace").strip().splitlines()
    return f"the shim can't be started: {lines[-1] if lines else 'it said nothing'}"
