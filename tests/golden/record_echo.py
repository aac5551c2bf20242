"""Record the echo agent anew: `python -m tests.golden.record_echo [SCENARIO...]` (default: all).

Runs each scenario of tests/conformance/echo_scenarios.py with the real agent and writes its stdout.jsonl
and steps.jsonl. Then bless: `python -m tests.golden.compare --bless echo`.
"""

from __future__ import annotations

import sys
import tempfile

from tests.conformance.drivers import create
from tests.conformance.echo_scenarios import SCENARIOS
from tests.conformance.live import LiveHost
from tests.golden.compare import GOLDEN

SEED = 7


def record(name: str) -> None:
    """Run one scenario and keep what happened."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LiveHost(lambda: create("echo", state_dir=folder, seed=SEED)) as host,
    ):
        SCENARIOS[name](host)
        host.record(GOLDEN / "echo" / name)


if __name__ == "__main__":
    for scenario in sys.argv[1:] or SCENARIOS:
        record(scenario)
        print(scenario)
