"""What the agent says: text and reasoning, streamed or whole, and taken back after a cut stream."""

from __future__ import annotations

from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import Effect, Emit, Retract
from sessiond_drivers.claude import usage
from sessiond_drivers.claude.state import State, Stream
from sessiond_drivers.claude.wire import Record, integer, obj, text

__all__ = ["retract_unconfirmed", "stream_event", "superseded", "whole"]


def stream_event(state: State, record: Record) -> list[Effect]:
    """Take a piece of the message that the model is writing."""
    if text(record, "parent_tool_use_id"):
        # Sub-agents are told in whole lines; a version that streams them too must not say all twice.
        return []
    event = obj(record, "event")
    kind = text(event, "type")
    if kind == "content_block_delta":
        return _delta(state, event)
    if kind == "message_start":
        effects = retract_unconfirmed(state)
        message = obj(event, "message")
        state.stream = Stream(message_id=text(message, "id"))
        return effects + usage.call_started(state, obj(message, "usage"))
    if kind == "message_delta":
        return usage.call_ended(state, event)
    if kind == "message_stop":
        return _abandoned(state, obj(record, "abandoned_blocks"))
    return []


def whole(state: State, record: Record, block: Record, parent: str) -> list[Effect]:
    """Take a finished block of text or reasoning, unless its pieces were taken before."""
    kind = "thinking" if text(block, "type") == "thinking" else "text"
    content = text(block, kind)
    message_id = text(obj(record, "message"), "id")
    if not parent and message_id == state.stream.message_id:
        for entry in state.stream.open:
            if entry[1] == kind:
                state.stream.open.remove(entry)
                return []
    if not content:
        return []
    return [_said(kind, content, text(record, "uuid") or message_id, parent)]


def superseded(state: State, message_id: str) -> list[Effect]:
    """Take back what another message streamed and never finished: `message_id` says it again."""
    return [] if message_id == state.stream.message_id else retract_unconfirmed(state)


def retract_unconfirmed(state: State) -> list[Effect]:
    """Take back what was streamed and that no whole line confirmed."""
    if not state.stream.open:
        return []
    first = state.stream.open[0][0]
    state.stream.open = []
    return [Retract(_mark(state.stream.message_id, first))]


def _delta(state: State, event: Record) -> list[Effect]:
    delta = obj(event, "delta")
    kind = {"text_delta": "text", "thinking_delta": "thinking"}.get(text(delta, "type"))
    index = integer(event, "index") or 0
    if kind is None or not (content := text(delta, kind)):
        return []
    stream = state.stream
    if (index, kind) not in stream.open:
        stream.open.append((index, kind))
        stream.blocks.append(index)
    mark = _mark(stream.message_id, index)
    emit = _said(kind, content, mark)
    emit.mark = mark
    return [emit]


def _abandoned(state: State, abandoned: Record) -> list[Effect]:
    stream = state.stream
    first = integer(abandoned, "from_block_index")
    if first is None or text(abandoned, "api_message_id") != stream.message_id:
        return []
    void = [index for index in stream.blocks if index >= first]
    stream.blocks = [index for index in stream.blocks if index < first]
    stream.open = [entry for entry in stream.open if entry[0] < first]
    return [Retract(_mark(stream.message_id, min(void)))] if void else []


def _mark(message_id: str, index: int) -> str:
    return f"{message_id}/{index}"


def _said(kind: str, content: str, block_id: str, parent: str = "") -> Emit:
    event = ev.Event(parent_tool_id=parent)
    if kind == "thinking":
        event.reasoning.CopyFrom(ev.Reasoning(delta=content, block_id=block_id))
    else:
        event.assistant_text.CopyFrom(ev.AssistantText(delta=content, block_id=block_id))
    return Emit(event)
