"""Tool calls: their start in the model's message, their result in a user line, images."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import Attach, Effect, Emit
from sessiond_drivers.claude import plans, questions
from sessiond_drivers.claude.state import State
from sessiond_drivers.claude.wire import Record, dumps, obj, records, text

__all__ = ["abandoned", "background", "inputs", "progress", "result", "start"]

# How both versions begin the result of a tool that was stopped with its turn.
_STOPPED = "The user doesn't want to proceed with this tool use."


class _Block(msgspec.Struct):
    id: str = ""
    input: msgspec.Raw = msgspec.Raw(b"")


class _Message(msgspec.Struct):
    content: list[_Block] = []


class _Line(msgspec.Struct):
    message: _Message


_decode_inputs = msgspec.json.Decoder(_Line).decode


def inputs(line: bytes) -> dict[str, str]:
    """Return the inputs of the tool calls on an assistant line as they were written, by tool id."""
    try:
        blocks = _decode_inputs(line).message.content
        return {block.id: bytes(block.input).decode() for block in blocks if bytes(block.input)}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def start(state: State, block: Record, parent: str, exact: dict[str, str]) -> list[Effect]:
    """Open a tool call."""
    tool_id, tool, given = text(block, "id"), text(block, "name"), obj(block, "input")
    if not tool_id:
        return []
    if tool == "ExitPlanMode":
        # Its permission request may come without the plan that the model wrote.
        state.plans[tool_id] = text(given, "plan")
    input_json = exact.get(tool_id) or dumps(block.get("input", {}))
    effects = state.ledger.start_tool(tool_id, tool, input_json, parent, text(given, "description"))
    if effects and not parent:
        plans.started(state, tool_id, tool, given)
    return effects


def result(state: State, block: Record, record: Record) -> list[Effect]:
    """Close a tool call with its result; a permission nobody answered is settled with it."""
    tool_id = text(block, "tool_use_id")
    if tool_id not in state.ledger.tools:
        return []
    parent = state.ledger.tools[tool_id]
    outcome = _outcome(state, tool_id, block, record)
    content = block.get("content")
    effects = questions.settled_by_result(state, tool_id)
    effects += _attachments(content, tool_id, parent)
    effects += state.ledger.end_tool(tool_id, _output(content), outcome)
    effects += plans.changed(state, tool_id, outcome != ev.TOOL_OUTCOME_SUCCEEDED, record)
    state.plans.pop(tool_id, None)
    if tool_id in state.denied:
        state.denied.remove(tool_id)
    return effects


def progress(state: State, tool_id: str, line: str) -> list[Effect]:
    """Show what a running tool call is at."""
    if tool_id not in state.ledger.tools or not line:
        return []
    updated = ev.ToolUpdated(tool_id=tool_id, output=line, replace=True)
    event = ev.Event(parent_tool_id=state.ledger.tools[tool_id], tool_updated=updated)
    return [Emit(event)]


def abandoned(state: State, parent: str) -> list[Effect]:
    """Close what a sub-agent in the background left open when it ended; it was stopped then."""
    effects: list[Effect] = []
    for tool_id in [
        t for t, its_parent in state.ledger.tools.items() if parent and its_parent == parent
    ]:
        effects += questions.settled_by_result(state, tool_id)
        effects += state.ledger.end_tool(tool_id, "", ev.TOOL_OUTCOME_INTERRUPTED)
    return effects


def background(state: State) -> dict[str, str]:
    """Return the open tool calls of sub-agents that outlive the turn: their own call has ended."""
    tools = state.ledger.tools
    outliving: dict[str, str] = {}
    for tool_id, parent in tools.items():
        if parent and (parent not in tools or parent in outliving):
            outliving[tool_id] = parent
    return outliving


def _outcome(state: State, tool_id: str, block: Record, record: Record) -> ev.ToolOutcome.ValueType:
    if block.get("is_error") is not True:
        return ev.TOOL_OUTCOME_SUCCEEDED
    if tool_id in state.denied:
        return ev.TOOL_OUTCOME_DENIED
    if state.turn.interrupting or _output(block.get("content")).startswith(_STOPPED):
        return ev.TOOL_OUTCOME_INTERRUPTED
    for meta in records(record, "tool_result_meta"):
        decision = text(obj(meta, "permission_decision"), "decision")
        if text(meta, "id") == tool_id and decision == "reject":
            return ev.TOOL_OUTCOME_DENIED
    return ev.TOOL_OUTCOME_FAILED


def _output(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = records({"content": content}, "content")
    return "\n".join(part for block in blocks if (part := text(block, "text")))


def _attachments(content: Any, tool_id: str, parent: str) -> list[Effect]:
    effects: list[Effect] = []
    for block in records({"content": content}, "content"):
        source = obj(block, "source")
        if text(block, "type") not in ("image", "document") or not text(source, "data"):
            continue
        try:
            data = base64.b64decode(text(source, "data"), validate=True)
        except (binascii.Error, ValueError):
            continue
        media_type = text(source, "media_type") or "application/octet-stream"
        effects.append(Attach(data, media_type, tool_id=tool_id, parent_tool_id=parent))
    return effects
