"""What must stand in a transcript, given what clients sent and what the agent read.

The messages of the attack are scripts `!burst @RATE N` with a tag; a burst is N deltas `#1 ` to `#N ` in
a block of its own, so that every single delta of it is accounted for.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from tests.chaos.checkers import Violation, sequence

_BURST = re.compile(r"^!burst @\S+ (\d+)$", re.MULTILINE)
_TAG = re.compile(r"^!notice level=debug (\S+)$", re.MULTILINE)


def script(tag: str, rate: int, count: int) -> str:
    """Return a message that makes the agent stream `count` numbered deltas."""
    return f"!burst @{rate} {count}\n!notice level=debug {tag}"


@dataclass(slots=True)
class Sent:
    """What clients were told about the messages of one session.

    `accepted` maps the message id of each acknowledged Send to its text, in the order acknowledged;
    `dropped` are the ids for which Unqueue said DROPPED, `unsure` those for which it said UNKNOWN;
    `disputed` the ids for which one call with one request_id got two different answers.
    """

    accepted: dict[str, str] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    disputed: list[str] = field(default_factory=list)


# --- what the agent said ---


@dataclass(slots=True)
class _Turn:
    counts: list[int] = field(default_factory=list)
    blocks: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def bursts(session_id: str, events: Sequence[ev.Event]) -> list[Violation]:
    """Check that each burst came whole, once and in order; cut ones only where a turn was cut."""
    violations: list[Violation] = []
    for turn_id, completed, turn in _turns(events):
        where = f"{session_id} {turn_id}"
        blocks = list(turn.blocks.values())
        if len(blocks) > len(turn.counts):
            text = f"{len(blocks)} bursts for {len(turn.counts)} messages"
            violations.append(Violation("bursts", "doubled", where, text))
        elif completed and len(blocks) < len(turn.counts):
            text = f"{len(blocks)} bursts for {len(turn.counts)} messages"
            violations.append(Violation("bursts", "lost", where, text))
        # Which of several messages the agent plays first is its own affair.
        for wanted, block in zip(sorted(turn.counts), sorted(blocks, key=len), strict=False):
            # Of a turn that was cut, a burst may have been cut; what is there has no hole.
            whole = wanted if completed else len(set(block))
            expected = [f"#{number}" for number in range(1, whole + 1)]
            violations += sequence("bursts", where, expected, block)
    return violations


def _turns(events: Sequence[ev.Event]) -> Iterator[tuple[str, bool, _Turn]]:
    """Yield each turn's id, whether it was completed, and the bursts asked for and made in it."""
    appended = {
        event.message_queued.message_id
        for event in events
        if event.message_queued.delivery == session_pb2.DELIVERY_APPEND
    }
    turn, turn_id = _Turn(), ""
    for event in events:
        match event.WhichOneof("body"):
            case "turn_started":
                turn, turn_id = _Turn(), event.turn_started.turn_id
            case "user_message" if event.user_message.message_id not in appended:
                turn.counts += [int(n) for n in _BURST.findall(event.user_message.text)]
            case "assistant_text" if event.assistant_text.delta.startswith("#"):
                turn.blocks[event.assistant_text.block_id].append(event.assistant_text.delta.strip(" ."))
            case "turn_ended":
                yield turn_id, event.turn_ended.outcome == ev.TURN_OUTCOME_COMPLETED, turn
                turn, turn_id = _Turn(), ""


def balance(session_id: str, events: Sequence[ev.Event]) -> list[Violation]:
    """Check that whatever was opened was closed exactly once, and nothing was closed that never was."""
    opened: Counter[str] = Counter()
    for event in events:
        kind = event.WhichOneof("body")
        if kind == "turn_started":
            opened[f"turn {event.turn_started.turn_id}"] += 1
        elif kind == "turn_ended":
            opened[f"turn {event.turn_ended.turn_id}"] -= 1
        elif kind == "tool_started":
            opened[f"tool {event.tool_started.tool_id}"] += 1
        elif kind == "tool_ended":
            opened[f"tool {event.tool_ended.tool_id}"] -= 1
        elif kind == "question_asked":
            opened[f"question {event.question_asked.question_id}"] += 1
        elif kind == "question_answered":
            opened[f"question {event.question_answered.question_id}"] -= 1
        elif kind == "question_withdrawn":
            opened[f"question {event.question_withdrawn.question_id}"] -= 1
    return [
        Violation("balance", "lost" if left > 0 else "doubled", session_id, f"{name}: {left:+}")
        for name, left in opened.items()
        if left
    ]


