"""From an event to what people read. Pure: no terminal, no clock, no state.

Every event gives one Piece. How pieces are laid out (a gutter for `tail`, paragraphs for `attach`) is
decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sessiond.v1 import event_pb2, session_pb2

from .words import attachment, duration, one_line, printable, shorten, tokens, word

__all__ = ["RENDERERS", "Piece", "question_lines", "render"]

_MOST_OUTPUT = 4_000
_PLAN_MARKS = {
    event_pb2.PLAN_ITEM_STATE_PENDING: "[ ]",
    event_pb2.PLAN_ITEM_STATE_IN_PROGRESS: "[>]",
    event_pb2.PLAN_ITEM_STATE_DONE: "[x]",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event shows.

    `label` is a short word for the kind. `text` is safe for a terminal and has no line end of its own,
    except where `stream` is set: then it is a part of a running text, which the next piece with the same
    `stream` continues. `style` is one of rich's. `markdown`: the text is meant as such. `minor`: of no
    interest to somebody who watches a conversation. `nested`: a sub-agent's.
    """

    label: str
    text: str
    style: str = ""
    stream: str = ""
    markdown: bool = False
    minor: bool = False
    nested: bool = False


Renderer = Callable[[event_pb2.Event], Piece]


def render(event: event_pb2.Event) -> Piece:
    """Return what the event shows; a kind that this program does not know says so."""
    kind = event.WhichOneof("body")
    renderer = RENDERERS.get(kind) if kind else None
    piece = renderer(event) if renderer else _unknown(event)
    if event.actor and not piece.stream:
        piece = replace(piece, text=f"[{event.actor}] {piece.text}")
    return replace(piece, text=printable(piece.text), nested=bool(event.parent_tool_id))


def _unknown(event: event_pb2.Event) -> Piece:
    advice = "it may be skipped" if event.ignorable else "a newer sessionctl can show it"
    return Piece(
        "?", f"an event of a kind this sessionctl does not know: {advice}", "dim", minor=event.ignorable
    )


def _body(text: str) -> str:
    """Return a text of several lines, cut when it is very long."""
    return shorten(text.rstrip("\r\n"), _MOST_OUTPUT)


def _with_attachments(text: str, attachments: list[session_pb2.Attachment]) -> str:
    return "\n".join([text, *(f"+ {attachment(item)}" for item in attachments)])


def _from(sender: str) -> str:
    return f"[from session {one_line(sender)}] " if sender else ""


# --- text ---------------------------------------------------------------------------------------


def _assistant_text(event: event_pb2.Event) -> Piece:
    body = event.assistant_text
    key = f"text {event.parent_tool_id} {body.block_id}"
    return Piece("text", body.delta, stream=key, markdown=True)


def _reasoning(event: event_pb2.Event) -> Piece:
    body = event.reasoning
    key = f"reasoning {event.parent_tool_id} {body.block_id}"
    return Piece("thinking", body.delta, "dim italic", stream=key)


def _retracted(event: event_pb2.Event) -> Piece:
    since = event.retracted.since_seq
    return Piece("retracted", f"what was said since event {since} is void: it is said again", "yellow")


def _peer_message(event: event_pb2.Event) -> Piece:
    body = event.peer_message
    return Piece("peer", f"[{one_line(body.sender)}] {_body(body.text)}", "magenta")


# --- tools --------------------------------------------------------------------------------------


def _tool_started(event: event_pb2.Event) -> Piece:
    body = event.tool_started
    what = one_line(body.title) or one_line(body.input_json, 400)
    if body.HasField("full_input"):
        what = f"{what} input: {attachment(body.full_input)}".strip()
    return Piece("tool", f"{one_line(body.tool)} {what}".rstrip(), "cyan")


def _tool_updated(event: event_pb2.Event) -> Piece:
    body = event.tool_updated
    if body.replace:
        return Piece("output", f"(now) {_body(body.output)}", "dim")
    return Piece("output", body.output, "dim", stream=f"output {body.tool_id}")


