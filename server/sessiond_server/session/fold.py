"""How one event changes the session's state. Pure; clients may fold alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond_server import validate
from sessiond_server.session.state import Question, State
from sessiond_server.texts import begin

_MAX_CLOSED_QUESTIONS = 200
_MAX_INT64 = (1 << 63) - 1
# These stream; none of them changes the state, and they are most of a transcript.
STREAMED = frozenset({"assistant_text", "reasoning", "tool_updated"})


def _turn_started(state: State, event: ev.Event) -> None:
    state.turn_id = event.turn_started.turn_id


def _turn_ended(state: State, event: ev.Event) -> None:
    state.turn_id = ""


def bounded(text: str) -> str:
    """Return a name as the agent gave it, made one that a client could have given.

    Each stands in every Session that is sent, and most on the command line of the next start.
    """
    return begin(text.replace("\0", "\ufffd"), validate.MAX_NAME_BYTES)


def _settings_changed(state: State, event: ev.Event) -> None:
    """Take the settings over, and write them into the event as they were taken."""
    changed = event.settings_changed
    for name in ("model", "permission_mode", "effort", "title"):
        if not changed.HasField(name):
            continue
        told: str = getattr(changed, name)
        value = bounded(told)
        setattr(changed, name, value)
        setattr(state, name, value)
        if name in state.unusable:
            state.unusable.remove(name)
        # A title is one still; half the name of a model is none.
        if value != told and name != "title":
            state.unusable.append(name)


def _options_reported(state: State, event: ev.Event) -> None:
    offered = event.options_reported
    state.models = [choice.id for choice in offered.models]
    state.permission_modes = [choice.id for choice in offered.permission_modes]
    state.efforts = [choice.id for choice in offered.efforts]


def _usage_reported(state: State, event: ev.Event) -> None:
    """Add up the turn's tokens and write the session's totals into the event."""
    usage = event.usage_reported
    for name in ("input", "cache_read", "cache_write", "output"):
        # Each number fits its field; their sum need not.
        total = getattr(state.total, name) + getattr(usage.turn, name)
        setattr(state.total, name, max(-_MAX_INT64, min(_MAX_INT64, total)))
        setattr(usage.total, name, getattr(state.total, name))
    if usage.HasField("context_tokens"):
        state.context_tokens = usage.context_tokens
    if usage.HasField("context_window"):
        state.context_window = usage.context_window
    if usage.HasField("total_cost_usd"):
        state.total_cost_usd = usage.total_cost_usd


def _compacted(state: State, event: ev.Event) -> None:
    compacted = event.compacted
    state.context_tokens = compacted.post_tokens if compacted.HasField("post_tokens") else None


def _cleared(state: State, event: ev.Event) -> None:
    state.context_tokens = None


def _question_asked(state: State, event: ev.Event) -> None:
    asked = event.question_asked
    state.questions.pop(asked.question_id, None)
    state.questions[asked.question_id] = Question(
        labels=tuple(option.label for option in asked.options),
        multi_select=asked.multi_select,
        allow_text=asked.allow_text,
        secret=asked.secret,
        seq=event.seq,
    )


def _question_answered(state: State, event: ev.Event) -> None:
    answered = event.question_answered
    if answered.question_id in state.questions:
        answer = answer_digest(answered.answers, answered.note)
        state.questions[answered.question_id] = Question(answer=answer, seq=event.seq)
    _forget_closed(state)


def _question_withdrawn(state: State, event: ev.Event) -> None:
    question_id = event.question_withdrawn.question_id
    if question_id in state.questions:
        state.questions[question_id] = Question(withdrawn=True, seq=event.seq)
    _forget_closed(state)


def _forget_closed(state: State) -> None:
    closed = [key for key, question in state.questions.items() if not question.open]
    for key in closed[:-_MAX_CLOSED_QUESTIONS]:
        del state.questions[key]


def _state_changed(state: State, event: ev.Event) -> None:
    state.state = event.state_changed.state


_FOLDS: dict[str, Callable[[State, ev.Event], None]] = {
    "turn_started": _turn_started,
    "turn_ended": _turn_ended,
    "settings_changed": _settings_changed,
    "options_reported": _options_reported,
    "usage_reported": _usage_reported,
    "compacted": _compacted,
    "cleared": _cleared,
    "question_asked": _question_asked,
    "question_answered": _question_answered,
    "question_withdrawn": _question_withdrawn,
    "state_changed": _state_changed,
}


def apply(state: State, kind: str, event: ev.Event) -> None:
    """Fold one event of body `kind` into `state`; UsageReported gets its totals written."""
    fold = _FOLDS.get(kind)
    if fold is not None:
        fold(state, event)


def open_questions(state: State) -> list[str]:
    """Return the ids of the questions that wait for an answer, in the order asked."""
    return [key for key, question in state.questions.items() if question.open]


def answer_digest(answers: Sequence[str], note: str) -> bytes:
    """Return what an answer is known by: it may be long, or secret."""
    return hashlib.sha256("\0".join((note, *answers)).encode()).digest()


def tokens(state: State) -> session_pb2.Tokens:
    """Return the session's totals as they are sent."""
    total = state.total
    return session_pb2.Tokens(
        input=total.input,
        cache_read=total.cache_read,
        cache_write=total.cache_write,
        output=total.output,
    )
