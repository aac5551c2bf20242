"""Compact, clear and raw commands: lines with a slash, each a turn of its own.

Their failures are results like any other, so success is known by what happened: a boundary in the
context, a new conversation id.
"""

from __future__ import annotations

from sessiond.v1 import error_reason_pb2
from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import Effect, Emit, Identified, Refused
from sessiond_drivers.claude import usage
from sessiond_drivers.claude.messages import write_line
from sessiond_drivers.claude.state import Command, CommandKind, State
from sessiond_drivers.claude.wire import Record, integer, obj, text

__all__ = [
    "abandoned",
    "begun_anew",
    "check",
    "cleared",
    "compact_boundary",
    "compacting_ended",
    "conversation",
    "finished",
    "run",
    "said",
]

_KINDS: dict[str, CommandKind] = {"clear": "clear", "compact": "compact"}
_NO_CONTENT = "(no content)"
_FIELD = "run_command.text"


def check(state: State, words: str) -> str:
    """Return the name of the command in `words`. Raises Refused for none that the agent has."""
    name = words.strip().partition(" ")[0].partition("\n")[0].removeprefix("/")
    if not words.strip().startswith("/") or not name:
        raise Refused(
            error_reason_pb2.ERROR_REASON_INVALID_FIELD,
            "a command begins with a slash, for example /context; send other text as a message",
            _FIELD,
        )
    # Newer versions hand an unknown command to the model as if a person had said it.
    if state.commands and name not in state.commands:
        raise Refused(
            error_reason_pb2.ERROR_REASON_INVALID_FIELD,
            f"the agent has no command /{name}; see commands in the newest OptionsReported",
            _FIELD,
        )
    return name


def run(state: State, command_id: str, words: str) -> list[Effect]:
    """Write a command."""
    name = words.strip().partition(" ")[0].partition("\n")[0].removeprefix("/")
    write = write_line(state, command_id, "command", words.strip())
    native_id = state.waiting[-1].native_id
    state.command = Command(command_id, native_id, _KINDS.get(name, "raw"), name)
    return [write]


def compacting_ended(state: State, record: Record) -> list[Effect]:
    """Take the outcome of a compaction that did not come to its boundary."""
    if text(record, "compact_result") != "failed":
        return []
    words = text(record, "compact_error") or "the conversation could not be compacted"
    if state.command and state.command.kind == "compact":
        state.command.failed, state.command.output = True, words
        return []
    return [_raised("AGENT_FAILED", words)]


def compact_boundary(state: State, record: Record) -> list[Effect]:
    """The context was shortened."""
    metadata = obj(record, "compact_metadata")
    compacted = ev.Compacted(
        pre_tokens=integer(metadata, "pre_tokens"), post_tokens=integer(metadata, "post_tokens")
    )
    if trigger := text(metadata, "trigger"):
        compacted.trigger = trigger
    if state.command and state.command.kind == "compact":
        state.command.done = True
    usage.context_changed(state, integer(metadata, "post_tokens"))
    return [Emit(ev.Event(compacted=compacted))]


def cleared(state: State) -> list[Effect]:
    """The context was emptied."""
    if state.command and state.command.kind == "clear":
        state.command.done = True
    if state.turn.cleared:
        return []
    state.turn.cleared, state.asked = True, False
    state.todo.clear()
    usage.context_changed(state, None)
    return [Emit(ev.Event(cleared=ev.Cleared()))]


def conversation(state: State, native_session_id: str) -> list[Effect]:
    """Take the conversation's id: another one after a clear, and what a resume needs from now on."""
    if not native_session_id:
        return []
    state.named = native_session_id
    if native_session_id == state.native_session_id:
        return []
    # Another id in the same process is another conversation: older versions say of a clear no more.
    effects = cleared(state) if state.spoken else []
    state.native_session_id = native_session_id
    # The program writes a conversation down when there is something in it.
    state.unsaved = "" if state.asked else native_session_id
    return [*effects, Identified(native_session_id=native_session_id)]


def said(state: State, record: Record, words: str) -> list[Effect]:
    """Take the output of a command, which the agent words like a reply of the model."""
    command = state.command
    if not words or words == _NO_CONTENT:
        return []
    if command is None or not command.running:
        return [Emit(ev.Event(command_output=ev.CommandOutput(text=words)))]
    outcome = text(obj(record, "local_command_outcome"), "kind")
    missing = (f"/{command.name} isn't available", f"Unknown command: /{command.name}")
    if command.kind != "raw" or outcome or words.startswith(missing):
        command.failed, command.output = True, words
        return []
    command.done = True
    output = ev.CommandOutput(command_id=command.command_id, text=words)
    return [Emit(ev.Event(command_output=output))]


def begun_anew(former: State) -> list[Effect]:
    """The conversation was never written down: what is above is in nobody's context any more."""
    if not former.asked:
        return []
    words = "The agent ended before it had saved the conversation; a new one begins."
    notice = ev.Notice(level=ev.NOTICE_LEVEL_WARNING, text=words)
    return [Emit(ev.Event(ignorable=True, notice=notice)), Emit(ev.Event(cleared=ev.Cleared()))]


def finished(state: State) -> list[Effect]:
    """The command's turn ended: say so when what it is for did not happen."""
    command = state.command
    if command is None or not command.running:
        return []
    state.command = None
    if command.done or (command.kind == "raw" and not command.failed):
        return []
    return [_raised("COMMAND_FAILED", command.output or f"/{command.name} did nothing")]


def abandoned(state: State) -> list[Effect]:
    """The agent is gone in the middle of a command."""
    command, state.command = state.command, None
    if command is None or command.done:
        return []
    return [_raised("COMMAND_FAILED", f"the agent exited before /{command.name} was done")]


def _raised(reason: str, message: str) -> Effect:
    return Emit(ev.Event(error_raised=ev.ErrorRaised(reason=reason, message=message)))
