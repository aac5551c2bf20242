"""Who dies, freezes or is cut off, and when: decided by a seed, carried out on a running daemon."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.chaos import processes
from tests.chaos.sessions import Attacked
from tests.support.daemon import Daemon
from tests.support.disk import fill

__all__ = ["Faults"]

_KILLS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)


class Faults:
    """Causes one fault after the other until told to stop; counts what was killed.

    `disk` is the mount point of a file system that may be filled, None when there is none.
    """

    def __init__(
        self, daemon: Daemon, sessions: Sequence[Attacked], disk: Path | None, seed: str
    ) -> None:
        self.kills = 0
        self.counts: dict[str, int] = {}
        self._daemon = daemon
        self._sessions = sessions
        self._disk = disk
        self._random = random.Random(f"{seed}/faults")
        self._frozen: set[asyncio.Task[None]] = set()
        self._weights: dict[Callable[[], Awaitable[None]], int] = {
            self._kill_watcher: 30,
            self._freeze_watcher: 5,
            self._kill_agent: 14,
            self._kill_shim: 10,
            self._kill_daemon: 20,
            self._stop_daemon: 4,
            self._freeze_agent: 5,
            self._freeze_shim: 5,
            self._freeze_daemon: 4,
            self._fill_disk: 2 if disk else 0,
        }

    async def run(self, over: asyncio.Event, pause: float) -> None:
        """Cause faults, about `pause` seconds apart."""
        while not over.is_set():
            await asyncio.sleep(self._random.expovariate(1 / pause))
            (fault,) = self._random.choices(list(self._weights), list(self._weights.values()))
            name = fault.__name__.removeprefix("_")
            self.counts[name] = self.counts.get(name, 0) + 1
            await fault()

    async def calm(self) -> None:
        """Wait until everything that was frozen goes on."""
        await asyncio.gather(*self._frozen)

    # --- one each ---

    async def _kill_watcher(self) -> None:
        watchers = self._random.choice(self._sessions).watchers
        self.kills += await watchers.kill(self._random, self._random.choice(_KILLS))

    async def _freeze_watcher(self) -> None:
        self._freeze(self._random.choice(self._sessions).watchers.pids(), 8.0)

    async def _kill_agent(self) -> None:
        self._signal(processes.agents(self._daemon.data_dir), self._random.choice(_KILLS))

    async def _kill_shim(self) -> None:
        self._signal(processes.shims(self._daemon.data_dir), self._random.choice(_KILLS))

    async def _kill_daemon(self) -> None:
        self.kills += 1
        await self._daemon.kill()
        await asyncio.sleep(self._random.choice([0.0, 0.0, self._random.uniform(0.0, 3.0)]))
        await self._daemon.start()

    async def _stop_daemon(self) -> None:
        self.kills += 1
        await self._daemon.stop()
        await self._daemon.start()

    async def _freeze_agent(self) -> None:
        self._freeze(processes.agents(self._daemon.data_dir), 3.0)

    async def _freeze_shim(self) -> None:
        # Sometimes for so long that it is given up and found again.
        self._freeze(processes.shims(self._daemon.data_dir), self._random.choice([2.0, 2.0, 2.0, 25.0]))

    async def _freeze_daemon(self) -> None:
        self._freeze([self._daemon.pid], 3.0)
        await self.calm()

    async def _fill_disk(self) -> None:
        assert self._disk is not None
        filler = fill(self._disk)
        await asyncio.sleep(self._random.uniform(0.2, 4.0))
        filler.unlink()

    def _signal(self, pids: Sequence[int], number: signal.Signals) -> None:
        if pids:
            handle = _handle(self._random.choice(sorted(pids)))
            if handle is not None:
                self.kills += handle.signal(number)
                handle.close()

    def _freeze(self, pids: Sequence[int], longest: float) -> None:
        handle = _handle(self._random.choice(sorted(pids))) if pids else None
        if handle is not None:
            handle.signal(signal.SIGSTOP)
            task = asyncio.create_task(_thaw(handle, self._random.uniform(0.1, longest)))
            self._frozen.add(task)
            task.add_done_callback(self._frozen.discard)


def _handle(pid: int) -> processes.Handle | None:
    try:
        return processes.Handle(pid)
    except OSError:
        return None


async def _thaw(handle: processes.Handle, after: float) -> None:
    try:
        await asyncio.sleep(after)
    finally:
        handle.signal(signal.SIGCONT)
        handle.close()
