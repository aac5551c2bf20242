"""One rule for each kind of line. A rule returns None when the line makes no sense as things stand."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from sessiond.v1 import error_reason_pb2, session_pb2, session_service_pb2
from sessiond.v1 import event_pb2 as ev
from sessiond_drivers import notices
from sessiond_drivers.base import Attach, Dropped, Effect, Emit, Identified, Retract, Taken
from sessiond_drivers.echo import records
from sessiond_drivers.echo.state import SETTINGS, State, error

Rule: TypeAlias = Callable[[State, Any], list[Effect] | None]

_NO_TYPE = "application/octet-stream"
_MILLISECOND = 1_000_000
_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_ORIGINS = {
    "message": ev.TURN_ORIGIN_MESSAGE,
    "command": ev.TURN_ORIGIN_COMMAND,
    "agent": ev.TURN_ORIGIN_AGENT,
}
_OUTCOMES = {
    "done": ev.TURN_OUTCOME_COMPLETED,
    "interrupted": ev.TURN_OUTCOME_INTERRUPTED,
    "failed": ev.TURN_OUTCOME_FAILED,
}
_PREFIX = "TURN_END_REASON_"
_REASONS = {
    name.removeprefix(_PREFIX).lower(): value
    for name, value in ev.TurnEndReason.items()
    if value != ev.TURN_END_REASON_UNSPECIFIED
}
_DEFAULT_REASONS = {
    "done": ev.TURN_END_REASON_DONE,
    "interrupted": ev.TURN_END_REASON_INTERRUPTED,
    "failed": ev.TURN_END_REASON_MODEL_ERROR,
}
_TOOL_OUTCOMES = {
    "ok": ev.TOOL_OUTCOME_SUCCEEDED,
    "error": ev.TOOL_OUTCOME_FAILED,
    "denied": ev.TOOL_OUTCOME_DENIED,
}
_DROPPED = session_service_pb2.UNQUEUE_OUTCOME_DROPPED
_ALREADY_SENT = session_service_pb2.UNQUEUE_OUTCOME_ALREADY_SENT
_UNQUEUE_OUTCOMES = {
    "dropped": _DROPPED,
    "read": _ALREADY_SENT,
    "unknown": session_service_pb2.UNQUEUE_OUTCOME_UNKNOWN,
}
_OPTION_KINDS = {
    "allow_once": ev.OPTION_KIND_ALLOW_ONCE,
    "allow_always": ev.OPTION_KIND_ALLOW_ALWAYS,
    "reject_once": ev.OPTION_KIND_REJECT_ONCE,
    "reject_always": ev.OPTION_KIND_REJECT_ALWAYS,
}
_WITHDRAW_REASONS = {
    "expired": ev.WITHDRAW_REASON_EXPIRED,
    "elsewhere": ev.WITHDRAW_REASON_RESOLVED_ELSEWHERE,
}
_PLAN_STATES = {
    "todo": ev.PLAN_ITEM_STATE_PENDING,
    "doing": ev.PLAN_ITEM_STATE_IN_PROGRESS,
    "done": ev.PLAN_ITEM_STATE_DONE,
}
_LEVELS = {
    "debug": ev.NOTICE_LEVEL_DEBUG,
    "info": ev.NOTICE_LEVEL_INFO,
    "warning": ev.NOTICE_LEVEL_WARNING,
}


# --- the conversation and what it can do ---


def _hello(state: State, line: records.Hello) -> list[Effect] | None:
    if state.ready:
        return None
    state.ready = True
    changed = {name: getattr(line, name) for name in SETTINGS if getattr(line, name)}
    effects: list[Effect] = [Identified(line.session, line.version)]
    effects += _offer(state, line.options)
    return [*effects, *_confirm(state, changed), *state.say_state()]


def _options(state: State, line: records.Options) -> list[Effect]:
    return _offer(state, line)


def _offer(state: State, line: records.Options | records.Offer) -> list[Effect]:
    state.commands = [command.id for command in line.commands]
    reported = ev.OptionsReported(
        models=[_choice(option) for option in line.models],
        permission_modes=[_choice(option) for option in line.modes],
        efforts=[_choice(option) for option in line.efforts],
        commands=[_choice(option) for option in line.commands],
    )
    return [Emit(ev.Event(options_reported=reported))]


def _choice(option: records.Option) -> session_pb2.Choice:
    return session_pb2.Choice(
        id=option.id, label=option.label or option.id, description=option.description
    )


def _settings(state: State, line: records.Settings) -> list[Effect] | None:
    changed = {name: value for name in SETTINGS if (value := getattr(line, name)) is not None}
    if not changed or (line.request and not state.close_request(line.request, *_named(changed))):
        return None
    return _confirm(state, changed)


def _confirm(state: State, changed: dict[str, str]) -> list[Effect]:
    if not changed:
        return []
    state.settings.update(changed)
    return [Emit(ev.Event(settings_changed=ev.SettingsChanged(**_named(changed))))]


def _named(changed: dict[str, str]) -> dict[str, str]:
    """Return settings by the contract's names."""
    return {SETTINGS[name]: value for name, value in changed.items()}


