"""Messages: handing them over, the moment each is read, taking them back.

Newer versions write a `command_lifecycle` line for each step of every line that we wrote; then nothing
else counts. Older ones echo a message when they read it into a running turn, but late when it starts
one: there the turn's `init` takes the oldest that waits, unless the turn was the agent's own.
"""

from __future__ import annotations

import base64
import uuid

from sessiond.v1 import error_reason_pb2, session_service_pb2
from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import Content, Dropped, Effect, Emit, Message, Settle, Taken, Write
from sessiond_drivers.claude.state import Pending, State, Waiting, WaitingKind
from sessiond_drivers.claude.wire import Record, control_request, dumps, text

__all__ = [
    "begin_oldest",
    "echoed",
    "hand_over",
    "lifecycle",
    "settled",
    "unqueue",
    "write_line",
]

_NAMESPACE = uuid.UUID("8d0f3a5e-7c7b-5a0e-9a0c-6f3f0b6f2f61")
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def hand_over(state: State, message: Message) -> list[Effect]:
    """Write a message; it waits in the agent until it is read."""
    blocks = [_attached(content) for content in message.attachments]
    if message.text or not blocks:
        blocks.append({"type": "text", "text": _as_text(message.text)})
    content = blocks[0]["text"] if len(blocks) == 1 and "text" in blocks[0] else blocks
    kind: WaitingKind = "append" if message.append else "message"
    return [write_line(state, message.message_id, kind, content)]


def write_line(state: State, message_id: str, kind: WaitingKind, content: object) -> Write:
    """Return the user line for a message or command and remember that it waits."""
    native_id = _native_id(state, message_id)
    state.waiting.append(Waiting(native_id, message_id, kind))
    record: Record = {
        "type": "user",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
        "uuid": native_id,
    }
    if kind == "append":
        record["shouldQuery"] = False
    return Write(dumps(record).encode() + b"\n")


def lifecycle(state: State, record: Record) -> list[Effect]:
    """Take what the agent says of a line that we wrote."""
    state.lifecycle = True
    native_id, stage = text(record, "command_uuid"), text(record, "state")
    entry = _waiting(state, native_id)
    if stage == "started":
        if entry:
            return _begin(state, entry)
        # A line of the agent's own, for example when it takes up an interrupted turn.
        return [] if state.turn.appending else state.ledger.start_turn(ev.TURN_ORIGIN_AGENT)
    if stage == "cancelled" and entry:
        return _cancelled(state, entry)
    return []


def echoed(state: State, record: Record) -> list[Effect]:
    """Take the echo of a line that we wrote, where nothing better says that it was read."""
    if state.lifecycle:
        return []
    entry = _waiting(state, text(record, "uuid"))
    if entry is None:
        return []
    state.turn.echoed = not state.ledger.turn_id
    return _begin(state, entry)


def begin_oldest(state: State) -> list[Effect]:
    """A turn begins and nothing says whose: it is that of the line that waits longest."""
    return _begin(state, state.waiting[0]) if state.waiting else []


def unqueue(state: State, message_id: str) -> list[Effect]:
    """Ask for a message back."""
    for pending in state.pending.values():
        if pending.verb == "unqueue" and pending.subject == message_id:
            pending.times += 1
            return []
    for entry in state.waiting:
        if entry.message_id == message_id:
            request_id = state.request("unqueue", message_id)
            fields = {"message_uuid": entry.native_id}
            return [Write(control_request(request_id, "cancel_async_message", **fields))]
    return _settle(Pending("unqueue", message_id), session_service_pb2.UNQUEUE_OUTCOME_ALREADY_SENT)


def settled(state: State, pending: Pending, cancelled: bool) -> list[Effect]:
    """Take the agent's answer to `unqueue`, or (as cancelled) its end."""
    unread = [entry for entry in state.waiting if entry.message_id == pending.subject]
    if not cancelled or not unread:
        return _settle(pending, session_service_pb2.UNQUEUE_OUTCOME_ALREADY_SENT)
    state.waiting.remove(unread[0])
    return _settle(pending, session_service_pb2.UNQUEUE_OUTCOME_DROPPED)


def _settle(pending: Pending, outcome: session_service_pb2.UnqueueOutcome.ValueType) -> list[Effect]:
    return [Settle(pending.subject, outcome) for _ in range(pending.times)]


def _waiting(state: State, native_id: str) -> Waiting | None:
    return next((entry for entry in state.waiting if entry.native_id == native_id), None)


def _begin(state: State, entry: Waiting) -> list[Effect]:
    state.waiting.remove(entry)
    if entry.kind == "command":
        if state.command and state.command.native_id == entry.native_id:
            state.command.running = True
        return state.ledger.start_turn(ev.TURN_ORIGIN_COMMAND)
    state.asked, state.unsaved = True, ""
    if entry.kind == "append":
        state.turn.appending = not state.ledger.turn_id
        return [Taken(entry.message_id)]
    return [*state.ledger.start_turn(ev.TURN_ORIGIN_MESSAGE), Taken(entry.message_id)]


def _cancelled(state: State, entry: Waiting) -> list[Effect]:
    if any(p.verb == "unqueue" and p.subject == entry.message_id for p in state.pending.values()):
        # The response to that request follows and settles it.
        return []
    state.waiting.remove(entry)
    if entry.kind != "command":
        return [Dropped(entry.message_id)]
    state.command = None
    reason = error_reason_pb2.ErrorReason.Name(error_reason_pb2.ERROR_REASON_COMMAND_FAILED)
    raised = ev.ErrorRaised(
        reason=reason.removeprefix("ERROR_REASON_"), message="the agent dropped the command unread"
    )
    return [Emit(ev.Event(error_raised=raised))]


def _native_id(state: State, message_id: str) -> str:
    # A process that resumed a conversation swallows an id that the conversation has seen, even when
    # its message was never answered.
    if state.process == 1:
        return message_id
    return str(uuid.uuid5(_NAMESPACE, f"{message_id}/{state.process}"))


def _as_text(words: str) -> str:
    # A text that begins with a slash would run as a command; with a space before it, it does not.
    return f" {words}" if words.startswith("/") else words


def _attached(content: Content) -> Record:
    if content.media_type in _IMAGES or content.media_type == "application/pdf":
        data = base64.b64encode(content.data).decode()
        source = {"type": "base64", "media_type": content.media_type, "data": data}
        kind = "image" if content.media_type in _IMAGES else "document"
        return {"type": kind, "source": source}
    name = content.filename or content.ref
    words = f"Attached file {name} ({content.media_type}): {content.path}"
    return {"type": "text", "text": words}
