"""Recorded inputs of a driver, and playing them.

A step is one JSON object with one key:

    {"launch": {"session_id"?, "workspace"?, "model"?, ..., "resume"?: bool}}
    {"message": {"message_id", "text", "append"?: bool, "attachments"?: [
        {"ref", "media_type", "filename", "path", "data": base64}]}}
    {"stdout": [FIRST, END]}      lines FIRST..END-1 of the recorded output, counted from 0
    {"stdout": "all"}             the lines that no step before took
    {"line": "text"}              a line that is not in the recording
    {"unqueue": MESSAGE_ID}, {"answer": {"question_id", "answers", "note"?}}, {"interrupt": true}
    {"set": {"model"|"permission_mode"|"effort"|"title": VALUE}}
    {"compact": {"command_id", "instructions"?}}, {"clear": {"command_id"}}
    {"run_command": {"command_id", "text"}}, {"adopted": true}, {"stop": true}
    {"exited": {"exit_code"?, "signal"?, "stderr_tail"?}}
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sessiond_drivers.base import Content, Effect, ExitStatus, LaunchSpec, Message
from tests.conformance.host import SPEC, DriverHost

__all__ = ["DEFAULT", "Step", "expand", "play", "play_one", "read_lines", "read_steps"]

Step = tuple[str, Any]

# A recording without steps of its own: start, all lines, the end.
DEFAULT: list[Step] = [("launch", {}), ("stdout", "all"), ("exited", {"exit_code": 0})]


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a recorded output, split at line feeds only."""
    *lines, rest = path.read_bytes().split(b"\n")
    return [*lines, rest] if rest else lines


def read_steps(path: Path) -> list[Step]:
    """Return the steps of a file; the default ones when there is no file."""
    if not path.exists():
        return DEFAULT
    steps: list[Step] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        record = json.loads(line)
        if not isinstance(record, dict) or len(record) != 1:
            raise ValueError(f"{path}:{number}: a step is an object with one key")
        steps += record.items()
    return steps


def expand(steps: list[Step], lines: list[bytes]) -> Iterator[Step]:
    """Yield the steps with `("line", bytes)` for each recorded line that a step names."""
    taken = 0
    for verb, given in steps:
        if verb == "stdout":
            first, end = (taken, len(lines)) if given == "all" else given
            taken = end
            yield from (("line", line) for line in lines[first:end])
        elif verb == "line":
            yield verb, given.encode()
        else:
            yield verb, given


def _launch(host: DriverHost, given: dict[str, Any]) -> list[Effect]:
    resume = given.pop("resume", False)
    default = {"session_id": SPEC.session_id, "workspace": SPEC.workspace}
    return list(host.launch(LaunchSpec(**{**default, **given}), resume).effects)


def _message(attachments: Sequence[dict[str, str]] = (), **given: Any) -> Message:
    files = [
        Content(
            ref=file["ref"],
            media_type=file["media_type"],
            filename=file["filename"],
            path=file["path"],
            data=base64.b64decode(file["data"]),
        )
        for file in attachments
    ]
    return Message(**given, attachments=tuple(files))


def _set(host: DriverHost, given: dict[str, str]) -> list[Effect]:
    ((name, value),) = given.items()
    return host.set(name, value)


_PLAY: dict[str, Callable[[DriverHost, Any], list[Effect]]] = {
    "launch": lambda host, given: _launch(host, dict(given)),
    "message": lambda host, given: host.message(_message(**given)),
    "line": lambda host, given: host.line(given),
    "unqueue": lambda host, given: host.unqueue(given),
    "answer": lambda host, given: host.answer(**given),
    "interrupt": lambda host, _: host.interrupt(),
    "set": _set,
    "compact": lambda host, given: host.compact(**given),
    "clear": lambda host, given: host.clear(**given),
    "run_command": lambda host, given: host.run_command(**given),
    "adopted": lambda host, _: host.adopted(),
    "stop": lambda host, _: list(host.stop().effects),
    "exited": lambda host, given: host.exited(ExitStatus(**given)),
}


def play_one(host: DriverHost, step: Step) -> list[Effect]:
    """Give one (expanded) step to a host; return what the driver made of it."""
    verb, given = step
    return _PLAY[verb](host, given)


def play(host: DriverHost, steps: list[Step], lines: list[bytes]) -> Iterator[tuple[Step, list[Effect]]]:
    """Give all steps to a host; yield each with what the driver made of it."""
    for step in expand(steps, lines):
        yield step, play_one(host, step)
