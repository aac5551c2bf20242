"""Events that are too big to send: whatever comes in, what goes out is small enough."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from sessiond.v1 import event_pb2 as ev
from sessiond_server import validate
from sessiond_server.config import BESIDE_TEXT, Limits
from sessiond_server.session.oversize import shrink

_MOST = 16 * 1024
_KINDS = [field.name for field in ev.Event.DESCRIPTOR.oneofs_by_name["body"].fields]


def _fill(message: Message, text: str, count: int) -> None:
    """Put `text` into every string below `message`, and `count` items into every list."""
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof is not None and field.containing_oneof.name == "body":
            continue
        value: Any = getattr(message, field.name)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in (value.add() for _ in range(count)) if field.is_repeated else [value]:
                _fill(inner, text, count)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                value.extend([text] * count)
            else:
                setattr(message, field.name, text)


def _filled(kind: str, text: str, count: int) -> ev.Event:
    event = ev.Event()
    getattr(event, kind).SetInParent()
    _fill(event, text, count)
    _fill(getattr(event, kind), text, count)
    return event


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(("size", "count"), [(100_000, 3), (1000, 100), (1, 5000)])
def test_no_event_is_over_the_limit(kind: str, size: int, count: int) -> None:
    event = _filled(kind, "é" * size, count)
    pieces, _ = shrink(event, _MOST)
    assert pieces[0].WhichOneof("body") == kind
    assert max(piece.ByteSize() for piece in pieces) <= _MOST


def test_a_long_text_of_a_sub_agent_with_long_ids_is_whole() -> None:
    said = "".join(f"{number} é " for number in range(10_000))
    event = ev.Event(parent_tool_id="p" * 100_000)
    event.assistant_text.delta, event.assistant_text.block_id = said, "b" * 1000
    pieces, _ = shrink(event, _MOST)
    assert "".join(piece.assistant_text.delta for piece in pieces) == said
    assert {(p.parent_tool_id, p.assistant_text.block_id) for p in pieces} == {
        (pieces[0].parent_tool_id, "b" * 1000)
    }
    assert all(0 < len(piece.parent_tool_id) <= 64 for piece in pieces)


def test_a_giant_id_without_a_text_is_an_event_too() -> None:
    pieces, _ = shrink(ev.Event(command_output=ev.CommandOutput(command_id="c" * 100_000)), _MOST)
    assert [len(piece.command_output.command_id) for piece in pieces] == [64]


@pytest.mark.parametrize("kind", ["message_queued", "message_edited", "user_message"])
def test_the_longest_message_with_all_its_files_is_whole(kind: str) -> None:
    limits = Limits(max_text_bytes=100_000, max_event_bytes=100_000 + BESIDE_TEXT)
    event = ev.Event(request_id="r" * 128, actor="a" * 256)
    message = getattr(event, kind)
    message.message_id, message.text = str(UUID(int=0)), "m" * limits.max_text_bytes
    for _ in range(validate.MAX_ATTACHMENTS):
        message.attachments.add(
            ref="0" * 64, media_type="t" * 128, filename="n" * 255, size_bytes=1 << 40
        )
    before = event.SerializeToString()
    pieces, blobs = shrink(event, limits.max_event_bytes)
    assert ([piece.SerializeToString() for piece in pieces], blobs) == ([before], [])


def test_the_most_answers_are_whole() -> None:
    limits = Limits(max_text_bytes=100_000, max_event_bytes=100_000 + BESIDE_TEXT)
    answers = ["x" * 256] * validate.MAX_ANSWERS
    note = "n" * (limits.max_text_bytes - 256 * validate.MAX_ANSWERS)
    validate.answers(answers, note, limits.max_text_bytes)
    answered = ev.QuestionAnswered(question_id="q" * 256, answers=answers, note=note)
    pieces, _ = shrink(ev.Event(question_answered=answered), limits.max_event_bytes)
    assert [piece.question_answered for piece in pieces] == [answered]


def test_long_ids_stay_apart() -> None:
    found = set()
    for last in "ab":
        event = ev.Event(parent_tool_id="p" * 100_000 + last)
        event.assistant_text.delta = "hello"
        pieces, _ = shrink(event, _MOST)
        found.add(pieces[0].parent_tool_id)
    assert len(found) == 2


def test_texts_are_shortened_before_a_choice_is_lost() -> None:
    event = ev.Event()
    event.question_asked.question_id = "q1"
    event.question_asked.prompt = "p" * 2_000_000
    for number in range(70):
        event.question_asked.options.add(label=f"{number} {'l' * 16_000}", preview="v" * 16_000)
    pieces, _ = shrink(event, 1024 * 1024)
    asked = pieces[0].question_asked
    assert asked.question_id == "q1"
    assert len({option.label for option in asked.options}) == 70
