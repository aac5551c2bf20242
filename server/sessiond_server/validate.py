"""What a request must look like, whatever session it is for. Raises DomainError, records nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond_server.errors import DomainError, invalid

MAX_TITLE_BYTES = 256
MAX_LABELS = 64
MAX_LABEL_KEY_BYTES = 128
MAX_LABEL_VALUE_BYTES = 256
MAX_REQUEST_ID_BYTES = 128
MAX_NAME_BYTES = 256
MAX_ENVIRONMENT = 256
MAX_ANSWERS = 256
MAX_ATTACHMENTS = 32
# Agents are given them in base64 on one line, with a text that may be escaped: shims take 64 MiB.
MAX_ATTACHED_BYTES = 32 * 1024 * 1024
DEFAULT_PAGE, MAX_PAGE = 100, 1000
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def text(field: str, value: str, most: int, *, empty: bool = False) -> str:
    """Return `value`, which is not empty and at most `most` bytes of UTF-8."""
    if not value and not empty:
        raise invalid(field, f"{field} is required")
    size = len(value.encode())
    if size > most:
        raise invalid(field, f"{field} has {size} bytes, at most {most} are accepted")
    return value


def argument(field: str, value: str, most: int) -> str:
    """Return `value`, which may be empty and is handed to a program when it is started."""
    if "\0" in value:
        raise invalid(field, f"{field} holds a NUL character, which no program can be given")
    return text(field, value, most, empty=True)


def request_id(value: str) -> str:
    """Return a request_id, which may be empty."""
    return text("request_id", value, MAX_REQUEST_ID_BYTES, empty=True)


def session_id(value: str) -> str:
    """Return a session id chosen by a client."""
    if not _SESSION_ID.fullmatch(value):
        raise invalid("session_id", "1 to 64 letters, digits, '-' or '_'")
    return value


def title(field: str, value: str) -> str:
    """Return a title, which may be empty."""
    return argument(field, value, MAX_TITLE_BYTES)


def answers(values: Sequence[str], note: str, most: int) -> None:
    """Check the answers to a question and what is said along: at most `most` bytes, all together."""
    if len(values) > MAX_ANSWERS:
        raise invalid("answers", f"{len(values)} answers, at most {MAX_ANSWERS} are accepted")
    for index, value in enumerate(values):
        text(f"answers[{index}]", value, most)
    text("note", note, most, empty=True)
    size = sum(len(value.encode()) for value in values)
    if size > most:
        raise invalid("answers", f"{size} bytes together, at most {most} are accepted")
    size += len(note.encode())
    if size > most:
        raise invalid("note", f"{size} bytes with the answers, at most {most} are accepted")


def labels(field: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return labels."""
    if len(values) > MAX_LABELS:
        raise invalid(field, f"at most {MAX_LABELS} labels")
    for key, value in values.items():
        text(field, key, MAX_LABEL_KEY_BYTES)
        text(field, value, MAX_LABEL_VALUE_BYTES, empty=True)
    return dict(values)


def environment(values: Mapping[str, str], most: int) -> dict[str, str]:
    """Return environment variables; their values are never part of an error."""
    if len(values) > MAX_ENVIRONMENT:
        raise invalid("environment", f"at most {MAX_ENVIRONMENT} variables")
    for name, value in values.items():
        if not _VARIABLE.fullmatch(name):
            raise invalid("environment", f"{name!r:.60} is not a name for a variable")
        if "\0" in value or len(value.encode()) > most:
            raise invalid("environment", f"the value of {name} is too long or holds a NUL")
    return dict(values)


def page_size(value: int) -> int:
    """Return how many to send: 100 for 0, at most 1,000."""
    if value < 0:
        raise invalid("page_size", "page_size must not be negative")
    return min(value or DEFAULT_PAGE, MAX_PAGE)


def seq(field: str, value: int) -> int:
    """Return a seq, which is not negative."""
    if value < 0:
        raise invalid(field, f"{field} must not be negative")
    return value


def states(
    values: Iterable[session_pb2.SessionState.ValueType],
) -> set[session_pb2.SessionState.ValueType]:
    """Return the states to look for; none means all."""
    for value in values:
        if not value or value not in session_pb2.SessionState.values():
            raise invalid("states", f"{value} is not a state that a session can be in")
    return set(values)


def workspace(value: str, roots: Sequence[Path]) -> str:
    """Return the real path of a session's working directory, which lies below one of `roots`."""
    text("workspace", value, 4096)
    if not os.path.isabs(value) or "\0" in value:
        raise invalid("workspace", "workspace must be an absolute path")
    real = Path(os.path.realpath(value))
    if not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
        allowed = ", ".join(str(root) for root in roots)
        raise DomainError(
            reasons.ERROR_REASON_WORKSPACE_NOT_ALLOWED,
            f"workspace is outside the allowed roots ({allowed:.200}); see workspace_roots",
            field="workspace",
        )
    # Unlike Path.is_dir, False also for what no file can be called.
    if not os.path.isdir(real):
        raise DomainError(
            reasons.ERROR_REASON_WORKSPACE_NOT_FOUND,
            "workspace is not a directory that exists; make it first",
            field="workspace",
        )
    return str(real)
