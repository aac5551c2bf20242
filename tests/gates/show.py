"""Gates of the promises that are figures: short forms of the chaos runs and the benchmarks.

The last line of each program is one JSON object. The floors here are far below what is aimed at, since a
CI machine may be busy: they catch what broke, not what got a little slower.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping

from tests.gates.base import CI, ROOT, Failed, Skipped


def _figures(*arguments: str, timeout: float = 600) -> Mapping[str, float]:
    print("$ python -m", *arguments, flush=True)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{arguments[0]}: still running after {timeout:.0f} s") from None
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise Failed(f"{arguments[0]}: exit code {done.returncode}")
    figures: Mapping[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _hold(name: str, figures: Mapping[str, float], **rules: Callable[[float], bool]) -> None:
    broken = [key for key, rule in rules.items() if not rule(figures[key])]
    if broken:
        raise Failed(f"{name}: {', '.join(f'{key} = {figures[key]}' for key in broken)}")


def _zero(value: float) -> bool:
    return value == 0


def _at_least(floor: float) -> Callable[[float], bool]:
    return lambda value: value >= floor


def chaos() -> None:
    """The daemon is killed at random moments while agents stream and clients send."""
    figures = _figures("tests.chaos.kill_server", "--kills", "5", "--seed", "1")
    clean = dict.fromkeys(("lost", "doubled", "reordered", "inputs_lost", "inputs_doubled"), _zero)
    _hold("kill_server", figures, kills=_at_least(5), events=_at_least(1), **clean)


def load() -> None:
    """Stalled readers, streams that come and go, idle streams and many sessions, in short forms."""
    readers = _figures("tests.bench.readers", "--live", "50", "--lines", "20000", "--rounds", "1")
    _hold("readers", readers, live=_at_least(50), rss_growth_mb=lambda grown: grown < 30)
    leak = _figures("tests.bench.leak", "--streams", "3000")
    _hold("leak", leak, growth_mb=lambda grown: grown < 8)
    _figures("tests.bench.idle", "--streams", "1000")
    _hold("sessions", _figures("tests.bench.sessions", "--sessions", "50"), left=_zero)


def fuzz() -> None:
    """Bytes that are made to reach as much as they can of the drivers and of the shim's socket."""
    if not CI and importlib.util.find_spec("atheris") is None:
        raise Skipped("atheris has no wheel for this machine")
    figures = _figures("tests.fuzz.run", "--seconds", "15")
    _hold("fuzz", figures, targets=_at_least(4), inputs=_at_least(1000), failed=_zero)


def benchmarks() -> None:
    """Replay against JSON over SSE and one event per message, the live path, and start-up."""
    replay = _figures("tests.bench.replay", "--events", "20000", "--rounds", "3")
    _hold("replay", replay, vs_sse=_at_least(3), vs_one_per_message=_at_least(10))
    live = _figures("tests.bench.live", "--seconds", "2", "--lines", "60000")
    _hold("live", live, ingest_lines_per_s=_at_least(5000))
    _figures("tests.bench.startup", "--sessions", "100", "--rounds", "2")
