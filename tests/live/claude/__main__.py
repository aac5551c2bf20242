"""Run the real Claude Code through the whole stack: `python -m tests.live.claude --version 2.1.332`.

Installs that version from npm on first use. `--scenario NAME` (repeat for several) runs only those. Each
scenario prints a line; the last line is `{"scenarios":N,"passed":N}`, and the exit code is 0 when all
passed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import traceback

from tests.live.claude.registry import SCENARIOS, Scenario
from tests.live.claude.rig import Rig
from tests.live.claude.scenarios import ALL
from tests.live.npm import CLAUDE_VERSIONS

_TIMEOUT = 120.0


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


async def run_all(version: str, names: list[str]) -> tuple[int, int]:
    """Return how many scenarios ran and how many passed."""
    async with Rig(version) as rig:
        results = [await passes(rig, name, SCENARIOS[name]) for name in names]
    return len(results), sum(results)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="Run the real Claude Code through the whole stack.")
    parser.add_argument("--version", required=True, choices=CLAUDE_VERSIONS)
    parser.add_argument("--scenario", action="append", choices=ALL, help="only this one (repeatable)")
    options = parser.parse_args()
    scenarios, passed = asyncio.run(run_all(options.version, options.scenario or ALL))
    print(json.dumps({"scenarios": scenarios, "passed": passed}, separators=(",", ":")))
    return 0 if passed == scenarios else 1


if __name__ == "__main__":
    sys.exit(main())
