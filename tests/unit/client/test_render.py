"""What every event looks like."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from sessiond.v1 import event_pb2, session_pb2
from sessiond_client.ctl.layout import Gutter
from sessiond_client.ctl.render import RENDERERS, Piece, question_lines, render
from sessiond_client.ctl.words import one_line, printable, size, word

KINDS = [field.name for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields]


def filled(message: Message, enum_number: int | None = None, text: str = "") -> Message:
    """Fill every field, deeply, with something to recognise, or all strings with `text`."""
    for field in message.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            value = getattr(message, field.name)
            filled(value.add() if field.is_repeated else value, enum_number, text)
            continue
        value = _scalar(field, enum_number, text)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message


def _scalar(field: Any, enum_number: int | None, text: str) -> object:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number if enum_number is None else enum_number
    if field.type == FieldDescriptor.TYPE_STRING:
        return text or f"<{field.name}>"
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    return 7


def event_of(
    kind: str, enum_number: int | None = None, fill: bool = True, text: str = ""
) -> event_pb2.Event:
    event = event_pb2.Event(seq=3)
    body = getattr(event, kind)
    body.SetInParent()
    if fill:
        filled(body, enum_number, text)
    return event


def test_there_is_a_renderer_for_every_kind_and_no_other() -> None:
    assert set(RENDERERS) == set(KINDS)


# What a person must be able to read of a kind when all its fields are set.
ESSENTIAL: dict[str, list[str]] = {
    "assistant_text": ["<delta>"],
    "reasoning": ["<delta>"],
    "tool_started": ["<tool>", "<title>", "<ref>"],
    "tool_updated": ["<output>"],
    "tool_ended": ["interrupted", "<output>", "<ref>"],
    "state_changed": ["unknown"],
    "user_message": ["<text>", "<sender>", "<filename>", "<ref>"],
    "message_queued": ["<message_id>", "<text>", "<sender>", "append", "<ref>"],
    "message_edited": ["<message_id>", "<text>", "revision 7"],
    "message_moved": ["<message_id>", "<before_message_id>"],
    "message_dropped": ["<message_id>"],
    "peer_message": ["<sender>", "<text>"],
    "attachment_added": ["<filename>", "<media_type>", "7 B", "<ref>"],
    "retracted": ["7"],
    "question_asked": [
        "<question_id>",
        "<prompt>",
        "<header>",
        "1. <label>",
        "<description>",
        "<preview>",
    ],
    "question_answered": ["<question_id>", "<answers>", "<note>"],
    "question_withdrawn": ["<question_id>", "resolved elsewhere"],
    "settings_changed": ["<model>", "<permission_mode>", "<effort>", "<title>"],
    "options_reported": ["models: <id>", "permission modes: <id>", "efforts: <id>", "commands: <id>"],
    "turn_started": ["agent"],
    "turn_ended": ["failed", "agent exited", "<message>", "7.0 s", "7 steps"],
    "usage_reported": ["7 in", "7 cache read", "7 cache write", "7 out", "context 7 of 7", "$7.0000"],
    "limit_reported": ["<kind>", "reached", "700%", "1970-01-01T00:00:07"],
    "compacted": ["7 -> 7", "<trigger>"],
    "command_queued": ["<command_id>", "<text>"],
    "command_sent": ["<text>"],
    "command_output": ["<text>"],
    "command_dropped": ["<command_id>"],
    "cleared": ["no longer knows"],
    "retrying": ["attempt 7 of 7", "7.0 s", "<reason>"],
    "plan_updated": ["[x] <text>"],
    "notice": ["<native_kind>", "<text>"],
    "process_started": ["7", "<native_session_id>", "<agent_version>"],
    "process_adopted": ["7"],
    "process_exited": ["signal 7", "<stderr_tail>"],
    "error_raised": ["<reason>", "<message>"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_event_shows_what_matters(kind: str) -> None:
    piece = render(event_of(kind))
    assert [text for text in ESSENTIAL[kind] if text not in piece.text] == []
    assert piece.label


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_event_can_be_shown(kind: str) -> None:
    piece = render(event_of(kind, fill=False))
    assert piece.label


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_enum_numbers_are_shown_as_numbers(kind: str) -> None:
    event = event_of(kind, enum_number=99)
    has_enum = any(field.enum_type for field in getattr(event, kind).DESCRIPTOR.fields)
    text = render(event).text
    if has_enum and kind != "notice":
        assert "unknown (99)" in text


def test_a_plan_item_in_an_unknown_state_is_marked_so() -> None:
    assert render(event_of("plan_updated", enum_number=99)).text == "[?] <text>"


@pytest.mark.parametrize(("ignorable", "advice"), [(True, "skipped"), (False, "newer sessionctl")])
def test_an_unknown_kind_says_so(ignorable: bool, advice: str) -> None:
    unknown = event_pb2.Event(seq=3, ignorable=ignorable)
    # A body with a field number that no one has yet: what a newer daemon would send.
    future = event_pb2.Event.FromString(unknown.SerializeToString() + b"\xfa\x7d\x02\x08\x01")
    assert future.WhichOneof("body") is None
    piece = render(future)
    assert advice in piece.text
    assert piece.minor == ignorable


def test_who_did_it_is_shown() -> None:
    event = event_of("question_answered")
    event.actor = "ann"
    assert render(event).text.startswith("[ann] ")


def test_a_process_that_ended_well_shows_no_stderr() -> None:
    exited = event_pb2.ProcessExited(exit_code=0, stderr_tail="warning")
    piece = render(event_pb2.Event(process_exited=exited))
    assert piece.text == "exited with code 0"
    gone = render(event_pb2.Event(process_exited=event_pb2.ProcessExited()))
    assert "nobody saw" in gone.text


def test_nothing_reaches_the_terminal_that_it_would_obey() -> None:
    evil = "\x1b]0;title\x07\x1b[2J\x9b31m\u202eabc\r\nnext\tcell"
    for kind in KINDS:
        event = event_of(kind, text=evil)
        event.actor = evil
        text = render(event).text
        assert not [c for c in text if (ord(c) < 0x20 and c not in "\n\t") or c in "\x7f\x9b\u202e"]
    assert printable("a\r\nb\rc\x1b[0m") == "a\nb␍c␛[0m"


def test_options_of_a_question_are_numbered_with_their_rules() -> None:
    question = event_pb2.QuestionAsked(
        prompt="Which?",
        options=[
            event_pb2.QuestionOption(label="a"),
            event_pb2.QuestionOption(label="b", description="B"),
        ],
        multi_select=True,
        allow_text=True,
    )
    assert question_lines(question) == [
        "Which?",
        "  1. a",
        "  2. b - B",
        "  (several may be chosen; or answer in your own words)",
    ]


def test_words() -> None:
    assert word(
        session_pb2.SessionState.Name, session_pb2.SESSION_STATE_AWAITING_INPUT, "SESSION_STATE"
    ) == ("awaiting input")
    assert [size(n) for n in (0, 1023, 1024, 1536, 1 << 30)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "1.0 GiB",
    ]
    assert one_line("a\n  b\tc" + "x" * 300, 8) == "a b cxx…"


def laid_out(*pieces: Piece) -> str:
    gutter = Gutter()
    text = "".join(gutter.feed(seq, piece).plain for seq, piece in enumerate(pieces, 1))
    return text + gutter.finish().plain


def test_running_text_continues_on_its_line() -> None:
    assert laid_out(
        Piece("text", "Hello ", stream="a"),
        Piece("text", "world.\nSecond", stream="a"),
        Piece("tool", "Bash"),
        Piece("text", "Third", stream="b"),
    ) == (
        "      1 text       Hello world.\n"
        "                   Second\n"
        "      3 tool       Bash\n"
        "      4 text       Third\n"
    )


def test_another_running_text_begins_a_line() -> None:
    assert laid_out(Piece("text", "a", stream="1"), Piece("text", "b", stream="2", nested=True)) == (
        "      1 text       a\n      2 text       | b\n"
    )


def test_the_lines_of_a_block_stand_below_each_other() -> None:
    assert laid_out(Piece("plan", "one\ntwo")) == "      1 plan       one\n                   two\n"
