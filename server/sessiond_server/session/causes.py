"""Which call an event comes from, when it comes later than the call's own step.

Drivers do not know of calls. Each kind of request is confirmed by an event of one kind, and agents
confirm in the order they were asked: that is enough to tell.
"""

from __future__ import annotations

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond_server.session import state as states
from sessiond_server.session.state import State

# A driver that never confirms must not let the state grow.
_MAX_SETTINGS = 64
_CONFIRMATIONS = {
    states.COMPACT: "compacted",
    states.CLEAR: "cleared",
    states.RUN: "command_output",
}
# What a client did; all else was done by the agent or the server.
BY_CLIENTS = frozenset(
    {
        "user_message",
        "message_queued",
        "message_edited",
        "message_moved",
        "message_dropped",
        "question_answered",
        "settings_changed",
        "command_queued",
        "command_sent",
        "command_dropped",
    }
)


def expect(state: State, kind: str, request_id: str) -> None:
    """Let the next event of `kind` bear this request_id; nothing when there is none."""
    if request_id:
        state.awaited[kind] = request_id


def expect_command(state: State, command: str, request_id: str) -> None:
    """Let the confirmation of a command that is handed over bear this request_id."""
    state.awaited.pop(_CONFIRMATIONS[command], None)
    expect(state, _CONFIRMATIONS[command], request_id)


def expect_setting(state: State, name: str, request_id: str) -> None:
    """Let the confirmation or refusal of a setting bear this request_id, which may be empty."""
    state.pending_settings.append((name, request_id))
    del state.pending_settings[:-_MAX_SETTINGS]


def request_of(state: State, kind: str, event: ev.Event, *, calling: bool) -> str:
    """Return the request_id that `event` is the outcome of, "" for none; each is told once.

    `calling`: the event comes from within a call, and not from the agent.
    """
    if kind == "settings_changed":
        # How an agent begins is not what it was asked for: it reads that when it is ready.
        opening = state.said == session_pb2.SESSION_STATE_UNKNOWN and not calling
        return "" if opening else _confirmed(state, event.settings_changed)
    if kind == "error_raised":
        return _failed(state, event.error_raised.reason)
    if kind == "command_output":
        return state.awaited.get(kind, "")
    if kind == "turn_ended":
        state.awaited.pop("command_output", None)
    return state.awaited.pop(kind, "")


def _confirmed(state: State, changed: ev.SettingsChanged) -> str:
    found = ""
    for setting, _ in changed.ListFields():
        oldest = next((entry for entry in state.pending_settings if entry[0] == setting.name), None)
        if oldest is not None:
            state.pending_settings.remove(oldest)
            found = found or oldest[1]
    return found


def _failed(state: State, reason: str) -> str:
    if reason == "SETTING_REFUSED" and state.pending_settings:
        return state.pending_settings.pop(0)[1]
    if reason == "COMMAND_FAILED":
        waiting = next((kind for kind in _CONFIRMATIONS.values() if kind in state.awaited), "")
        return state.awaited.pop(waiting, "")
    if reason == "LAUNCH_FAILED":
        return state.awaited.pop("process_started", "")
    return ""
