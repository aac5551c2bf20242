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

_PREVIEW = 16 * 1024
# Room for what is written last: the time, the seq, totals.
_STAMP = 128
# Room for the envelope and for what else the body holds.
_SLACK = 4096
_STREAMED = {"assistant_text": "delta", "reasoning": "delta", "command_output": "text"}


def shrink(
    event: ev.Event, most: int
) -> tuple[list[ev.Event], list[tuple[session_pb2.Attachment, bytes]]]:
    """Return `event` as events of at most `most` bytes each, and attachments to store with them."""
    most -= _STAMP
    if event.ByteSize() <= most:
        return [event], []
    kind = event.WhichOneof("body") or ""
    if kind in _STREAMED:
        return list(_pieces(event, kind, _STREAMED[kind], most - _SLACK)), []
    blobs: list[tuple[session_pb2.Attachment, bytes]] = []
    if kind == "tool_ended":
        _detach(event.tool_ended, "output", "full_output", "text/plain; charset=utf-8", blobs)
    elif kind == "tool_started":
        _detach(event.tool_started, "input_json", "full_input", "application/json", blobs)
        event.tool_started.input_json = ""
    elif kind == "tool_updated":
        attached = _attach(event.tool_updated.output, "text/plain; charset=utf-8", blobs)
        event.tool_updated.output = preview(event.tool_updated.output)
        added = ev.Event(parent_tool_id=event.parent_tool_id)
        added.attachment_added.attachment.CopyFrom(attached)
        added.attachment_added.tool_id = event.tool_updated.tool_id
        return [event, added], blobs
    elif kind == "notice":
        attached = _attach(event.notice.native_json or event.notice.text, "application/json", blobs)
        event.notice.native_json = ""
        event.notice.text = preview(event.notice.text)
        added = ev.Event(ignorable=True)
        added.attachment_added.attachment.CopyFrom(attached)
        return [event, added], blobs
    if event.ByteSize() > most:
        _cut_strings(event, max(256, most // 64))
    return [event], blobs


def preview(text: str) -> str:
    """Return the beginning of `text`, as it stands before its attachment."""
    return text.encode()[:_PREVIEW].decode("utf-8", "ignore")


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
    start = 0
    while start < len(data):
        end = min(start + most, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:  # not inside a character
            end -= 1
        piece = ev.Event()
        piece.CopyFrom(rest)
        setattr(getattr(piece, kind), field, data[start:end].decode())
        yield piece
        start = end


def _cut_strings(message: Message, most: int) -> None:
    """Shorten every string below `message` to `most` bytes: the last resort for what nobody expected."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                for index, text in enumerate(value):
                    value[index] = text.encode()[:most].decode("utf-8", "ignore")
            else:
                setattr(message, field.name, value.encode()[:most].decode("utf-8", "ignore"))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.is_repeated:
                del value[64:]
            for inner in value if field.is_repeated else [value]:
                _cut_strings(inner, most)
