"""The echo agent as a process, spoken to in its own dialect, without its driver."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sessiond_drivers.echo.driver import AGENT

BOUND = 20.0
Record = dict[str, Any]


class RawAgent:
    """One agent process. `records` is all it said so far, `lines` the same as bytes."""

    def __init__(self, folder: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        given = {"ECHO_STATE_DIR": str(folder / "state"), **(env or {})}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(AGENT), *flags],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, **given},
        )
        self.lines: list[bytes] = []
        self.records: list[Record] = []
        self._rest = b""

    def tell(self, kind: str, **fields: Any) -> None:
        """Write one line."""
        self.tell_raw(json.dumps({"kind": kind, **fields}).encode() + b"\n")

    def tell_raw(self, data: bytes) -> None:
        """Write bytes."""
        assert self.process.stdin is not None
        while data:
            data = data[os.write(self.process.stdin.fileno(), data) :]

    def message(self, message_id: str, text: str, **fields: Any) -> None:
        """Send a message."""
        self.tell("message", id=message_id, text=text, **fields)

    def until(self, met: Callable[[Record], object]) -> Record:
        """Read until a record meets the condition, and return it. Records read before do not count."""
        end = time.monotonic() + BOUND
        while True:
            line = self._next(end)
            self.lines.append(line)
            try:
                record = json.loads(line)
            except ValueError:
                continue
            self.records.append(record)
            if met(record):
                return dict(record)

    def until_kind(self, kind: str) -> Record:
        """Read until the next record of a kind."""
        return self.until(lambda record: isinstance(record, dict) and record.get("kind") == kind)

    def said(self, kind: str) -> list[Record]:
        """Return what it said so far of one kind."""
        return [record for record in self.records if record.get("kind") == kind]

    def spoken(self) -> str:
        """Return all its text so far."""
        return "".join(record["delta"] for record in self.said("text"))

    def end(self) -> tuple[int, str]:
        """Close its stdin, wait for the end, return exit code and stderr."""
        _, errors = self.process.communicate(timeout=BOUND)
        return self.process.returncode, errors.decode()

    def _next(self, end: float) -> bytes:
        stdout = self.process.stdout
        assert stdout is not None
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise TimeoutError(f"silent after {self.records[-3:]}")
            data = os.read(stdout.fileno(), 1 << 20)
            if not data:
                raise EOFError(f"gone after {self.records[-3:]}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line


Start = Callable[..., RawAgent]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start agents in one folder; all are gone at the end."""
    agents: list[RawAgent] = []

    def begin(*flags: str, env: dict[str, str] | None = None) -> RawAgent:
        agents.append(RawAgent(tmp_path, *flags, env=env))
        return agents[-1]

    yield begin
    for agent in agents:
        agent.process.kill()
        agent.process.communicate(timeout=BOUND)
