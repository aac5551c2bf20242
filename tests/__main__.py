"""Run every gate in order: `python -m tests [--only NAME] [--skip NAME] [--keep-going] [--list]`.

Stops at the first gate that fails unless told to keep going. The last line counts the gates; the exit
code is 1 when one failed.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.gates import GATES, Failed, Gate, Skipped


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests", description="Run every gate in order.")
    names = [gate.name for gate in GATES]
    parser.add_argument("--list", action="store_true", help="name the gates and stop")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="repeatable")
    parser.add_argument("--skip", action="append", choices=names, metavar="NAME", help="repeatable")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    return parser.parse_args()


def _check(gate: Gate) -> str:
    print(f"\n=== {gate.name}: {gate.about} ===", flush=True)
    begin = time.monotonic()
    try:
        gate.check()
        outcome, why = "passed", ""
    except Skipped as skipped:
        outcome, why = "skipped", f" ({skipped})"
    except Failed as failed:
        outcome, why = "failed", f" ({failed})"
    print(f"=== {gate.name}: {outcome} in {time.monotonic() - begin:.1f} s{why} ===", flush=True)
    return outcome


def main() -> int:
    """Run the gates that were asked for and return the exit code."""
    options = _options()
    gates = [g for g in GATES if not options.only or g.name in options.only]
    gates = [g for g in gates if g.name not in (options.skip or [])]
    if options.list:
        for gate in gates:
            print(f"{gate.name:14} {gate.about}")
        return 0
    begin = time.monotonic()
    outcomes: dict[str, str] = {}
    for gate in gates:
        outcomes[gate.name] = _check(gate)
        if outcomes[gate.name] == "failed" and not options.keep_going:
            break
    print()
    for gate in gates:
        print(f"{outcomes.get(gate.name, 'not run'):8} {gate.name}")
    results = list(outcomes.values())
    print(f"in {(time.monotonic() - begin) / 60:.1f} min")
    skipped = results.count("skipped")
    print(
        f"{results.count('passed')} passed, {results.count('failed')} failed"
        + (f", {skipped} skipped" if skipped else "")
    )
    return 1 if "failed" in results else 0


if __name__ == "__main__":
    sys.exit(main())
