"""Events that are too big to send: cut into several, or into a preview and an attachment.

Clients accept 4 MiB by default; an event stays under the limit of the configuration (1 MiB), so that
none is ever refused on the way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond_server.texts import begin

_PREVIEW = 16 * 1024
# Room for what is written last: the time, the seq, totals.
_STAMP = 128
_MOST_ITEMS = 1024
_STREAMED = {"assistant_text": "delta", "reasoning": "delta", "command_output": "text"}


def shrink(
    event: ev.Event, most: int
) -> tuple[list[ev.Event], list[tuple[session_pb2.Attachment, bytes]]]:
    """Return `event` as events of at most `most` bytes each, and attachments to store with them."""
    most -= _STAMP
    if event.ByteSize() <= most:
        return [event], []
    _hash_ids(event, most // 8)
    blobs: list[tuple[session_pb2.Attachment, bytes]] = []
    pieces = list(_divided(event, most, blobs))
    for piece in pieces:
        _fit(piece, most)
    return pieces, blobs


def _divided(
    event: ev.Event, most: int, blobs: list[tuple[session_pb2.Attachment, bytes]]
) -> Iterator[ev.Event]:
    """Give `event` as its kind is best divided, so that nothing is lost where there is a way."""
    kind = event.WhichOneof("body") or ""
    if kind in _STREAMED:
        yield from _pieces(event, kind, _STREAMED[kind], most)
        return
    added = ev.Event()
    if kind == "tool_ended":
        _detach(event.tool_ended, "output", "full_output", "text/plain; charset=utf-8", blobs)
    elif kind == "tool_started":
        _detach(event.tool_started, "input_json", "full_input", "application/json", blobs)
        event.tool_started.input_json = ""
    elif kind == "tool_updated":
        attached = _attach(event.tool_updated.output, "text/plain; charset=utf-8", blobs)
        event.tool_updated.output = preview(event.tool_updated.output)
        added.parent_tool_id = event.parent_tool_id
        added.attachment_added.attachment.CopyFrom(attached)
        added.attachment_added.tool_id = event.tool_updated.tool_id
    elif kind == "notice":
        attached = _attach(event.notice.native_json or event.notice.text, "application/json", blobs)
        event.notice.native_json = ""
        event.notice.text = preview(event.notice.text)
        added.ignorable = True
        added.attachment_added.attachment.CopyFrom(attached)
    yield event
    if added.HasField("attachment_added"):
        yield added


def preview(text: str) -> str:
    """Return the beginning of `text`, as it stands before its attachment."""
    return begin(text, _PREVIEW)


def _attach(
    text: str, media_type: str, blobs: list[tuple[session_pb2.Attachment, bytes]]
) -> session_pb2.Attachment:
    data = text.encode()
    attachment = session_pb2.Attachment(
        ref=hashlib.sha256(data).hexdigest(), media_type=media_type, size_bytes=len(data)
    )
    blobs.append((attachment, data))
    return attachment


def _detach(
    body: ev.ToolStarted | ev.ToolEnded,
    field: str,
    target: str,
    media_type: str,
    blobs: list[tuple[session_pb2.Attachment, bytes]],
) -> None:
    text: str = getattr(body, field)
    getattr(body, target).CopyFrom(_attach(text, media_type, blobs))
    setattr(body, field, preview(text))


def _pieces(event: ev.Event, kind: str, field: str, most: int) -> Iterator[ev.Event]:
    data: bytes = getattr(getattr(event, kind), field).encode()
    # Each piece begins as a copy, and a copy keeps the memory of what is replaced in it.
    rest = ev.Event()
    getattr(event, kind).ClearField(field)
    rest.CopyFrom(event)
    _fit(rest, most // 2)
    # A tag and a length for the text, and another length for the body around it.
    most -= rest.ByteSize() + 16
    start, more = 0, True
    while more:
        end = min(start + most, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:  # not inside a character
            end -= 1
        piece = ev.Event()
        piece.CopyFrom(rest)
        setattr(getattr(piece, kind), field, data[start:end].decode())
        yield piece
        start, more = end, end < len(data)


def _hash_ids(message: Message, most: int) -> None:
    """Put a digest in the place of each id longer than `most`: what was the same stays the same."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE and not field.is_repeated:
            _hash_ids(value, most)
        elif _is_id(field) and len(value.encode()) > most:
            setattr(message, field.name, hashlib.sha256(value.encode()).hexdigest())


def _is_id(field: FieldDescriptor) -> bool:
    text = field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated
    return text and field.name.endswith("_id")


def _fit(event: ev.Event, most: int) -> None:
    """Shorten `event` to `most` bytes, whatever is in it: the last resort for what nobody expected."""
    longest = max(4096, most // 64)
    while event.ByteSize() > most:
        _hash_ids(event, max(longest, 64))
        # Half a list is worse than short texts.
        _cut(event, longest, _MOST_ITEMS if longest > 1024 else min(longest, 64))
        longest //= 4


def _cut(message: Message, longest: int, count: int) -> None:
    """Shorten every string below `message` to `longest` bytes, and every list to `count` items."""
    for field, value in message.ListFields():
        if field.is_repeated:
            del value[count:]
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                _cut(inner, longest, count)
        elif field.type == FieldDescriptor.TYPE_STRING and not _is_id(field):
            if field.is_repeated:
                value[:] = [begin(text, longest) for text in value]
            else:
                setattr(message, field.name, begin(value, longest))
