"""What each driver does with each event and each call, from what was seen of it.

    python -m tests.golden.support [--check]

Plays every recording (see `compare`) and adds what live runs of real agents noted in
`tests/live/observed/`. Writes `drivers/support.md`; `--check` compares instead and returns 1 when it
differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sessiond.v1 import event_pb2 as ev
from sessiond.v1.session_service_pb2 import UnqueueOutcome
from sessiond_drivers.base import Attach, Dropped, Effect, Emit, Retract, Settle, Taken, Write
from tests.conformance.drivers import create, drivers
from tests.conformance.host import DriverHost
from tests.conformance.steps import play, read_lines, read_steps
from tests.golden.compare import GOLDEN, scenarios

__all__ = ["TARGET", "table"]

_ROOT = Path(__file__).parents[2]
TARGET = _ROOT / "drivers" / "support.md"
_OBSERVED = _ROOT / "tests" / "live" / "observed"

# What the server says by itself, whatever the driver.
_SERVERS = frozenset({
    "message_queued", "message_edited", "message_moved", "question_answered", "command_queued",
    "command_sent", "command_dropped", "process_started", "process_adopted", "process_exited",
})  # fmt: skip

_REFUSED = "error_raised SETTING_REFUSED"
_FAILED = "error_raised COMMAND_FAILED"


@dataclass(frozen=True)
class Call:
    """A call, the step that stands for it, and what can come of it: the last of these ends the wait."""

    name: str
    step: str
    outcomes: tuple[str, ...]
    steady: bool = False


_CALLS = (
    Call("CreateSession", "launch", ("options_reported", "error_raised LAUNCH_FAILED")),
    Call("Control.restart", "launch again", ("options_reported", "error_raised RESUME_FAILED")),
    Call("Send", "message", ("turn_started", "user_message")),
    Call("Send, DELIVERY_APPEND", "append", ("user_message",)),
    Call("Unqueue", "unqueue", ("dropped", "already_sent", "unknown")),
    Call("Answer", "answer", ("tool_ended",)),
    Call("Control.interrupt", "interrupt", ("question_withdrawn", "tool_ended", "turn_ended"), True),
    Call("Control.set_model", "set model", ("settings_changed model", _REFUSED)),
    Call(
        "Control.set_permission_mode",
        "set permission_mode",
        ("settings_changed permission_mode", _REFUSED),
    ),
    Call("Control.set_effort", "set effort", ("settings_changed effort", _REFUSED)),
    Call("Control.set_title", "set title", ("settings_changed title", _REFUSED)),
    Call("Control.compact", "compact", ("compacted", _FAILED)),
    Call("Control.clear", "clear", ("cleared", _FAILED)),
    Call("Control.run_command", "run_command", ("command_output", "assistant_text", _FAILED)),
    Call("Control.stop", "stop", ("turn_ended",)),
    Call("(the server is back)", "adopted", ("question_asked", "question_withdrawn", "turn_ended")),
)

_INTRODUCTION = """\
# What each driver does

Written by `python -m tests.golden.support` from what the tests saw; not edited by hand. The first
number is that of recordings of the agent, the second that of live runs of the real program in which it
was seen.

"""


@dataclass
class Seen:
    """What was seen of one driver, or of one version of its agent."""

    recordings: int = 0
    live: int = 0
    events: Counter[str] = field(default_factory=Counter)
    live_events: Counter[str] = field(default_factory=Counter)
    writes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    follows: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


def _kinds(effects: Iterable[Effect]) -> Iterator[str]:
    """Yield the events that effects become, and the outcomes of Unqueue."""
    for effect in effects:
        match effect:
            case Emit(event=event):
                kind = event.WhichOneof("body") or ""
                yield kind
                if kind == "settings_changed":
                    yield from (f"{kind} {f.name}" for f, _ in event.settings_changed.ListFields())
                elif kind == "error_raised":
                    yield f"{kind} {event.error_raised.reason}"
            case Taken():
                yield "user_message"
            case Dropped():
                yield "message_dropped"
            case Attach():
                yield "attachment_added"
            case Retract():
                yield "retracted"
            case Settle(outcome=outcome):
                name = UnqueueOutcome.Name(outcome).removeprefix("UNQUEUE_OUTCOME_").lower()
                yield from (name, "message_dropped") if name == "dropped" else (name,)


def _step(verb: str, given: Any) -> str:
    if verb == "set":
        return f"set {next(iter(given))}"
    if verb == "launch" and given.get("resume"):
        return "launch again"
    return "append" if verb == "message" and given.get("append") else verb


def _written(effect: Write) -> str:
    """Return the kind of a line in the agent's own words."""
    record: dict[str, Any] = json.loads(effect.line)
    words = [str(record[key]) for key in ("type", "kind", "method") if record.get(key)]
    request, message = record.get("request"), record.get("message")
    if isinstance(request, dict) and "subtype" in request:
        words.append(str(request["subtype"]))
    text = message.get("content") if isinstance(message, dict) else None
    if isinstance(text, str) and text.startswith("/"):
        words.append(text.split()[0] if text.split()[0] in ("/compact", "/clear") else "/command")
    return " ".join(words)


