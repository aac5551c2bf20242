"""Everything at once: deaths, freezes, cuts, full disks, clock jumps, under clients that do everything.

`python -m tests.chaos.run [--minutes M] [--sessions N] [--watchers N] [--seed N]`. Every decision comes
from the seed, the moments do not. The last line is one JSON object; the exit code is 1 when a promise
was broken, something never came to rest, or a process was left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import meddlers, processes
from tests.chaos.checkers import count
from tests.chaos.clocks import JumpingDaemon
from tests.chaos.faults import Faults
from tests.chaos.proxy import Proxy
from tests.chaos.sessions import Attacked, Findings, ways
from tests.support.daemon import Daemon, wait_until_gone
from tests.support.disk import small_disk

_SHOWN = 60
_PATIENCE = 180.0
_ORPHANS_GONE = 15.0
_DISK_MB = 1024
_KEEP = bool(os.environ.get("CHAOS_KEEP"))
_SOCKETS = shutil.ignore_patterns("sock")
_SETTINGS = {"heartbeat_interval": "1.0", "log.level": '"warning"', "drain_grace": "1.0"}


@dataclass(slots=True)
class Outcome:
    """All that a run found."""

    findings: list[Findings] = field(default_factory=list)
    kills: int = 0
    cuts: int = 0
    stuck: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def line(self) -> dict[str, int]:
        """The last line."""
        events = count([v for found in self.findings for v in found.of_events])
        inputs = count([v for found in self.findings for v in found.of_inputs])
        return {
            "kills": self.kills,
            "cuts": self.cuts,
            "events": sum(found.events for found in self.findings),
            "lost": events["lost"],
            "doubled": events["doubled"],
            "reordered": events["reordered"],
            "inputs": sum(found.inputs for found in self.findings),
            "inputs_lost": inputs["lost"],
            "inputs_doubled": inputs["doubled"] + inputs["reordered"],
            "stuck": len(self.stuck) + sum(len(found.stuck) for found in self.findings),
            "orphans": len(self.orphans),
        }

    @property
    def well(self) -> bool:
        """Whether every promise was kept."""
        compared = ("kills", "cuts", "events", "inputs")
        return not any(number for name, number in self.line.items() if name not in compared)


async def attack(seconds: float, sessions: int, watchers: int, seed: str, pause: float) -> Outcome:
    """Run it all for so long, let everything come to rest, compare, delete, look for what is left."""
    outcome = Outcome()
    async with _place() as (daemon, disk), Proxy(lambda: daemon.tcp, seed) as proxy:
        await daemon.start()
        attacked: list[Attacked] = []
        async with contextlib.AsyncExitStack() as stack:
            for number in range(sessions):
                # Every other one has its calls go over the bad network.
                target = f"127.0.0.1:{proxy.port}" if number % 2 else daemon.unix
                channel = await stack.enter_async_context(daemon.channel(target))
                token = [("authorization", f"Bearer {daemon.token}")]
                session = Attacked(daemon, channel, f"s{number}", seed, _PATIENCE, token)
                attacked.append(session)
                stack.push_async_callback(session.close)
            faults = Faults(daemon, attacked, disk, seed)
            over = asyncio.Event()
            clients = [_clients(s, daemon, proxy, watchers, seed, over) for s in attacked]
            async with asyncio.TaskGroup() as group:
                for client in clients:
                    group.create_task(client)
                fault = group.create_task(faults.run(over, pause))
                await asyncio.sleep(seconds)
                over.set()
                await fault
                await faults.calm()
                proxy.calm()
            outcome.kills, outcome.cuts, outcome.faults = faults.kills, proxy.cuts, faults.counts
            outcome.stuck += [text for text in await asyncio.gather(*map(_rest, attacked)) if text]
            outcome.findings = [await session.findings() for session in attacked]
            await asyncio.gather(*(session.delete() for session in attacked))
        outcome.orphans = await _orphans(daemon)
    return outcome


async def _clients(
    session: Attacked, daemon: Daemon, proxy: Proxy, watchers: int, seed: str, over: asyncio.Event
) -> None:
    """Create a session and do everything to it until it is over."""
    await session.create()
    env = {**daemon.env, "TOKEN": daemon.token}
    for number, way in enumerate(ways(watchers)):
        target = daemon.unix if number % 2 else f"127.0.0.1:{proxy.port}"
        await session.watchers.add(way, target, env)
    await asyncio.gather(
        *(meddlers.meddle(act, session, seed, over, pause) for act, pause in meddlers.MEDDLERS.items())
    )


async def _rest(session: Attacked) -> str:
    """Keep its agent alive and its questions answered until it has come to rest."""
    rng = random.Random(session.session_id)
    settling = asyncio.create_task(session.settle())
    while not settling.done():
        await meddlers.revive(session, rng)
        await meddlers.answer_all(session, rng)
        await asyncio.wait((settling,), timeout=0.5)
    return settling.result()


async def _orphans(daemon: Daemon) -> list[str]:
    """Return what still runs of the sessions, all of which are deleted."""
    deadline = asyncio.get_running_loop().time() + _ORPHANS_GONE
    while True:
        left = [pid for pid in processes.below(daemon.folder) if pid != daemon.pid]
        if not left or asyncio.get_running_loop().time() > deadline:
            return [f"{pid}: {processes.command(pid)}" for pid in left]
        await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def _place() -> AsyncIterator[tuple[Daemon, Path | None]]:
    """Yield a daemon that is not started, and the small disk its data is on, if there can be one.

    With CHAOS_KEEP in the environment all its files are kept.
    """
    folder = Path(tempfile.mkdtemp(prefix="sessiond-"))
    daemon = JumpingDaemon(folder, _SETTINGS)
    try:
        with small_disk(daemon.data_dir, _DISK_MB) as mounted:
            if not mounted:
                print("no disk is filled: mounting a small one needs root")
            try:
                yield daemon, daemon.data_dir if mounted else None
            finally:
                if daemon.running:
                    await daemon.kill()
                await wait_until_gone(daemon.data_dir)
                if mounted and _KEEP:
                    shutil.copytree(daemon.data_dir, folder / "kept", ignore=_SOCKETS)
    finally:
        if _KEEP:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def report(outcome: Outcome) -> bool:
    """Print what was compared and found, the last line as JSON; return whether all was well."""
    findings = outcome.findings
    violations = [v for found in findings for v in [*found.of_events, *found.of_inputs]]
    stuck = [*outcome.stuck, *(text for found in findings for text in found.stuck)]
    _show("broken", violations)
    _show("stuck", stuck)
    _show("orphan", outcome.orphans)
    streams, seen = sum(found.streams for found in findings), sum(found.seen for found in findings)
    print("faults:", ", ".join(f"{name} {times}" for name, times in sorted(outcome.faults.items())))
    print(f"compared {seen} events of {streams} streams with {len(findings)} transcripts")
    print(json.dumps(outcome.line), flush=True)
    return outcome.well


def _show(what: str, items: Sequence[object]) -> None:
    for item in items[:_SHOWN]:
        print(f"{what}: {item}")


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--sessions", type=int, default=5)
    parser.add_argument("--watchers", type=int, default=4, help="for each session")
    parser.add_argument("--pause", type=float, default=0.5, help="mean seconds between two faults")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    running = attack(
        options.minutes * 60, options.sessions, options.watchers, str(options.seed), options.pause
    )
    return 0 if report(asyncio.run(running)) else 1


if __name__ == "__main__":
    sys.exit(_main())
