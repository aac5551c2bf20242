"""Reading records whose fields may hold anything, and writing control lines."""

from __future__ import annotations

import json
import math
from typing import Any, TypeAlias

import msgspec
from google.protobuf.duration_pb2 import Duration

__all__ = [
    "Record",
    "control_refusal",
    "control_request",
    "control_response",
    "dumps",
    "duration",
    "integer",
    "loads",
    "number",
    "obj",
    "records",
    "strings",
    "text",
]

Record: TypeAlias = dict[str, Any]

# Sums of such numbers stay far below what an int64 holds.
_LARGEST = 10**15
_LONGEST_MS = 10**14
_encode = msgspec.json.Encoder().encode


def text(record: Record, key: str) -> str:
    """Return the string under `key`, or "" when there is none."""
    value = record.get(key)
    return value if isinstance(value, str) else ""


def obj(record: Record, key: str) -> Record:
    """Return the object under `key`, or {} when there is none."""
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def records(record: Record, key: str) -> list[Record]:
    """Return the objects of the list under `key`; what is no object is left out."""
    value = record.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def strings(record: Record, key: str) -> list[str]:
    """Return the strings of the list under `key`; what is no string is left out."""
    value = record.get(key)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def integer(record: Record, key: str) -> int | None:
    """Return the number under `key` as a whole one, if it is from 0 to 10**15."""
    value = number(record, key)
    return int(value) if value is not None and 0 <= value <= _LARGEST else None


def number(record: Record, key: str) -> float | None:
    """Return the finite number under `key`, integers as they are."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def duration(milliseconds: float | None) -> Duration | None:
    """Return milliseconds as a protobuf Duration; None when there are none or too many."""
    if milliseconds is None or not 0 <= milliseconds <= _LONGEST_MS:
        return None
    seconds, rest = divmod(int(milliseconds), 1000)
    return Duration(seconds=seconds, nanos=rest * 1_000_000)


def dumps(value: Any) -> str:
    """Return `value` as JSON; order of keys and integers of any size are kept."""
    try:
        return _encode(value).decode()
    except (msgspec.MsgspecError, OverflowError, ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)


def loads(document: str) -> Record:
    """Return the object that `dumps` wrote."""
    value = json.loads(document)
    return value if isinstance(value, dict) else {}


def _line(value: Record) -> bytes:
    return dumps(value).encode() + b"\n"


def control_request(request_id: str, subtype: str, **fields: Any) -> bytes:
    """Return the line of a control request to the agent."""
    request = {"subtype": subtype, **fields}
    return _line({"type": "control_request", "request_id": request_id, "request": request})


def control_response(request_id: str, response: Record) -> bytes:
    """Return the line that answers the agent's control request."""
    body = {"subtype": "success", "request_id": request_id, "response": response}
    return _line({"type": "control_response", "response": body})


def control_refusal(request_id: str, error: str) -> bytes:
    """Return the line that answers the agent's control request with an error."""
    body = {"subtype": "error", "request_id": request_id, "error": error}
    return _line({"type": "control_response", "response": body})
