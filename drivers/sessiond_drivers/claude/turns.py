"""Turns and session states: how a turn begins, how it ends and why, and the end of the process."""

from __future__ import annotations

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond_drivers.base import Effect, Emit, ExitStatus, Identified
from sessiond_drivers.claude import commands, messages, questions, settings, stream, tools, usage
from sessiond_drivers.claude.state import Pending, State, Turn
from sessiond_drivers.claude.wire import Record, integer, number, strings, text

__all__ = ["api_failed", "exited", "init", "result", "state_changed", "status", "synthetic"]

_STATES = ("idle", "running", "requires_action")

_REASONS: dict[str, ev.TurnEndReason.ValueType] = {
    "authentication_failed": ev.TURN_END_REASON_UNAUTHENTICATED,
    "oauth_org_not_allowed": ev.TURN_END_REASON_UNAUTHENTICATED,
    "billing_error": ev.TURN_END_REASON_USAGE_LIMIT,
    "rate_limit": ev.TURN_END_REASON_RATE_LIMITED,
    "max_output_tokens": ev.TURN_END_REASON_OUTPUT_LIMIT,
}
_STATUS_REASONS: dict[int | None, ev.TurnEndReason.ValueType] = {
    401: ev.TURN_END_REASON_UNAUTHENTICATED,
    403: ev.TURN_END_REASON_UNAUTHENTICATED,
    429: ev.TURN_END_REASON_RATE_LIMITED,
}
_SUBTYPE_REASONS: dict[str, ev.TurnEndReason.ValueType] = {
    "error_max_turns": ev.TURN_END_REASON_TURN_LIMIT,
    "error_max_budget_usd": ev.TURN_END_REASON_USAGE_LIMIT,
}


def state_changed(state: State, record: Record) -> list[Effect]:
    """The agent says whether it works, waits or is idle."""
    said = text(record, "state")
    if said not in _STATES:
        return []
    state.state_events = True
    in_turn, former, state.told = bool(state.ledger.turn_id), state.told, said
    if said == "requires_action":
        # The question itself follows and says it. Without a turn it is a sub-agent in the background
        # who asks: a message would be read at once.
        state.busy = in_turn
        return []
    if said == "running":
        state.busy = in_turn or former != "requires_action"
        return state.ledger.change_state(session_pb2.SESSION_STATE_RUNNING)
    state.busy = False
    state.woken = state.turn.appending = False
    effects: list[Effect] = []
    if state.ledger.turn_id:
        effects += result(state, {"subtype": "success"})
    return effects + state.ledger.change_state(session_pb2.SESSION_STATE_IDLE)


def init(state: State, record: Record) -> list[Effect]:
    """A turn is set up: its conversation, model and mode, and on older versions its begin."""
    names = [name.removeprefix("/") for name in strings(record, "slash_commands")]
    state.commands = list(dict.fromkeys([*state.commands, *names]))
    effects = commands.conversation(state, text(record, "session_id"))
    version = text(record, "claude_code_version")
    if version and version != state.agent_version:
        state.agent_version = version
        effects.append(Identified(agent_version=version))
    effects += settings.confirmed(
        state, model=text(record, "model"), mode=text(record, "permissionMode")
    )
    if not state.state_events:
        state.busy = True
    effects += _begun(state)
    state.spoken = True
    state.woken = state.turn.echoed = False
    return effects


def _begun(state: State) -> list[Effect]:
    if state.lifecycle:
        own_doing = not state.turn.appending
        return state.ledger.start_turn(ev.TURN_ORIGIN_AGENT) if own_doing else []
    if state.ledger.turn_id and not state.turn.echoed:
        return []
    if state.woken or not state.waiting:
        return state.ledger.start_turn(ev.TURN_ORIGIN_AGENT)
    return messages.begin_oldest(state)


