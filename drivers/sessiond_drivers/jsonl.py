"""Lines of JSON from agents, whatever is in them: the one place where their text is made valid.

Everything a driver takes from a decoded line is valid UTF-8: unpaired surrogates (JSON escapes allow
them, protobuf strings do not) and bytes that are no UTF-8 become U+FFFD here, pairs are joined.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def clean(text: str) -> str:
    """Return `text` with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _clean_all(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_clean_all(v) for v in value]
    if isinstance(value, dict):
        return {clean(k): _clean_all(v) for k, v in value.items()}
    return value


def decode(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object on `line`, or None when it is not one. Never raises on any bytes."""
    try:
        value = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The standard library takes what the strict decoder refuses: lone surrogates, huge integers,
        # NaN, and (after replacement) bytes that are no UTF-8.
        try:
            value = _clean_all(json.loads(line.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def encode(value: Any) -> bytes:
    """Return `value` as one line of JSON, line feed included."""
    return _encode(value) + b"\n"


def text_of(line: bytes) -> str:
    """Return `line` as valid text, for showing a line that is not JSON."""
    return line.decode("utf-8", "replace")
