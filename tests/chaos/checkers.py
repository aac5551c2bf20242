"""One checker for each promise of Subscribe, and two for what agents said and read.

Each compares what was recorded with something else that was recorded, and returns what it found broken;
none of them asks the daemon. `lost`, `doubled` and `reordered` count findings by their effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tests.chaos.record import COMPLETE, DELETED, KILLED, LEFT, SILENT, Record, Seen, Stream

Effect: TypeAlias = Literal["lost", "doubled", "reordered"]

# Ends that a client has to expect: it left, it was killed, the connection or the daemon went. CANCELLED
# is what gRPC says of the streams that a daemon could not end in its grace.
_EXPECTED_ENDS = frozenset(
    {COMPLETE, DELETED, LEFT, SILENT, KILLED, "UNAVAILABLE", "SERVER_DRAINING", "CANCELLED"}
)


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: which, what it did, to whom, and how to see it."""

    promise: str
    effect: Effect
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.effect}: {self.where}: {self.text}"


Checker: TypeAlias = Callable[[Record, Sequence[Seen]], Iterator[Violation]]


def ordered(record: Record, transcript: Sequence[Seen]) -> Iterator[Violation]:
    """Within a stream no event comes after one with a higher seq."""
    for stream, where in _streams(record):
        highest = 0
        for seq in stream.seqs:
            if seq < highest:
                yield Violation("ordered", "reordered", where, f"{seq} came after {highest}")
            highest = max(highest, seq)


def unique(record: Record, transcript: Sequence[Seen]) -> Iterator[Violation]:
    """No event comes twice in a stream, nor one the client said it has, nor two under one seq."""
    first: dict[int, str] = {}
    for stream, where in _streams(record):
        for seq, count in Counter(stream.seqs).items():
            if count > 1:
                yield Violation("unique", "doubled", where, f"{seq} came {count} times")
            if seq <= stream.after_seq:
                yield Violation(
                    "unique", "doubled", where, f"{seq} came after {stream.after_seq} was asked"
                )
        for event in stream.events:
            if first.setdefault(event.seq, event.digest) != event.digest:
                yield Violation("unique", "doubled", where, f"{event.seq} was another event before")


def gapless(record: Record, transcript: Sequence[Seen]) -> Iterator[Violation]:
    """The first event of a stream is the one after after_seq, and each next one has the next seq."""
    for stream, where in _streams(record):
        expected = stream.after_seq + 1
        for seq in stream.seqs:
            if seq > expected:
                yield Violation("gapless", "lost", where, f"{expected} to {seq - 1} are missing")
            expected = max(expected, seq + 1)


def durable(record: Record, transcript: Sequence[Seen]) -> Iterator[Violation]:
    """What anybody saw is in the transcript at the end, as it was, and so is what a head promised."""
    kept = {event.seq: event.digest for event in transcript}
    for stream, where in _streams(record):
        for event in stream.events:
            if event.seq not in kept:
                yield Violation("durable", "lost", where, f"{event.seq} was seen and is gone")
            elif kept[event.seq] != event.digest:
                yield Violation("durable", "lost", where, f"{event.seq} was seen and is another now")
        highest = max((answer.head_seq for answer in stream.answers), default=0)
        if highest > len(transcript):
            yield Violation(
                "durable", "lost", where, f"the head was {highest}, it is {len(transcript)} now"
            )


def resumable(record: Record, transcript: Sequence[Seen]) -> Iterator[Violation]:
    """Any seq up to the head may be asked for; and all streams together hold all from the first on."""
    for stream, where in _streams(record):
        if stream.end not in _EXPECTED_ENDS:
            yield Violation("resumable", "lost", where, f"refused or broken with {stream.end}")
    if not record.streams or record.streams[-1].end != COMPLETE:
        return
    got = {event.seq for stream in record.streams for event in stream.events}
    since = min(stream.after_seq for stream in record.streams)
    missing = [event.seq for event in transcript[since:] if event.seq not in got]
    if missing:
        text = f"{len(missing)} events never came, {missing[0]} the first"
        yield Violation("resumable", "lost", record.client, text)


def bookmarked(record: Record, transcript: Sequence[Seen]) -> Iterator[Violation]:
    """Every response says where the head is: not behind its own events, never backwards.

    The first says it at once, so a stream that ended well has one; first_seq and
    transcript_id stay as they were.
    """
    before = 0
    ids = {answer.transcript_id for stream in record.streams for answer in stream.answers}
    if len(ids) > 1:
        yield Violation("bookmarked", "lost", record.client, f"the transcript changed: {sorted(ids)}")
    for stream, where in _streams(record):
        if not stream.answers and stream.end in (DELETED, COMPLETE):
            yield Violation("bookmarked", "lost", where, "no response came at all")
        position = stream.after_seq
        for answer in stream.answers:
            position = max([position, *(event.seq for event in answer.events)])
            if answer.head_seq < position:
                text = f"the head is said to be {answer.head_seq} at {position}"
                yield Violation("bookmarked", "lost", where, text)
            if answer.head_seq < before:
                text = f"the head went back from {before} to {answer.head_seq}"
                yield Violation("bookmarked", "lost", where, text)
            if answer.first_seq != 1:
                yield Violation("bookmarked", "lost", where, f"first_seq is {answer.first_seq}")
            before = max(before, answer.head_seq)


CHECKERS: dict[str, Checker] = {
    "ordered": ordered,
    "unique": unique,
    "gapless": gapless,
    "durable": durable,
    "resumable": resumable,
    "bookmarked": bookmarked,
}


def check(record: Record, transcript: Sequence[Seen]) -> list[Violation]:
    """Run all six over one client's record and the transcript as it is at the end."""
    return [found for checker in CHECKERS.values() for found in checker(record, transcript)]


def sequence(promise: str, where: str, expected: Sequence[str], found: Sequence[str]) -> list[Violation]:
    """Compare two lists of things that are all different: what is missing, comes twice, or too early."""
    violations: list[Violation] = []
    counts = Counter(found)
    wanted = set(expected)
    for item in expected:
        if item not in counts:
            violations.append(Violation(promise, "lost", where, f"{item} is missing"))
    for item, count in counts.items():
        if item not in wanted:
            violations.append(Violation(promise, "doubled", where, f"{item} should not be there"))
        elif count > 1:
            violations.append(Violation(promise, "doubled", where, f"{item} is there {count} times"))
    places = {item: place for place, item in enumerate(expected)}
    last = -1
    for item in dict.fromkeys(found):
        place = places.get(item, last)
        if place < last:
            text = f"{item} stands after {expected[last]}"
            violations.append(Violation(promise, "reordered", where, text))
        last = max(last, place)
    return violations


def count(violations: Sequence[Violation]) -> dict[Effect, int]:
    """Return how many of each effect there are."""
    found = Counter(violation.effect for violation in violations)
    return {"lost": found["lost"], "doubled": found["doubled"], "reordered": found["reordered"]}


def _streams(record: Record) -> Iterator[tuple[Stream, str]]:
    for number, stream in enumerate(record.streams, 1):
        yield stream, f"{record.client} of {record.session_id}, stream {number}"