# --- what the agent read ---


def read_log(path: Path) -> list[dict[str, object]]:
    """Return the records of an agent's read log; a last line that was cut by a kill does not count."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def inputs(
    session_id: str, sent: Sent, log: Sequence[dict[str, object]], events: Sequence[ev.Event]
) -> list[Violation]:
    """Compare what clients were told with what the agent read and what the transcript says it read.

    A message that the agent read while it died, before it could say so, waits again and is read again:
    such a second reading is marked `again`, and there is at most one for each exit. Or it is taken back
    while it waits again; then it is the last that its process read.
    """
    told = [event.user_message.message_id for event in events if event.HasField("user_message")]
    dropped = [event.message_dropped.message_id for event in events if event.HasField("message_dropped")]
    first = list(dict.fromkeys(str(entry["id"]) for entry in log))
    gone = sent.dropped | (sent.unsure & set(dropped))
    expected = [message_id for message_id in sent.accepted if message_id not in gone]
    exits = sum(event.HasField("process_exited") for event in events)
    last = {entry["pid"]: str(entry["id"]) for entry in log}
    unheard = [item for item in first if item in gone and item not in told and item in last.values()]
    first = [item for item in first if item not in unheard[:exits]]
    violations = [
        *_as_sets("read by the agent", session_id, expected, first),
        *_as_sets("dropped", session_id, sorted(gone), dropped),
        *_once("told as read", session_id, told),
        *_as_sets("told as read", session_id, first, told),
        *_once("accepted by text", session_id, _tags(sent.accepted.values())),
        *_once(
            "read by text", session_id, _tags(str(entry["text"]) for entry in log if not entry["again"])
        ),
    ]
    violations += _contents(session_id, log, events)
    if exits == 0:
        violations += sequence("order of reading", session_id, first, list(dict.fromkeys(told)))
    again = [str(entry["id"]) for entry in log if entry["again"]]
    unmarked = _once("read by the agent", session_id, [str(e["id"]) for e in log if not e["again"]])
    violations += unmarked
    for message_id, times in Counter(again).items():
        if times > exits:
            text = f"{message_id} was read {times + 1} times in {exits + 1} processes"
            violations.append(Violation("inputs", "doubled", session_id, text))
    for message_id in sent.disputed:
        text = f"one request_id got two answers, {message_id} the second"
        violations.append(Violation("inputs", "doubled", session_id, text))
    return violations


def _contents(
    session_id: str, log: Sequence[dict[str, object]], events: Sequence[ev.Event]
) -> Iterator[Violation]:
    """Check that what was read is what was last said of it.

    A message that an agent read while it died waits again, and may be edited before it is read again.
    """
    texts: dict[str, str] = {}
    for event in events:
        for body in (event.message_queued, event.message_edited, event.user_message):
            if body.message_id and isinstance(body, ev.UserMessage):
                if texts.get(body.message_id) != body.text:
                    text = f"{body.message_id} is told with another text"
                    yield Violation("inputs by content", "lost", session_id, text)
            elif body.message_id:
                texts[body.message_id] = body.text
    read = {str(entry["id"]): entry["text"] for entry in log}
    for message_id, said in read.items():
        if texts.get(message_id) != said:
            text = f"{message_id} was read with another text"
            yield Violation("inputs by content", "lost", session_id, text)


def _tags(texts: Iterable[str]) -> list[str]:
    return [tag for text in texts for tag in _TAG.findall(text)]


def _once(promise: str, where: str, items: Sequence[str]) -> list[Violation]:
    return [
        Violation(f"inputs {promise}", "doubled", where, f"{item} {times} times")
        for item, times in Counter(items).items()
        if times > 1
    ]


def _as_sets(promise: str, where: str, expected: Sequence[str], found: Sequence[str]) -> list[Violation]:
    missing = [item for item in dict.fromkeys(expected) if item not in set(found)]
    extra = [item for item in dict.fromkeys(found) if item not in set(expected)]
    return [
        *(Violation(f"inputs {promise}", "lost", where, f"{item} is not") for item in missing),
        *(Violation(f"inputs {promise}", "doubled", where, f"{item} should not be") for item in extra),
    ]