def _watch(folder: Path, name: str, seen: Seen) -> None:
    """Play one recording."""
    host = DriverHost(lambda: create(name))
    waiting: list[Call] = []
    found: set[str] = set()
    steps = read_steps(folder / "steps.jsonl")
    for (verb, given), effects in play(host, steps, read_lines(folder / "stdout.jsonl")):
        step = _step(verb, given)
        waiting += [call for call in _CALLS if call.step == step]
        seen.writes[step].update({_written(e) for e in effects if isinstance(e, Write)})
        kinds = set(_kinds(effects))
        found |= kinds
        for call in list(waiting):
            came = [outcome for outcome in call.outcomes if outcome in kinds]
            seen.follows[call.step].update(came)
            if came and (not call.steady or call.outcomes[-1] in came):
                waiting.remove(call)
    seen.recordings += 1
    seen.events.update(found)


def _column(name: str, folder: Path) -> str:
    version = "/".join(folder.relative_to(GOLDEN / name).parts[:-1])
    return f"{name} {version}".strip()


def _all_seen() -> dict[str, Seen]:
    columns: dict[str, Seen] = {}
    for name in sorted(drivers()):
        for folder in scenarios(name):
            _watch(folder, name, columns.setdefault(_column(name, folder), Seen()))
    for path in sorted(_OBSERVED.glob("*.json")):
        observed = json.loads(path.read_text())
        seen = columns.setdefault(f"{observed['driver']} {observed['version']}", Seen())
        seen.live = observed["scenarios"]
        seen.live_events.update(observed["events"])
    return columns


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def _message(kind: str) -> str:
    return "".join(part.capitalize() for part in kind.split("_"))


def _event_cell(seen: Seen, kind: str) -> str:
    if kind in _SERVERS:
        return "the server"
    recorded, live = seen.events[kind], seen.live_events[kind]
    if not recorded and not live:
        return "never"
    return f"{recorded} + {live}" if seen.live else str(recorded)


def _call_cell(seen: Seen, call: Call) -> str:
    writes, after = sorted(seen.writes.get(call.step, ())), seen.follows[call.step]
    if call.step not in seen.writes:
        return "not seen"
    named = ", ".join(f"`{written}`" for written in writes) or "nothing is written"
    came = [outcome for outcome in call.outcomes if outcome in after]
    words = [o.upper() if call.step == "unqueue" else _message(o.split()[0]) for o in came]
    return f"{named}; then {', '.join(words)}" if words else named


def table() -> str:
    """Return the document."""
    columns = _all_seen()
    names = list(columns)
    text = _INTRODUCTION
    text += _row("", *names) + _row("---", *["---"] * len(names))
    counts = [f"{s.recordings} + {s.live}" if s.live else str(s.recordings) for s in columns.values()]
    text += _row("scenarios", *counts)
    text += "\n## Events\n\n" + _row("event", *names) + _row("---", *["---"] * len(names))
    for kind in [f.name for f in ev.Event.DESCRIPTOR.oneofs_by_name["body"].fields]:
        text += _row(f"`{_message(kind)}`", *[_event_cell(seen, kind) for seen in columns.values()])
    text += "\n## Calls\n\nWhat is written to the agent, and which of its outcomes were seen.\n\n"
    text += _row("call", *names) + _row("---", *["---"] * len(names))
    for call in _CALLS:
        text += _row(call.name, *[_call_cell(seen, call) for seen in columns.values()])
    return text


def main() -> int:
    """Write or check the document."""
    parser = argparse.ArgumentParser(description="Tell what each driver does, from what was seen.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if parser.parse_args().check:
        if TARGET.exists() and TARGET.read_text() == table():
            return 0
        print(f"{TARGET.relative_to(_ROOT)} is not what the tests see: python -m tests.golden.support")
        return 1
    TARGET.write_text(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
