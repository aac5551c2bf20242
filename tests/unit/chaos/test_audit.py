"""What agents said and read is compared with what must stand in the transcript."""

from __future__ import annotations

import pytest

from sessiond.v1 import event_pb2 as ev
from tests.chaos import audit
from tests.chaos.audit import Sent

DONE, CUT = ev.TURN_OUTCOME_COMPLETED, ev.TURN_OUTCOME_INTERRUPTED


def _turn(outcome: ev.TurnOutcome.ValueType, text: str, *numbers: int) -> list[ev.Event]:
    said = [ev.Event(assistant_text=ev.AssistantText(delta=f"#{n} ", block_id="b1")) for n in numbers]
    return [
        ev.Event(turn_started=ev.TurnStarted(turn_id="t1")),
        ev.Event(user_message=ev.UserMessage(message_id="m1", text=text)),
        *said,
        ev.Event(turn_ended=ev.TurnEnded(turn_id="t1", outcome=outcome)),
    ]


@pytest.mark.parametrize(
    ("outcome", "numbers", "effects"),
    [
        (DONE, (1, 2, 3), set()),
        (DONE, (1, 3), {"lost"}),
        (DONE, (1, 2), {"lost"}),
        (DONE, (), {"lost"}),
        (DONE, (1, 2, 2, 3), {"doubled"}),
        (DONE, (1, 2, 3, 4), {"doubled"}),
        (DONE, (1, 3, 2), {"reordered"}),
        (CUT, (1, 2), set()),
        (CUT, (), set()),
        (CUT, (1, 3), {"lost", "doubled"}),
    ],
)
def test_bursts(outcome: ev.TurnOutcome.ValueType, numbers: tuple[int, ...], effects: set[str]) -> None:
    events = _turn(outcome, audit.script("tag", 100, 3), *numbers)
    assert {v.effect for v in audit.bursts("s", events)} == effects
    assert not audit.balance("s", events)
    assert audit.balance("s", events[:-1])


def _queued(message_id: str, text: str) -> ev.Event:
    return ev.Event(message_queued=ev.MessageQueued(message_id=message_id, text=text))


def _read(message_id: str, text: str) -> ev.Event:
    return ev.Event(user_message=ev.UserMessage(message_id=message_id, text=text))


def _logged(message_id: str, text: str, again: bool = False) -> dict[str, object]:
    return {"id": message_id, "text": text, "again": again, "pid": 2 if again else 1}


ONE, TWO = audit.script("tag-1", 1, 1), audit.script("tag-2", 1, 1)
EXIT = ev.Event(process_exited=ev.ProcessExited(exit_code=1))


@pytest.mark.parametrize(
    ("log", "events", "broken"),
    [
        ([_logged("m1", ONE)], [_queued("m1", ONE), _read("m1", ONE)], set()),
        ([], [_queued("m1", ONE)], {"lost"}),
        ([_logged("m1", ONE)], [_queued("m1", ONE)], {"lost"}),
        ([], [_queued("m1", ONE), _read("m1", ONE)], {"lost", "doubled"}),
        ([_logged("m1", ONE)] * 2, [_queued("m1", ONE), _read("m1", ONE)], {"doubled"}),
        ([_logged("m1", TWO)], [_queued("m1", ONE), _read("m1", ONE)], {"lost"}),
        (
            [_logged("m1", ONE), _logged("m1", ONE, again=True)],
            [_queued("m1", ONE), _read("m1", ONE)],
            {"doubled"},
        ),
        (
            [_logged("m1", ONE), _logged("m1", TWO, again=True)],
            [
                _queued("m1", ONE),
                EXIT,
                ev.Event(message_edited=ev.MessageEdited(message_id="m1", text=TWO)),
                _read("m1", TWO),
            ],
            set(),
        ),
        (
            [_logged("m1", ONE), _logged("m2", ONE)],
            [_queued("m1", ONE), _read("m1", ONE), _queued("m2", ONE), _read("m2", ONE)],
            {"doubled"},
        ),
    ],
)
def test_inputs(log: list[dict[str, object]], events: list[ev.Event], broken: set[str]) -> None:
    sent = Sent(accepted={"m1": ONE})
    assert {v.effect for v in audit.inputs("s", sent, log, events)} == broken


def test_a_dropped_message_is_read_by_nobody() -> None:
    dropped = ev.Event(message_dropped=ev.MessageDropped(message_id="m1"))
    events = [_queued("m1", ONE), dropped]
    sent = Sent(accepted={"m1": ONE}, dropped={"m1"})
    assert not audit.inputs("s", sent, [], events)
    assert audit.inputs("s", sent, [_logged("m1", ONE)], events)
    assert audit.inputs("s", sent, [], events[:1])


def test_a_message_may_be_taken_back_that_an_agent_read_as_the_last_before_it_died() -> None:
    dropped = ev.Event(message_dropped=ev.MessageDropped(message_id="m1"))
    sent = Sent(accepted={"m1": ONE}, dropped={"m1"})
    events = [_queued("m1", ONE), EXIT, dropped]
    assert not audit.inputs("s", sent, [_logged("m1", ONE)], events)
    # It lived to read another one, and had said nothing of the first.
    sent.accepted["m2"] = TWO
    events += [_queued("m2", TWO), _read("m2", TWO)]
    assert audit.inputs("s", sent, [_logged("m1", ONE), _logged("m2", TWO)], events)
