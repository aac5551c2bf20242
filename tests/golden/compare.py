"""Play recordings through drivers and compare with what is expected.

    python -m tests.golden.compare [--bless] [DRIVER[/VERSION][/SCENARIO]...]

A scenario is a folder `tests/golden/DRIVER/SCENARIO/` or `tests/golden/DRIVER/VERSION/SCENARIO/` with
  stdout.jsonl   what the agent said, byte for byte
  steps.jsonl    what was done to the driver, in order (see tests/conformance/steps.py); without it:
                 launch, all lines, exit code 0
  effects.jsonl  what the driver made of it: one line per effect, {"step": N, ...} where N counts the
                 expanded steps from 1 and the rest is {"emit": event as protojson, "mark"?} or
                 {"write": the line as JSON} or {"taken": id}, {"dropped": id},
                 {"settle": id, "outcome": name}, {"retract": mark}, {"attach": {...}} or
                 {"identified": {...}}

`--bless` writes effects.jsonl anew from what the driver does now: read the difference before it is
committed. Every obligation is checked on the way, also when blessing.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from sessiond.v1.session_service_pb2 import UnqueueOutcome
from sessiond_drivers.base import (
    Attach,
    Driver,
    Dropped,
    Effect,
    Emit,
    Identified,
    Retract,
    Settle,
    Taken,
    Write,
)
from tests.conformance.drivers import create
from tests.conformance.host import DriverHost
from tests.conformance.steps import play, read_lines, read_steps

__all__ = ["GOLDEN", "bless", "compare", "describe", "driver_of", "scenarios", "title_of"]

GOLDEN = Path(__file__).parent


def scenarios(under: str = "") -> list[Path]:
    """Return the folders of all recordings, or of those below `DRIVER`, `DRIVER/VERSION`..."""
    return sorted(path.parent for path in (GOLDEN / under).glob("**/stdout.jsonl"))


def driver_of(folder: Path) -> str:
    """Return the name of the driver that a recording is of."""
    return folder.relative_to(GOLDEN).parts[0]


def title_of(folder: Path) -> str:
    """Return what a recording is called, its driver included."""
    return folder.relative_to(GOLDEN).as_posix()


def describe(effect: Effect) -> dict[str, Any]:
    """Return an effect as JSON that people can read."""
    match effect:
        case Emit(event=event, mark=mark):
            return {"emit": MessageToDict(event), **({"mark": mark} if mark else {})}
        case Write(line=line):
            return {"write": _as_json(line)}
        case Taken(message_id=message_id):
            return {"taken": message_id}
        case Dropped(message_id=message_id):
            return {"dropped": message_id}
        case Settle(message_id=message_id, outcome=outcome):
            return {"settle": message_id, "outcome": UnqueueOutcome.Name(outcome)}
        case Retract(mark=mark):
            return {"retract": mark}
        case Attach():
            about = {"sha256": hashlib.sha256(effect.data).hexdigest(), "size_bytes": len(effect.data)}
            names = ("media_type", "filename", "tool_id", "parent_tool_id")
            return {"attach": {**about, **{name: getattr(effect, name) for name in names}}}
        case Identified(native_session_id=session, agent_version=version):
            return {"identified": {"native_session_id": session, "agent_version": version}}


def _as_json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line.decode("utf-8", "backslashreplace")


def actual(folder: Path, make: Callable[[], Driver] | None = None) -> list[str]:
    """Play a scenario; return the lines that effects.jsonl should have."""
    name = folder.relative_to(GOLDEN).parts[0]
    host = DriverHost(make or (lambda: create(name)))
    found: list[str] = []
    steps = read_steps(folder / "steps.jsonl")
    for number, (_, effects) in enumerate(play(host, steps, read_lines(folder / "stdout.jsonl")), 1):
        found += [
            json.dumps({"step": number, **describe(effect)}, ensure_ascii=False) for effect in effects
        ]
    return found


def compare(folder: Path) -> str:
    """Return the difference between what is expected and what the driver does; empty when none."""
    blessed = folder / "effects.jsonl"
    expected = blessed.read_text(encoding="utf-8").split("\n")[:-1] if blessed.exists() else []
    lines = difflib.unified_diff(expected, actual(folder), "expected", "actual", n=1, lineterm="")
    return "\n".join(lines)


def bless(folder: Path) -> None:
    """Write what the driver does now as what is expected."""
    text = "".join(f"{line}\n" for line in actual(folder))
    (folder / "effects.jsonl").write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Compare or bless; return 1 when something differs."""
    parser = argparse.ArgumentParser(description="Play recordings through drivers and compare.")
    parser.add_argument("--bless", action="store_true", help="take what the drivers do now as expected")
    parser.add_argument("scenario", nargs="*", help="DRIVER, DRIVER/SCENARIO... (default: all)")
    given = parser.parse_args(arguments)
    folders = [path for under in given.scenario or [""] for path in scenarios(under)]
    differing = 0
    for folder in folders:
        if given.bless:
            bless(folder)
        elif difference := compare(folder):
            differing += 1
            print(f"{title_of(folder)}:\n{difference}")
    print(f"{len(folders)} scenarios, {'blessed' if given.bless else f'{differing} differ'}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