def _tool_ended(event: event_pb2.Event) -> Piece:
    body = event.tool_ended
    outcome = word(event_pb2.ToolOutcome.Name, body.outcome, "TOOL_OUTCOME")
    lines = [outcome]
    if body.output:
        lines.append(_body(body.output))
    if body.HasField("full_output"):
        lines.append(f"all of it: {attachment(body.full_output)}")
    style = "cyan" if body.outcome == event_pb2.TOOL_OUTCOME_SUCCEEDED else "red"
    return Piece("tool end", "\n".join(lines), style)


def _attachment_added(event: event_pb2.Event) -> Piece:
    return Piece("attached", attachment(event.attachment_added.attachment), "cyan")


# --- messages and commands ----------------------------------------------------------------------


def _user_message(event: event_pb2.Event) -> Piece:
    body = event.user_message
    text = _with_attachments(_from(body.sender) + _body(body.text), list(body.attachments))
    return Piece("user", text, "bold green")


def _message_queued(event: event_pb2.Event) -> Piece:
    body = event.message_queued
    delivery = word(session_pb2.Delivery.Name, body.delivery, "DELIVERY")
    text = f"{body.message_id} ({delivery}) {_from(body.sender)}{_body(body.text)}"
    return Piece("queued", _with_attachments(text, list(body.attachments)), "green", minor=True)


def _message_edited(event: event_pb2.Event) -> Piece:
    body = event.message_edited
    text = f"{body.message_id} (revision {body.revision}) {_body(body.text)}"
    return Piece("edited", _with_attachments(text, list(body.attachments)), "green", minor=True)


def _message_moved(event: event_pb2.Event) -> Piece:
    body = event.message_moved
    place = f"before {body.before_message_id}" if body.before_message_id else "to the end"
    return Piece("moved", f"{body.message_id} {place}", "green", minor=True)


def _message_dropped(event: event_pb2.Event) -> Piece:
    return Piece("dropped", f"{event.message_dropped.message_id} will not be read", "yellow")


def _command_queued(event: event_pb2.Event) -> Piece:
    body = event.command_queued
    return Piece("queued", f"{body.command_id} {_body(body.text)}", "green", minor=True)


def _command_sent(event: event_pb2.Event) -> Piece:
    return Piece("command", _body(event.command_sent.text), "bold green")


def _command_output(event: event_pb2.Event) -> Piece:
    return Piece("output", _body(event.command_output.text))


def _command_dropped(event: event_pb2.Event) -> Piece:
    return Piece("dropped", f"{event.command_dropped.command_id} will not run", "yellow")


# --- questions ----------------------------------------------------------------------------------


def question_lines(question: event_pb2.QuestionAsked) -> list[str]:
    """Return a question with its numbered options, one line each, previews below their options."""
    header = f"[{one_line(question.header)}] " if question.header else ""
    lines = [header + _body(question.prompt)]
    for number, option in enumerate(question.options, 1):
        described = f" - {one_line(option.description)}" if option.description else ""
        lines.append(f"  {number}. {one_line(option.label)}{described}")
        if option.preview:
            lines += [f"       {line}" for line in _body(option.preview).split("\n")]
    hints = []
    if question.multi_select:
        hints.append("several may be chosen")
    if question.allow_text:
        hints.append("or answer in your own words" if question.options else "answer in your own words")
    if hints:
        lines.append(f"  ({'; '.join(hints)})")
    return lines


def _question_asked(event: event_pb2.Event) -> Piece:
    body = event.question_asked
    lines = question_lines(body)
    return Piece("question", "\n".join([f"{body.question_id} {lines[0]}", *lines[1:]]), "bold yellow")


def _question_answered(event: event_pb2.Event) -> Piece:
    body = event.question_answered
    answers = ", ".join(one_line(answer) for answer in body.answers) or "(not shown)"
    note = f" - {one_line(body.note)}" if body.note else ""
    return Piece("answer", f"{body.question_id} {answers}{note}", "yellow")


