"""A terminal with a program in it: what a person would see, as text."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import pexpect
import pyte

_SECONDS = 20.0


class _Screen(pyte.HistoryScreen):
    """A screen that answers the program: prompt_toolkit asks where the cursor is, and waits."""

    answer: Callable[[str], object]

    def write_process_input(self, data: str) -> None:
        self.answer(data)


class Terminal:
    """Runs a command in a pseudo-terminal and interprets what it draws. Every wait has a bound."""

    def __init__(
        self, command: list[str], env: Mapping[str, str], rows: int = 40, columns: int = 100
    ) -> None:
        self._screen = _Screen(columns, rows, history=5000)
        self._stream = pyte.ByteStream(self._screen)
        self._child: pexpect.spawn[bytes] = pexpect.spawn(
            command[0],
            command[1:],
            env={**os.environ, **env, "TERM": "xterm-256color"},
            dimensions=(rows, columns),
        )
        self._screen.answer = self._child.send

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._child.close(force=True)

    @property
    def text(self) -> str:
        """Everything drawn so far: what scrolled away, then what is on the screen."""
        gone = [
            "".join(line[column].data for column in range(self._screen.columns))
            for line in self._screen.history.top
        ]
        return "\n".join(line.rstrip() for line in [*gone, *self._screen.display])

    def type(self, text: str) -> None:
        """Type a line."""
        self._child.send(f"{text}\r")

    def press(self, letter: str) -> None:
        """Press Ctrl and a letter."""
        self._child.sendcontrol(letter)

    def wait_for(self, *texts: str) -> str:
        """Wait until all `texts` are to be seen; returns everything drawn."""
        deadline = time.monotonic() + _SECONDS
        while not all(text in self.text for text in texts):
            if time.monotonic() > deadline or not self._read(0.2):
                self._read(0.2)
                seen = self.text
                missing = [text for text in texts if text not in seen]
                if missing:
                    raise AssertionError(f"not seen: {missing}\n{seen}")
        return self.text

    def wait_for_exit(self) -> int:
        """Wait until the program ends by itself; returns its exit code."""
        deadline = time.monotonic() + _SECONDS
        while self._read(0.2):
            if time.monotonic() > deadline:
                raise AssertionError(f"still running\n{self.text}")
        self._child.wait()
        code: int | None = self._child.exitstatus
        return -1 if code is None else code

    def _read(self, seconds: float) -> bool:
        """Draw what comes within `seconds`; False when the program ended."""
        try:
            self._stream.feed(self._child.read_nonblocking(65536, seconds))
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF:
            return False
        return True
