"""Run the console sessions of a Markdown page and compare what they print with what the page shows.

A session is a fenced block of the language `console`: lines that begin with `$ ` are commands (further
lines of the same command begin with `> `), the lines after a command are its output. All commands of a
page run in one shell, in order. In the output shown

- `...` stands for anything within a line, and alone on a line for any number of lines;
- identifiers, times, ports and digests may be others than those shown.

A command that ends with `&`, and is a simple one, runs in the background; the next one waits until it
has printed as many lines as are shown. A command with no output shown may print anything. Every command
must exit 0, unless the line before its block is `<!-- exit N -->`, which is for its last command.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r"^(?:<!-- exit (?P<exit>\d+) -->\n)?```console\n(?P<body>.*?)^```$", re.M | re.S)
_MARK = "@@@@"
# What differs from run to run, and what it is made to be on both sides.
_VARIABLE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "SHA256"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"\b(127\.0\.0\.1|localhost):\d+"), r"\1:PORT"),
    (re.compile(r"(\"?pid\"?[:= ]+\"?)\d+"), r"\1PID"),
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(rf"\[{re.escape(pwd.getpwuid(os.getuid()).pw_name)}\]"), "[you]"),
)
# What the shell says of a background command that was killed, whenever it notices.
_KILLED = re.compile(r"^bash: line \d+: +\d+ Killed .*\n", re.M)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a session. `line` is where it stands in the page, from 1."""

    line: int
    text: str
    shown: list[str] = field(default_factory=list)
    exit_code: int = 0

    @property
    def background(self) -> bool:
        """Whether it goes on while the next ones run."""
        return self.text.endswith("&")


@dataclass(frozen=True, slots=True)
class Result:
    """What a command printed and returned; None when it was never reached."""

    command: Command
    printed: list[str]
    exit_code: int | None


def commands(page: str) -> list[Command]:
    """Return the commands of a page in order."""
    found: list[Command] = []
    for block in _FENCE.finditer(page):
        first = page.count("\n", 0, block.start("body")) + 1
        in_block = list(_block(block["body"], first))
        if in_block and block["exit"]:
            last = in_block[-1]
            in_block[-1] = Command(last.line, last.text, last.shown, int(block["exit"]))
        found += in_block
    return found


def _block(body: str, first: int) -> Iterator[Command]:
    current: Command | None = None
    for number, line in enumerate(body.splitlines(), first):
        if line.startswith("$ "):
            if current is not None:
                yield current
            current = Command(number, line.removeprefix("$ "))
        elif current is None:
            raise ValueError(f"line {number}: a console block begins with a command")
        elif line.startswith("> ") and not current.shown:
            current = Command(current.line, f"{current.text}\n{line.removeprefix('> ')}")
        else:
            current.shown.append(line)
    if current is not None:
        yield current


def _script(all_commands: Sequence[Command]) -> str:
    lines = ["exec 2>&1"]
    for number, command in enumerate(all_commands):
        lines.append(f"printf '{_MARK} {number}\\n'")
        if not command.background:
            lines += [
                command.text,
                f"code=$?; printf '{_MARK} exit %s\\n' $code",
                f"[ $code -eq {command.exit_code} ] || exit",
            ]
            continue
        log = f"background-{number}.log"
        ready = f"[ $(wc -l <{log}) -ge {len(command.shown)} ]"
        text = command.text.removesuffix("&")
        lines += [
            f": >{log}; ( exec {text}) >{log} 2>&1 &",
            f"for _ in $(seq 300); do {ready} && break; sleep 0.1; done",
            f"cat {log}; printf '{_MARK} exit 0\\n'",
        ]
    return "\n".join(lines) + "\n"


def run(
    all_commands: Sequence[Command], folder: Path, env: Mapping[str, str], timeout: float
) -> list[Result]:
    """Run the commands in `folder` with exactly the environment `env`, at most `timeout` seconds.

    Whatever the commands started is ended before this returns.
    """
    output = folder / "console.txt"
    with output.open("wb") as sink:
        shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-c", _script(all_commands)],
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            start_new_session=True,
        )
        try:
            shell.wait(timeout)
        except subprocess.TimeoutExpired:
            sink.write(f"\n(still running after {timeout:.0f} s)\n".encode())
        finally:
            _end(shell)
    return list(_results(all_commands, output.read_text(errors="replace")))


def _end(shell: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(shell.pid, number)
        except ProcessLookupError:
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            shell.wait(10)
        _wait_for_group(shell.pid, 10)


def _wait_for_group(group: int, seconds: float) -> None:
    # Its members are no children of ours: to ask until nobody is left is all there is.
    deadline = time.monotonic() + seconds
    while any(_alive(group)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _alive(group: int) -> Iterator[bool]:
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, member = entry.read_text().rpartition(")")[2].split()[:3]
            # A process that nobody has waited for yet is in its group still.
            yield member == str(group) and state != "Z"


def _results(all_commands: Sequence[Command], output: str) -> Iterator[Result]:
    parts = re.split(rf"^{_MARK} (\d+)\n", _KILLED.sub("", output), flags=re.M)
    printed = {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}
    for number, command in enumerate(all_commands):
        text, _, code = printed.get(number, "").partition(f"{_MARK} exit ")
        yield Result(command, text.splitlines(), int(code) if code.strip() else None)


def differences(results: Sequence[Result]) -> list[str]:
    """Return what is not as the page shows it, a text for each command; none: all is well."""
    found = []
    for result in results:
        command = result.command
        where = f"line {command.line}: $ {command.text}"
        if result.exit_code != command.exit_code:
            code = "never ended" if result.exit_code is None else f"exit code {result.exit_code}"
            found.append("\n".join([f"{where}: {code}", *result.printed]))
        elif command.shown and not matches(command.shown, result.printed):
            shown, printed = "\n".join(command.shown), "\n".join(result.printed)
            found.append(f"{where}\n--- shown\n{shown}\n--- printed\n{printed}")
    return found


def matches(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether the output is what is shown."""
    pattern = []
    for line in (same(line).rstrip() for line in shown):
        if line.strip() == "...":
            pattern.append(r"(?:.*\n)*?")
        else:
            pattern.append(".*".join(re.escape(part) for part in line.split("...")) + r"\n")
    text = "".join(same(line).rstrip() + "\n" for line in printed)
    return re.fullmatch("".join(pattern), text) is not None


def same(line: str) -> str:
    """Return a line with what differs from run to run made equal."""
    for pattern, name in _VARIABLE:
        line = pattern.sub(name, line)
    return line
