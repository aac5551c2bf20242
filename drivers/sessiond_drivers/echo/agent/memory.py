"""What the agent keeps of a conversation: a small file that a later process goes on with."""

from __future__ import annotations

import json
import os
import re

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class UnknownConversation(Exception):
    """There is no conversation of that name."""


def _lines(path: str) -> list[dict[str, object]]:
    """Return the records of a file; a last line that was cut by a crash does not count."""
    try:
        with open(path, "rb") as file:
            whole = file.read()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in whole.split(b"\n")[:-1]]


def _append(path: str, record: dict[str, object]) -> None:
    """Append one line with one write, so that a crash never leaves half of it before another."""
    line = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


class Memory:
    """The messages read in one conversation, in order, and the log of what was read."""

    def __init__(self, session: str, state_dir: str, read_log: str, resume: bool) -> None:
        """Open the conversation; `UnknownConversation` when there is none to resume."""
        if not _SAFE.fullmatch(session):
            raise UnknownConversation(session)
        self._session = session
        self._read_log = read_log
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        self._path = os.path.join(state_dir, f"{session}.jsonl")
        self._texts: list[str] = []
        # What a former process read, and of that what is in the file of the conversation.
        self._before: set[object] = set()
        self._kept: set[object] = set()
        if resume and not os.path.exists(self._path):
            raise UnknownConversation(session)
        records = _lines(self._path)
        # Which process of this conversation this is, from 1: ids differ from those of the others.
        self.run = 1 + sum("run" in record for record in records)
        if resume:
            self._load(records)
        _append(self._path, {"run": self.run, "cleared": not resume})

    def _load(self, records: list[dict[str, object]]) -> None:
        for record in records:
            if record.get("cleared"):
                self._texts.clear()
            elif "id" in record:
                self._texts.append(str(record["text"]))
                self._kept.add(record["id"])
        self._before |= self._kept
        if self._read_log:
            # Written first: it knows a message that a crash kept out of the other file.
            logged = _lines(self._read_log)
            self._before |= {record["id"] for record in logged if record["session"] == self._session}

    def texts(self) -> list[str]:
        """Return what it remembers."""
        return list(self._texts)

    def read(self, message_id: str, text: str) -> None:
        """Remember a message, before anybody is told that it was read."""
        again = message_id in self._before
        if self._read_log:
            record = {"session": self._session, "id": message_id, "again": again, "text": text}
            _append(self._read_log, record | {"pid": os.getpid()})
        if message_id not in self._kept:
            _append(self._path, {"id": message_id, "text": text})
            self._texts.append(text)

    def clear(self) -> None:
        """Forget all messages; which ids were read stays known."""
        _append(self._path, {"cleared": True})
        self._texts.clear()