def _question_withdrawn(event: event_pb2.Event) -> Piece:
    body = event.question_withdrawn
    reason = word(event_pb2.WithdrawReason.Name, body.reason, "WITHDRAW_REASON")
    return Piece("withdrawn", f"{body.question_id} {reason}", "yellow")


# --- the session --------------------------------------------------------------------------------


def _state_changed(event: event_pb2.Event) -> Piece:
    state = word(session_pb2.SessionState.Name, event.state_changed.state, "SESSION_STATE")
    return Piece("state", state, "blue", minor=True)


def _settings_changed(event: event_pb2.Event) -> Piece:
    body = event.settings_changed
    parts = []
    if body.HasField("model"):
        parts.append(f"model {one_line(body.model)}")
    if body.HasField("permission_mode"):
        parts.append(f"permission mode {one_line(body.permission_mode)}")
    if body.HasField("effort"):
        parts.append(f"effort {one_line(body.effort) or '(default)'}")
    if body.HasField("title"):
        parts.append(f"title {one_line(body.title)}")
    return Piece("settings", ", ".join(parts) or "nothing changed", "blue")


def _options_reported(event: event_pb2.Event) -> Piece:
    body = event.options_reported
    groups = {
        "models": body.models,
        "permission modes": body.permission_modes,
        "efforts": body.efforts,
        "commands": body.commands,
    }
    lines = [
        f"{name}: {one_line(', '.join(choice.id for choice in choices), 400)}"
        for name, choices in groups.items()
        if choices
    ]
    return Piece("options", "\n".join(lines) or "nothing on offer", "blue", minor=True)


def _turn_started(event: event_pb2.Event) -> Piece:
    body = event.turn_started
    origin = word(event_pb2.TurnOrigin.Name, body.origin, "TURN_ORIGIN")
    return Piece("turn", f"started ({origin})", "blue", minor=True)


def _turn_ended(event: event_pb2.Event) -> Piece:
    body = event.turn_ended
    outcome = word(event_pb2.TurnOutcome.Name, body.outcome, "TURN_OUTCOME")
    parts = [word(event_pb2.TurnEndReason.Name, body.reason, "TURN_END_REASON")]
    if body.HasField("duration"):
        parts.append(duration(body.duration))
    if body.steps:
        parts.append(f"{body.steps} steps")
    message = f": {one_line(body.message)}" if body.message else ""
    style = "blue" if body.outcome == event_pb2.TURN_OUTCOME_COMPLETED else "bold red"
    return Piece("turn end", f"{outcome} ({', '.join(parts)}){message}", style)


def _usage_reported(event: event_pb2.Event) -> Piece:
    body = event.usage_reported
    parts = [tokens(body.turn), f"session {tokens(body.total)}"]
    if body.HasField("context_tokens"):
        window = f" of {body.context_window:,}" if body.HasField("context_window") else ""
        parts.append(f"context {body.context_tokens:,}{window}")
    if body.HasField("total_cost_usd"):
        parts.append(f"${body.total_cost_usd:.4f}")
    return Piece("usage", "; ".join(parts), "dim", minor=True)


def _limit_reported(event: event_pb2.Event) -> Piece:
    body = event.limit_reported
    parts = [one_line(body.kind) or "limit", "reached" if body.reached else "not reached"]
    if body.HasField("used_fraction"):
        parts.append(f"{body.used_fraction:.0%} used")
    if body.HasField("reset_time"):
        parts.append(f"resets {body.reset_time.ToJsonString()}")
    return Piece(
        "limit", ", ".join(parts), "bold yellow" if body.reached else "dim", minor=not body.reached
    )


def _compacted(event: event_pb2.Event) -> Piece:
    body = event.compacted
    before = f"{body.pre_tokens:,}" if body.HasField("pre_tokens") else "?"
    after = f"{body.post_tokens:,}" if body.HasField("post_tokens") else "?"
    trigger = f" ({one_line(body.trigger)})" if body.HasField("trigger") else ""
    return Piece("compacted", f"{before} -> {after} tokens{trigger}", "blue")