def _refused(state: State, line: records.Refused) -> list[Effect] | None:
    if not line.request:
        return [error(error_reason_pb2.ERROR_REASON_SETTING_REFUSED, line.message)]
    if line.request not in state.requests:
        return None
    return [state.failed(line.request, line.message), *state.say_state()]


def _status(state: State, line: records.Status) -> list[Effect]:
    """The truth after an adoption: what the agent does not know of is over."""
    effects: list[Effect] = []
    for question_id in list(state.ledger.questions):
        if question_id not in line.questions:
            effects += state.ledger.withdraw_question(question_id, ev.WITHDRAW_REASON_RESOLVED_ELSEWHERE)
    if not line.busy:
        message = "the agent says that nothing runs"
        effects += state.ledger.end_turn(
            ev.TURN_OUTCOME_FAILED, ev.TURN_END_REASON_MODEL_ERROR, message=message
        )
    known = state.settings
    changed = {name: value for name in SETTINGS if (value := getattr(line, name)) != known.get(name, "")}
    return [*effects, *_confirm(state, changed), *state.say_state()]


# --- messages and turns ---


def _turn(state: State, line: records.Turn) -> list[Effect] | None:
    origin = _ORIGINS.get(line.origin)
    if origin is None or state.ledger.turn_id:
        return None
    return state.ledger.start_turn(origin)


def _end(state: State, line: records.End) -> list[Effect] | None:
    outcome = _OUTCOMES.get(line.outcome)
    if outcome is None or not state.ledger.turn_id:
        return None
    reason = _REASONS.get(line.reason, _DEFAULT_REASONS[line.outcome])
    state.close_request(line.request, "compact", "command")
    ended = state.ledger.end_turn(outcome, reason, line.message, line.ms, line.steps)
    return [*ended, *state.say_state()]


def _read(state: State, line: records.Read) -> list[Effect] | None:
    if not state.resolve(line.id, _ALREADY_SENT):
        return None
    return [Taken(line.id), *state.say_state()]


def _dropped(state: State, line: records.Dropped) -> list[Effect] | None:
    if not state.resolve(line.id, _DROPPED):
        return None
    return [Dropped(line.id), *state.say_state()]


def _unqueued(state: State, line: records.Unqueued) -> list[Effect] | None:
    outcome = _UNQUEUE_OUTCOMES.get(line.outcome)
    if outcome is None or line.id not in state.unqueues:
        return None
    settled = state.settle(line.id, outcome)
    effects: list[Effect] = []
    # Handed over and denied by the agent, it will never be read either.
    waited = settled.outcome != _ALREADY_SENT and state.resolve(line.id, _DROPPED)
    if waited and settled.outcome != _DROPPED:
        effects.append(Dropped(line.id))
    return [*effects, settled, *state.say_state()]


# --- tools, files, questions ---


def _tool(state: State, line: records.Tool) -> list[Effect] | None:
    if not line.id:
        return None
    given = bytes(line.input).decode("utf-8", "replace")
    return state.ledger.start_tool(line.id, line.name, given, line.parent, line.title) or None


def _tool_end(state: State, line: records.ToolEnd) -> list[Effect] | None:
    outcome = _TOOL_OUTCOMES.get(line.outcome)
    if outcome is None:
        return None
    return state.ledger.end_tool(line.id, line.output, outcome) or None


def _file(state: State, line: records.File) -> list[Effect] | None:
    try:
        data = binascii.a2b_base64(line.data, strict_mode=True)
    except ValueError:
        return None
    return [Attach(data, line.media_type or _NO_TYPE, line.name, line.tool, line.parent)]


def _ask(state: State, line: records.Ask) -> list[Effect] | None:
    if not line.id:
        return None
    options = [
        ev.QuestionOption(
            label=option.label,
            description=option.description,
            preview=option.preview,
            kind=_OPTION_KINDS.get(option.kind, ev.OPTION_KIND_UNSPECIFIED),
        )
        for option in line.options
    ]
    asked = ev.QuestionAsked(
        question_id=line.id,
        prompt=line.prompt,
        header=line.header,
        options=options,
        multi_select=line.multi,
        allow_text=line.text,
        tool_id=line.tool,
        group_id=line.group,
        secret=line.secret,
        expire_time=Timestamp(seconds=line.expires) if line.expires else None,
    )
    return state.ledger.ask(asked, line.parent) or None


