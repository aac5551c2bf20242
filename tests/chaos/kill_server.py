"""The daemon is killed again and again while agents stream and clients send; nothing may be missed.

`python -m tests.chaos.kill_server [--kills N] [--sessions N] [--watchers N] [--seed N]`. Every decision
comes from the seed. The last line is one JSON object; the exit code is 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
from collections.abc import Sequence

from tests.chaos.checkers import Violation, count
from tests.chaos.sessions import Attacked, Findings, ways
from tests.support.daemon import Daemon

_SHOWN = 40
# Seconds that a daemon lives after it serves; and, for one in five, after it was started at all.
_LIFE = (0.05, 1.5)
_BIRTH = (0.0, 1.0)


_SETTINGS = {"heartbeat_interval": "1.0", "log.level": '"warning"'}


async def attack(
    kills: int,
    sessions: int,
    watchers: int,
    seed: int,
    kind: type[Daemon] = Daemon,
    patience: float = 120.0,
) -> list[Findings]:
    """Run the attack; return what each session's comparison found.

    What is not done `patience` seconds after the last kill is stuck.
    """
    async with kind(settings=_SETTINGS) as daemon, daemon.channel() as channel:
        attacked = [
            Attacked(daemon, channel, f"s{number}", str(seed), patience) for number in range(sessions)
        ]
        try:
            for session in attacked:
                await session.create()
                for way in ways(watchers):
                    await session.watchers.add(way, daemon.unix, daemon.env)
            over = asyncio.Event()
            senders = [asyncio.create_task(session.send_until(over, 0.3)) for session in attacked]
            await _kill(daemon, kills, random.Random(f"{seed}/killer"))
            over.set()
            await asyncio.gather(*senders)
            stuck = await asyncio.gather(*(session.settle() for session in attacked))
            findings = [await session.findings() for session in attacked]
            for found, text in zip(findings, stuck, strict=True):
                found.stuck += [text] if text else []
            return findings
        finally:
            for session in attacked:
                await session.close()


async def _kill(daemon: Daemon, kills: int, rng: random.Random) -> None:
    for number in range(1, kills + 1):
        await asyncio.sleep(rng.uniform(*_LIFE))
        await daemon.kill()
        if rng.random() < 0.2:
            await _stillbirth(daemon, rng.uniform(*_BIRTH))
        await daemon.start()
        print(f"kill {number} of {kills}", flush=True)


async def _stillbirth(daemon: Daemon, after: float) -> None:
    """Kill it once more while it starts; not counted, for it may not have come far."""
    starting = asyncio.create_task(daemon.start())
    await asyncio.sleep(after)
    await daemon.kill()
    with contextlib.suppress(RuntimeError):
        await starting


def report(kills: int, findings: Sequence[Findings]) -> bool:
    """Print what was compared and found, the last line as JSON; return whether all was well."""
    of_events = [violation for found in findings for violation in found.of_events]
    of_inputs = [violation for found in findings for violation in found.of_inputs]
    stuck = [text for found in findings for text in found.stuck]
    for violation in [*of_events, *of_inputs][:_SHOWN]:
        print(violation)
    for text in stuck:
        print(f"stuck: {text}")
    streams, seen = sum(found.streams for found in findings), sum(found.seen for found in findings)
    print(f"compared {seen} events of {streams} streams with {len(findings)} transcripts")
    print(json.dumps(_line(kills, findings, of_events, of_inputs)), flush=True)
    return not (of_events or of_inputs or stuck)


def _line(
    kills: int,
    findings: Sequence[Findings],
    of_events: Sequence[Violation],
    of_inputs: Sequence[Violation],
) -> dict[str, int]:
    inputs, effects = count(of_inputs), count(of_events)
    return {
        "kills": kills,
        "events": sum(found.events for found in findings),
        "lost": effects["lost"],
        "doubled": effects["doubled"],
        "reordered": effects["reordered"],
        "inputs": sum(found.inputs for found in findings),
        "inputs_lost": inputs["lost"],
        # An input that came at another place than it should is one there and none here.
        "inputs_doubled": inputs["doubled"] + inputs["reordered"],
    }


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--watchers", type=int, default=4, help="for each session")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    findings = asyncio.run(attack(options.kills, options.sessions, options.watchers, options.seed))
    return 0 if report(options.kills, findings) else 1


if __name__ == "__main__":
    sys.exit(_main())