def status(state: State, record: Record) -> list[Effect]:
    """The agent calls the model, compacts, or has another permission mode."""
    effects = settings.confirmed(state, mode=text(record, "permissionMode"))
    if text(record, "status") == "compacting":
        # Where no line tells of a command's begin, this one does: its init comes at the end.
        if not state.lifecycle and not state.ledger.turn_id:
            effects += messages.begin_oldest(state)
        return effects + state.ledger.change_state(session_pb2.SESSION_STATE_COMPACTING)
    if state.ledger.state == session_pb2.SESSION_STATE_COMPACTING and text(record, "compact_result"):
        effects += state.ledger.change_state(session_pb2.SESSION_STATE_RUNNING)
    return effects + commands.compacting_ended(state, record)


def synthetic(state: State, record: Record, words: str) -> list[Effect]:
    """Take words that the program put into the model's mouth: a failure, or a command's output."""
    if text(record, "error"):
        return api_failed(state, record, words)
    return commands.said(state, record, words)


def api_failed(state: State, record: Record, words: str) -> list[Effect]:
    """A call of the model failed for good."""
    if not text(record, "parent_tool_use_id"):
        state.turn.error = text(record, "error")
    raised = ev.ErrorRaised(reason="AGENT_FAILED", message=words or text(record, "error"))
    return [Emit(ev.Event(error_raised=raised))]


def result(state: State, record: Record) -> list[Effect]:
    """A turn ended."""
    if not state.ready and not state.spoken and record.get("is_error") is True:
        return _launch_failed(state, "\n".join(strings(record, "errors")))
    effects = stream.retract_unconfirmed(state)
    effects += usage.result(state, record)
    outcome, reason = _ending(state, record)
    effects += commands.finished(state)
    message = "" if outcome != ev.TURN_OUTCOME_FAILED else text(record, "result")
    effects += _end_turn(state, outcome, reason, message, record)
    state.turn = Turn()
    # The session may go on running by its own word, for sub-agents in the background; the next message
    # is read all the same.
    state.busy = False
    if not state.state_events:
        effects += state.ledger.change_state(session_pb2.SESSION_STATE_IDLE)
    return effects


def _end_turn(
    state: State,
    outcome: ev.TurnOutcome.ValueType,
    reason: ev.TurnEndReason.ValueType,
    message: str,
    record: Record,
) -> list[Effect]:
    ledger = state.ledger
    # Sub-agents in the background work on after the turn, with their tools and questions; an
    # interrupt ends them too.
    kept = {} if outcome == ev.TURN_OUTCOME_INTERRUPTED else tools.background(state)
    asks = {r: ask for r, ask in state.asks.items() if ask.tool_id in kept}
    asking = [part.question_id for ask in asks.values() for part in ask.parts]
    ledger.tools = {t: parent for t, parent in ledger.tools.items() if t not in kept}
    held = [q for q in ledger.questions if q in asking]
    ledger.questions = [q for q in ledger.questions if q not in asking]
    steps, ms = integer(record, "num_turns") or 0, number(record, "duration_ms")
    duration_ms = int(ms) if ms is not None and 0 <= ms <= 10**12 else None
    effects = ledger.end_turn(outcome, reason, message, duration_ms, steps)
    ledger.tools, ledger.questions, state.asks = kept, held, asks
    effects += questions.nobody_asks(state)
    if held:
        effects += ledger.change_state(session_pb2.SESSION_STATE_AWAITING_INPUT)
    state.denied = [tool_id for tool_id in state.denied if tool_id in kept]
    state.plans.clear()
    state.planning.clear()
    return effects