def _ask_end(state: State, line: records.AskEnd) -> list[Effect] | None:
    reason = _WITHDRAW_REASONS.get(line.reason)
    if reason is None or line.id not in state.ledger.questions:
        return None
    return [*state.ledger.withdraw_question(line.id, reason), *state.say_state()]


# --- what the agent tells besides ---


def _retract(state: State, line: records.Retract) -> list[Effect]:
    return [Retract(line.mark)]


def _usage(state: State, line: records.Usage) -> list[Effect]:
    tokens = session_pb2.Tokens(
        input=line.input, cache_read=line.cache_read, cache_write=line.cache_write, output=line.output
    )
    usage = ev.UsageReported(
        turn=tokens,
        context_tokens=line.context,
        context_window=line.window,
        total_cost_usd=line.cost,
    )
    return [Emit(ev.Event(usage_reported=usage, parent_tool_id=line.parent))]


def _compacting(state: State, line: records.Compacting) -> list[Effect]:
    return state.ledger.change_state(session_pb2.SESSION_STATE_COMPACTING)


def _compacted(state: State, line: records.Compacted) -> list[Effect]:
    compacted = ev.Compacted(pre_tokens=line.pre, post_tokens=line.post, trigger=line.trigger)
    return [Emit(ev.Event(compacted=compacted)), *state.say_state()]


def _cleared(state: State, line: records.Cleared) -> list[Effect] | None:
    if line.request and not state.close_request(line.request, "clear"):
        return None
    return [Emit(ev.Event(cleared=ev.Cleared())), *state.say_state()]


def _plan(state: State, line: records.Plan) -> list[Effect]:
    items = [
        ev.PlanItem(text=item.text, state=_PLAN_STATES.get(item.state, ev.PLAN_ITEM_STATE_PENDING))
        for item in line.items
    ]
    return [Emit(ev.Event(plan_updated=ev.PlanUpdated(items=items), parent_tool_id=line.parent))]


def _retry(state: State, line: records.Retry) -> list[Effect]:
    seconds, rest = divmod(line.delay_ms, 1000)
    retrying = ev.Retrying(
        attempt=line.attempt,
        max_attempts=line.max,
        delay=Duration(seconds=seconds, nanos=rest * _MILLISECOND),
        reason=line.reason,
    )
    return [Emit(ev.Event(retrying=retrying, parent_tool_id=line.parent))]


def _limit(state: State, line: records.Limit) -> list[Effect]:
    reported = ev.LimitReported(
        kind=line.limit,
        reached=line.reached,
        used_fraction=line.used,
        reset_time=None if line.resets is None else Timestamp(seconds=line.resets),
    )
    return [Emit(ev.Event(limit_reported=reported))]


def _output(state: State, line: records.Output) -> list[Effect] | None:
    request = state.requests.get(line.request)
    command_id = request.command_id if request else ""
    return [Emit(ev.Event(command_output=ev.CommandOutput(command_id=command_id, text=line.text)))]


def _peer(state: State, line: records.Peer) -> list[Effect]:
    peer = ev.PeerMessage(message_id=line.id, sender=line.sender, text=line.text)
    return [Emit(ev.Event(peer_message=peer, parent_tool_id=line.parent))]


def _notice(state: State, line: records.Notice) -> list[Effect]:
    level = _LEVELS.get(line.level, ev.NOTICE_LEVEL_INFO)
    return [notices.notice(line.text, level, parent=line.parent)]


def _error(state: State, line: records.Error) -> list[Effect]:
    reason = line.reason if _REASON.fullmatch(line.reason) else "AGENT_FAILED"
    raised = ev.ErrorRaised(reason=reason, message=line.message)
    return [Emit(ev.Event(error_raised=raised, parent_tool_id=line.parent))]


def _bad_input(state: State, line: records.BadInput) -> list[Effect]:
    text = f"the agent could not read a line ({line.message}): {line.line}"
    return [notices.notice(text, ev.NOTICE_LEVEL_WARNING, "bad_input")]


TRANSLATE: dict[type, Rule] = {
    records.Hello: _hello,
    records.Options: _options,
    records.Settings: _settings,
    records.Refused: _refused,
    records.Status: _status,
    records.Turn: _turn,
    records.End: _end,
    records.Read: _read,
    records.Dropped: _dropped,
    records.Unqueued: _unqueued,
    records.Tool: _tool,
    records.ToolEnd: _tool_end,
    records.File: _file,
    records.Ask: _ask,
    records.AskEnd: _ask_end,
    records.Retract: _retract,
    records.Usage: _usage,
    records.Compacting: _compacting,
    records.Compacted: _compacted,
    records.Cleared: _cleared,
    records.Plan: _plan,
    records.Retry: _retry,
    records.Limit: _limit,
    records.Output: _output,
    records.Peer: _peer,
    records.Notice: _notice,
    records.Error: _error,
    records.BadInput: _bad_input,
}
