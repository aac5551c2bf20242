"""Words for people: enums, sizes, counts, and text that is safe on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from sessiond.v1 import session_pb2

__all__ = [
    "attachment",
    "duration",
    "one_line",
    "printable",
    "shorten",
    "size",
    "tokens",
    "word",
]

# What an agent prints must not move the cursor, rename the window or reverse the reading order: control
# characters show as their pictures (U+2400...), the rest as the replacement character.
_UNSAFE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_UNSAFE[0x7F] = 0x2421
for _codes in (range(0x80, 0xA0), range(0x202A, 0x202F), range(0x2066, 0x206A)):
    _UNSAFE.update(dict.fromkeys(_codes, 0xFFFD))

Number = TypeVar("Number", bound=int)


def printable(text: str) -> str:
    """Return the text without anything that a terminal would obey, line ends as line feeds."""
    return text.replace("\r\n", "\n").translate(_UNSAFE)


def one_line(text: str, limit: int = 200) -> str:
    """Return the text on one line and at most `limit` characters long."""
    return shorten(" ".join(printable(text).split()), limit)


def shorten(text: str, limit: int) -> str:
    """Cut a text that is longer than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def word(name_of: Callable[[Number], str], number: Number, prefix: str) -> str:
    """Return an enum value as a word, given the enum's `Name`.

    A number that this program does not know becomes `unknown (N)`.
    """
    try:
        name = name_of(number)
    except ValueError:
        return f"unknown ({number})"
    return name.removeprefix(f"{prefix}_").lower().replace("_", " ")


def size(count: int) -> str:
    """Return a number of bytes for people."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            break
    return f"{value:.1f} {unit}"


def tokens(count: session_pb2.Tokens) -> str:
    """Return token counts in one phrase; kinds that are 0 are left out."""
    parts = [
        (count.input, "in"),
        (count.cache_read, "cache read"),
        (count.cache_write, "cache write"),
        (count.output, "out"),
    ]
    return ", ".join(f"{number:,} {name}" for number, name in parts if number) or "no tokens"


def duration(value: Duration) -> str:
    """Return a duration for people: `0.4 s`, `2 min 5 s`."""
    seconds = value.seconds + value.nanos / 1e9
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def attachment(value: session_pb2.Attachment) -> str:
    """Return an attachment in one phrase: name, type, size and the ref to fetch it by."""
    name = one_line(value.filename) or "attachment"
    kind = one_line(value.media_type) or "unknown type"
    return f"{name} ({kind}, {size(value.size_bytes)}) {value.ref}"
