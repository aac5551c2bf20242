"""A number that another process has by now is told apart by when that one was started."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from sessiond_server.shim import find_leftovers, kill_runs, program


@contextlib.asynccontextmanager
async def _stranger(env: Mapping[str, str] | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that has nothing to do with any shim, and its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-c", "print(flush=True); input()"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.parametrize("changed_hands", ["in this boot", "with another boot", ""])
async def test_who_has_the_number_of_a_shim_is_not_killed_for_it(
    tmp_path: Path, changed_hands: str
) -> None:
    async with _stranger() as stranger:
        started = program.start_time(stranger.pid)
        boot = "another" if changed_hands == "with another boot" else program.boot_id()
        started -= changed_hands == "in this boot"
        state: dict[str, object] = {"boot_id": boot, "session_id": uuid.uuid4().hex}
        state |= {"shim_pid": stranger.pid, "shim_start_time": started}
        folder = tmp_path / program.run_name(1)
        folder.mkdir()
        (folder / program.STATE_NAME).write_text(json.dumps(state))
        # Somebody holds the lock: a shim that does not answer, for all that can be known.
        with (tmp_path / program.LOCK_NAME).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            killing = asyncio.create_task(kill_runs(tmp_path))
            if changed_hands:
                await killing
                assert stranger.returncode is None
            else:
                async with asyncio.timeout(20):
                    assert await stranger.wait() == -9
        await killing


@pytest.mark.parametrize("lives", [True, False])
async def test_a_process_is_a_leftover_when_another_one_has_its_shims_number(lives: bool) -> None:
    session = uuid.uuid4().hex
    shim = f"{os.getpid()}.{program.start_time(os.getpid()) - (not lives)}"
    async with _stranger({program.SESSION_MARKER: session, program.SHIM_MARKER: shim}) as child:
        found = [leftover.pid for leftover in find_leftovers(session)]
        assert found == ([] if lives else [child.pid])
