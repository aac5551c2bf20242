"""Lines that no rule of a driver maps: kept as notices, whole."""

from __future__ import annotations

from sessiond.v1 import event_pb2 as ev
from sessiond_drivers import jsonl
from sessiond_drivers.base import Emit

__all__ = ["NOT_JSON", "notice", "unmapped"]

# The native kind of a line that is no JSON object.
NOT_JSON = "not-json"


def notice(
    text: str,
    level: ev.NoticeLevel.ValueType = ev.NOTICE_LEVEL_INFO,
    kind: str = "",
    native_json: str = "",
    parent: str = "",
) -> Emit:
    """Say something that has no event of its own. All text must be valid (see jsonl.clean)."""
    body = ev.Notice(level=level, text=text, native_kind=kind, native_json=native_json)
    return Emit(ev.Event(ignorable=True, parent_tool_id=parent, notice=body))


def unmapped(line: bytes, kind_field: str, why: str = "unmapped record") -> Emit:
    """Keep a line that means nothing to the driver: its JSON, or its text when it is no JSON object.

    `kind_field` names the field of a record that says its kind. Any bytes are accepted. The text of a
    record is `why`, its JSON stays as the agent wrote it.
    """
    record = jsonl.decode(line)
    text = jsonl.text_of(line)
    if record is None:
        return notice(text, ev.NOTICE_LEVEL_WARNING, NOT_JSON)
    kind = record.get(kind_field)
    return notice(why, ev.NOTICE_LEVEL_DEBUG, kind if isinstance(kind, str) else "", text)