def _cleared(_: event_pb2.Event) -> Piece:
    return Piece("cleared", "---- the agent no longer knows what is above ----", "blue")


def _retrying(event: event_pb2.Event) -> Piece:
    body = event.retrying
    most = f" of {body.max_attempts}" if body.max_attempts else ""
    text = f"attempt {body.attempt}{most} in {duration(body.delay)}: {one_line(body.reason)}"
    return Piece("retrying", text, "yellow")


def _plan_updated(event: event_pb2.Event) -> Piece:
    lines = [
        f"{_PLAN_MARKS.get(item.state, '[?]')} {one_line(item.text)}"
        for item in event.plan_updated.items
    ]
    return Piece("plan", "\n".join(lines) or "(empty)", "blue")


def _notice(event: event_pb2.Event) -> Piece:
    body = event.notice
    text = _body(body.text) or one_line(body.native_json, 400)
    kind = f"[{one_line(body.native_kind)}] " if body.native_kind else ""
    warning = body.level == event_pb2.NOTICE_LEVEL_WARNING
    return Piece("notice", kind + text, "yellow" if warning else "dim", minor=not warning)


# --- the process --------------------------------------------------------------------------------


def _process_started(event: event_pb2.Event) -> Piece:
    body = event.process_started
    version = f", version {one_line(body.agent_version)}" if body.agent_version else ""
    native = f", conversation {one_line(body.native_session_id)}" if body.native_session_id else ""
    return Piece("process", f"started: pid {body.pid}{version}{native}", "dim", minor=True)


def _process_adopted(event: event_pb2.Event) -> Piece:
    return Piece("process", f"adopted: pid {event.process_adopted.pid}", "dim", minor=True)


def _process_exited(event: event_pb2.Event) -> Piece:
    body = event.process_exited
    if body.HasField("signal"):
        how = f"killed by signal {body.signal}"
    elif body.HasField("exit_code"):
        how = f"exited with code {body.exit_code}"
    else:
        how = "gone, nobody saw how"
    failed = not body.HasField("exit_code") or body.exit_code != 0
    tail = f"\n{_body(body.stderr_tail)}" if body.stderr_tail and failed else ""
    return Piece("process", how + tail, "bold red" if failed else "dim")


def _error_raised(event: event_pb2.Event) -> Piece:
    body = event.error_raised
    return Piece("error", f"{one_line(body.reason)}: {_body(body.message)}", "bold red")


RENDERERS: Mapping[str, Renderer] = {
    "assistant_text": _assistant_text,
    "reasoning": _reasoning,
    "tool_started": _tool_started,
    "tool_updated": _tool_updated,
    "tool_ended": _tool_ended,
    "state_changed": _state_changed,
    "user_message": _user_message,
    "message_queued": _message_queued,
    "message_edited": _message_edited,
    "message_moved": _message_moved,
    "message_dropped": _message_dropped,
    "peer_message": _peer_message,
    "attachment_added": _attachment_added,
    "retracted": _retracted,
    "question_asked": _question_asked,
    "question_answered": _question_answered,
    "question_withdrawn": _question_withdrawn,
    "settings_changed": _settings_changed,
    "options_reported": _options_reported,
    "turn_started": _turn_started,
    "turn_ended": _turn_ended,
    "usage_reported": _usage_reported,
    "limit_reported": _limit_reported,
    "compacted": _compacted,
    "command_queued": _command_queued,
    "command_sent": _command_sent,
    "command_output": _command_output,
    "command_dropped": _command_dropped,
    "cleared": _cleared,
    "retrying": _retrying,
    "plan_updated": _plan_updated,
    "notice": _notice,
    "process_started": _process_started,
    "process_adopted": _process_adopted,
    "process_exited": _process_exited,
    "error_raised": _error_raised,
}
