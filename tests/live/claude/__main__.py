"""Run the real Claude Code through the whole stack: `python -m tests.live.claude --version 2.1.332`.

Installs that version from npm on first use. `--scenario NAME` (repeat for several) runs only those. Each
scenario prints a line; the last line is `{"scenarios":N,"passed":N}`, and the exit code is 0 when all
passed. `--observe` notes for `tests.golden.support` in how many scenarios each kind of event was seen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.live.claude.registry import SCENARIOS, Scenario
from tests.live.claude.rig import Rig
from tests.live.claude.scenarios import ALL
from tests.live.npm import CLAUDE_VERSIONS

_TIMEOUT = 120.0
OBSERVED = Path(__file__).parents[1] / "observed"


async def passes(rig: Rig, name: str, run: Scenario) -> bool:
    """Run a scenario within a bound and say how it went."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(_TIMEOUT):
            await run(rig)
    except Exception:  # noqa: BLE001 - whatever goes wrong in one scenario, the others run
        print(traceback.format_exc())
        print(f"FAILED {name} ({time.monotonic() - began:.1f} s)", flush=True)
        return False
    print(f"passed {name} ({time.monotonic() - began:.1f} s)", flush=True)
    return True


async def run_all(version: str, names: list[str]) -> tuple[int, Counter[str]]:
    """Return how many scenarios passed, and in how many each kind of event was seen."""
    passed, events = 0, Counter[str]()
    async with Rig(version) as rig:
        for name in names:
            rig.seen.clear()
            passed += await passes(rig, name, SCENARIOS[name])
            events.update({event.WhichOneof("body") or "" for event in rig.seen})
    return passed, events


def note(version: str, scenarios: int, events: Counter[str]) -> None:
    """Write down what was seen."""
    observed = {"driver": "claude", "version": version, "scenarios": scenarios}
    text = json.dumps(observed | {"events": dict(sorted(events.items()))}, indent=1)
    OBSERVED.mkdir(exist_ok=True)
    (OBSERVED / f"claude-{version}.json").write_text(f"{text}\n")


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="Run the real Claude Code through the whole stack.")
    parser.add_argument("--version", required=True, choices=CLAUDE_VERSIONS)
    parser.add_argument("--scenario", action="append", choices=ALL, help="only this one (repeatable)")
    parser.add_argument("--observe", action="store_true", help="write down which events were seen")
    options = parser.parse_args()
    names = options.scenario or ALL
    scenarios = len(names)
    passed, events = asyncio.run(run_all(options.version, names))
    if options.observe and passed == scenarios:
        note(options.version, scenarios, events)
    print(json.dumps({"scenarios": scenarios, "passed": passed}, separators=(",", ":")))
    return 0 if passed == scenarios else 1


if __name__ == "__main__":
    sys.exit(main())
