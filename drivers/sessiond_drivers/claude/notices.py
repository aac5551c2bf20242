"""What the program prints beside the conversation: retries, limits, background work, the unknown."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import Effect, Emit
from sessiond_drivers.claude import tools
from sessiond_drivers.claude.state import State
from sessiond_drivers.claude.wire import Record, dumps, duration, integer, number, obj, text

__all__ = ["limit", "no_json", "notification", "refusal", "retry", "task_event", "unknown"]

_LARGEST_JSON = 16 * 1024
_LONGEST_TEXT = 4 * 1024
_LAST_TIME = 253402300799  # the last second of the year 9999, protobuf's limit
_LEVELS = {
    "error": ev.NOTICE_LEVEL_WARNING,
    "warning": ev.NOTICE_LEVEL_WARNING,
    "notice": ev.NOTICE_LEVEL_INFO,
    "info": ev.NOTICE_LEVEL_INFO,
    "suggestion": ev.NOTICE_LEVEL_INFO,
}


def no_json(line: str) -> list[Effect]:
    """Keep a line that is no JSON object."""
    if not line.strip():
        return []
    return [_notice(ev.NOTICE_LEVEL_DEBUG, line[:_LONGEST_TEXT], "", "")]


def unknown(record: Record) -> list[Effect]:
    """Keep a record that has no rule, with the words for people that it may hold."""
    kind = "/".join(filter(None, (text(record, "type"), text(record, "subtype"))))
    words = text(record, "content") or text(record, "message") or text(record, "text")
    level = _LEVELS.get(text(record, "level"), ev.NOTICE_LEVEL_DEBUG)
    return [_notice(level, words[:_LONGEST_TEXT], kind, _native(record))]


def retry(record: Record) -> list[Effect]:
    """The program waits before it calls the model again."""
    status = integer(record, "error_status")
    words = text(record, "error") or "unknown"
    retrying = ev.Retrying(
        attempt=_small(record, "attempt"),
        max_attempts=_small(record, "max_retries"),
        delay=duration(number(record, "retry_delay_ms")),
        reason=f"{words} ({status})" if status is not None else words,
    )
    return [Emit(ev.Event(retrying=retrying))]


def limit(state: State, record: Record) -> list[Effect]:
    """The account's usage limits have news."""
    info = obj(record, "rate_limit_info")
    reached = text(info, "status") == "rejected"
    state.turn.limit_reached = state.turn.limit_reached or reached
    report = ev.LimitReported(kind=text(info, "rateLimitType"), reached=reached)
    if (used := number(info, "utilization")) is not None:
        report.used_fraction = used
    if (seconds := integer(info, "resetsAt")) is not None and seconds <= _LAST_TIME:
        report.reset_time.CopyFrom(Timestamp(seconds=seconds))
    return [Emit(ev.Event(limit_reported=report))]


def refusal(state: State, record: Record) -> list[Effect]:
    """The model declined."""
    state.turn.refused = True
    return [
        _notice(
            ev.NOTICE_LEVEL_WARNING,
            text(record, "api_refusal_explanation") or "the model declined to answer",
            text(record, "subtype"),
            _native(record),
        )
    ]


def task_event(state: State, record: Record) -> list[Effect]:
    """Work beside the conversation began or moved on: a sub-agent, a long command."""
    tool_id, words = text(record, "tool_use_id"), text(record, "description")
    if text(record, "subtype") == "task_progress":
        return tools.progress(state, tool_id, words)
    if record.get("is_backgrounded") is not True:
        # A command of the foreground that takes a while; its tool call is on show.
        return []
    return [
        _notice(ev.NOTICE_LEVEL_INFO, f"In the background: {words}", "task_started", _native(record))
    ]


def notification(state: State, record: Record) -> list[Effect]:
    """Work beside the conversation ended; on older versions the turn that follows is the agent's own."""
    state.woken = True
    tool_id = text(record, "tool_use_id")
    if tool_id in state.ledger.tools:
        return []
    summary = text(record, "summary")[:_LONGEST_TEXT]
    notice = _notice(ev.NOTICE_LEVEL_INFO, summary, "task_notification", _native(record))
    return [*tools.abandoned(state, tool_id), notice]


def _small(record: Record, key: str) -> int:
    return min(integer(record, key) or 0, 2**31 - 1)


def _native(record: Record) -> str:
    document = dumps(record)
    return document if len(document) <= _LARGEST_JSON else ""


def _notice(level: ev.NoticeLevel.ValueType, words: str, kind: str, native: str) -> Effect:
    notice = ev.Notice(level=level, text=words, native_kind=kind, native_json=native)
    return Emit(ev.Event(ignorable=True, notice=notice))
