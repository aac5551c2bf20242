"""Any bytes, guided by what they reach: the lines of every driver, both ends of the shim's socket.

`python -m tests.fuzz.run [--seconds 15] [--seed 1] [--target NAME]`, the seconds for each target. The
last line is one JSON object; the exit code is 1 when an input broke something, which is then kept in a
file that the output names.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conformance.drivers import drivers
from tests.fuzz import MAX_INPUT

_ROOT = Path(__file__).parents[2]
# For one input; the slowest recording takes a fraction of a second, also where every branch is counted.
_HANG_SECONDS = 30
_MEMORY_MB = 2048
_START_SECONDS = 120
_TARGETS = [*(f"driver-{name}" for name in drivers()), "shim", "link"]


def _fuzz(name: str, seconds: int, seed: int) -> tuple[int, bool]:
    """Return how many inputs a target had, and whether all of them were well."""
    kept = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    corpus = kept / "corpus"
    corpus.mkdir()
    command = [
        *(sys.executable, "-m", "tests.fuzz.target", name, str(corpus)),
        *(f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={MAX_INPUT}", "-verbosity=1"),
        *(f"-timeout={_HANG_SECONDS}", f"-rss_limit_mb={_MEMORY_MB}", f"-artifact_prefix={kept}/"),
    ]
    try:
        done = subprocess.run(
            command,
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds + _HANG_SECONDS + _START_SECONDS,
        )
    except subprocess.TimeoutExpired:
        print(f"{name}: still running long after its time", flush=True)
        return 0, False
    runs = re.search(r"^Done (\d+) runs", done.stdout, re.MULTILINE)
    covered = re.findall(r" cov: (\d+)", done.stdout)
    if done.returncode or runs is None:
        print(done.stdout[-8000:])
        for file in kept.glob("*-*"):
            print(f"again: {sys.executable} -m tests.fuzz.target {name} {file}", flush=True)
        return 0, False
    shutil.rmtree(kept)
    print(f"{name:16} {runs[1]:>8} inputs, {covered[-1] if covered else 0} branches", flush=True)
    return int(runs[1]), True


def main() -> int:
    """Run the targets one after the other; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=_TARGETS, action="append")
    options = parser.parse_args()
    names = options.target or _TARGETS
    outcomes = [_fuzz(name, options.seconds, options.seed) for name in names]
    figures = {
        "targets": len(names),
        "inputs": sum(count for count, _ in outcomes),
        "failed": sum(not well for _, well in outcomes),
    }
    print(json.dumps(figures))
    return 1 if figures["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
