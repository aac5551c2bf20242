"""Every checker sees the fault it is there for, and no fault where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_service_pb2 as api
from tests.chaos import checkers, record
from tests.chaos.record import COMPLETE, KILLED, Answer, Record, Seen, Stream

TRANSCRIPT = [Seen(seq, f"d{seq}") for seq in range(1, 11)]


def answer(*seqs: int, head: int = 10, first: int = 1, transcript: str = "t") -> Answer:
    return Answer(head, first, transcript, tuple(Seen(seq, f"d{seq}") for seq in seqs))


def stream(after_seq: int, *answers: Answer, end: str = COMPLETE) -> Stream:
    return Stream(after_seq, list(answers), end)


def found(*streams: Stream) -> set[tuple[str, str]]:
    violations = checkers.check(Record("c", "s", list(streams)), TRANSCRIPT)
    return {(violation.promise, violation.effect) for violation in violations}


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert not found(
        stream(0, answer(1, 2, 3, head=3), answer(head=4), end="UNAVAILABLE"),
        stream(3, end=KILLED),
        stream(3, answer(4, 5, 6, head=6), end="SERVER_DRAINING"),
        stream(2, answer(3, 4, head=7), end="left"),
        stream(6, answer(7, 8, 9, 10)),
    )


@pytest.mark.parametrize(
    ("streams", "promise", "effect"),
    [
        ([stream(0, answer(1, 2, 4, 3, 5, 6, 7, 8, 9, 10))], "ordered", "reordered"),
        ([stream(0, answer(1, 2, 3), answer(3, 4, 5, 6, 7, 8, 9, 10))], "unique", "doubled"),
        ([stream(0, answer(1, 2), end="left"), stream(2, answer(*range(2, 11)))], "unique", "doubled"),
        ([stream(0, answer(1, 2, 4, 5, 6, 7, 8, 9, 10))], "gapless", "lost"),
        ([stream(0, answer(2, 3, 4, 5, 6, 7, 8, 9, 10))], "gapless", "lost"),
        ([stream(0, answer(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, head=11))], "durable", "lost"),
        ([stream(0, answer(*range(1, 11), head=12))], "durable", "lost"),
        ([stream(0, end="SEQ_IN_FUTURE")], "resumable", "lost"),
        ([stream(0, end="INTERNAL")], "resumable", "lost"),
        ([stream(0, answer(1, 2, 3, head=3), end="left"), stream(3, answer(4, 5))], "resumable", "lost"),
        ([stream(0, answer(1, 2, 3, head=2), answer(*range(4, 11)))], "bookmarked", "lost"),
        ([stream(0, answer(1, 2, head=9), answer(*range(3, 11), head=8))], "bookmarked", "lost"),
        ([stream(0, answer(*range(1, 11), first=3))], "bookmarked", "lost"),
        ([stream(0, answer(1)), stream(1, answer(2, transcript="u"))], "bookmarked", "lost"),
        ([stream(10)], "bookmarked", "lost"),
    ],
)  # fmt: skip
def test_each_checker_sees_its_fault(streams: list[Stream], promise: str, effect: str) -> None:
    assert (promise, effect) in found(*streams)


def test_another_event_under_a_seq_is_seen_by_who_had_the_first() -> None:
    other = Answer(10, 1, "t", (Seen(3, "another"),))
    assert ("durable", "lost") in found(stream(2, other, end="left"))
    assert ("unique", "doubled") in found(stream(2, other, end="left"), stream(2, answer(3)))


@pytest.mark.parametrize(
    ("items", "effects"),
    [
        ("abcd", set()),
        ("abd", {"lost"}),
        ("abbcd", {"doubled"}),
        ("acbd", {"reordered"}),
        ("abcdx", {"doubled"}),
        ("", {"lost"}),
    ],
)
def test_sequences_are_compared(items: str, effects: set[str]) -> None:
    assert {v.effect for v in checkers.sequence("bursts", "s", "abcd", items)} == effects


def test_effects_are_counted() -> None:
    violations = checkers.sequence("inputs", "s", "abcd", "ddcb")
    assert checkers.count(violations) == {"lost": 1, "doubled": 1, "reordered": 2}


def test_a_record_survives_its_client(tmp_path: Path) -> None:
    file = tmp_path / "record"
    writer = record.Writer(file)
    writer.opened(0)
    first = api.SubscribeResponse(
        events=[ev.Event(seq=1, assistant_text=ev.AssistantText(delta="a")), ev.Event(seq=2)],
        head_seq=2,
        first_seq=1,
        transcript_id="t",
    )
    writer.got(first)
    writer.close()
    with file.open("ab") as torn:
        torn.write(b'{"head":9,"fir')
    writer = record.Writer(file)
    writer.opened(2)
    writer.ended("UNAVAILABLE")
    writer.close()
    kept = record.read(file, "c", "s")
    assert [(s.after_seq, s.seqs, s.end) for s in kept.streams] == [
        (0, [1, 2], KILLED),
        (2, [], "UNAVAILABLE"),
    ]
    assert kept.streams[0].answers == [record.answer(first)]
    assert record.seen(first.events[0]) != record.seen(ev.Event(seq=1))