def _ending(state: State, record: Record) -> tuple[ev.TurnOutcome.ValueType, ev.TurnEndReason.ValueType]:
    terminal, subtype = text(record, "terminal_reason"), text(record, "subtype")
    unfinished = state.turn.interrupting and subtype == "error_during_execution"
    if terminal.startswith("aborted_") or unfinished or _compaction_stopped(state):
        return ev.TURN_OUTCOME_INTERRUPTED, ev.TURN_END_REASON_INTERRUPTED
    if record.get("is_error") is not True and subtype not in _SUBTYPE_REASONS:
        return ev.TURN_OUTCOME_COMPLETED, ev.TURN_END_REASON_DONE
    return ev.TURN_OUTCOME_FAILED, _reason(state, record)


def _compaction_stopped(state: State) -> bool:
    command = state.command
    return (
        state.turn.interrupting and command is not None and command.kind == "compact" and command.failed
    )


def _reason(state: State, record: Record) -> ev.TurnEndReason.ValueType:
    if reason := _SUBTYPE_REASONS.get(text(record, "subtype")):
        return reason
    if state.turn.refused or text(record, "stop_reason") == "refusal":
        return ev.TURN_END_REASON_REFUSED
    if text(record, "terminal_reason") == "prompt_too_long":
        return ev.TURN_END_REASON_CONTEXT_FULL
    reason = _REASONS.get(state.turn.error) or _STATUS_REASONS.get(
        integer(record, "api_error_status"), ev.TURN_END_REASON_MODEL_ERROR
    )
    if reason == ev.TURN_END_REASON_RATE_LIMITED and state.turn.limit_reached:
        return ev.TURN_END_REASON_USAGE_LIMIT
    return reason


def exited(state: State, status: ExitStatus) -> list[Effect]:
    """The process is gone: close what is open."""
    effects: list[Effect] = []
    started = state.ready or state.spoken
    if not started and not state.failed and not state.stopping:
        effects += _launch_failed(state, words) if (words := _last_words(status)) else []
    effects += commands.abandoned(state)
    for pending in [*state.pending.values(), *[Pending("model")] * state.settings.models_due]:
        effects += _unanswered(state, pending)
    state.settings.models_due = 0
    asked_to = state.stopping
    effects += state.ledger.end_turn(
        ev.TURN_OUTCOME_INTERRUPTED if asked_to else ev.TURN_OUTCOME_FAILED,
        ev.TURN_END_REASON_INTERRUPTED if asked_to else ev.TURN_END_REASON_AGENT_EXITED,
        withdraw=ev.WITHDRAW_REASON_AGENT_EXITED,
    )
    state.asks.clear()
    state.pending.clear()
    state.waiting.clear()
    state.denied.clear()
    state.plans.clear()
    state.planning.clear()
    state.turn = Turn()
    state.ready = state.busy = state.woken = False
    return effects


def _unanswered(state: State, pending: Pending) -> list[Effect]:
    if pending.verb == "unqueue":
        return messages.settled(state, pending, cancelled=True)
    if pending.verb in ("model", "mode", "effort", "title") or (
        pending.verb == "applied" and pending.subject
    ):
        return [] if pending.settled else settings.refused(pending, "the agent exited before it agreed")
    return []


def _last_words(status: ExitStatus) -> str:
    """Return why it never was ready; "" when nobody saw its end, so there is nothing to tell."""
    if words := status.stderr_tail.strip():
        return words
    if status.signal is not None:
        return f"the agent was ended by signal {status.signal} before it was ready"
    if status.exit_code is not None:
        return f"the agent exited with code {status.exit_code} before it was ready"
    return ""


def _launch_failed(state: State, words: str) -> list[Effect]:
    state.failed = True
    reason = "LAUNCH_FAILED"
    if "No conversation found" in words:
        # It was killed before it wrote down what it had named; the next start begins anew. An id that
        # it never named itself is somebody's mistake and stays one.
        reason = "RESUME_FAILED"
        if state.named == state.native_session_id:
            state.unsaved = state.named
    if "already in use" in words:
        reason = "NATIVE_SESSION_IN_USE"
    raised = ev.ErrorRaised(reason=reason, message=words or "the agent did not start")
    return [Emit(ev.Event(error_raised=raised))]
