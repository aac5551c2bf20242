"""One place that bytes from outside reach, under atheris, until a time is over or something breaks.

`python -m tests.fuzz.target NAME [an input file, or libFuzzer's options]`. Runs in a process of its own:
libFuzzer ends it, with a code other than 0 when an input broke a promise, which it leaves in a file
`crash-*` in its working directory; that file as an argument plays it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import atheris

# Only what is imported in here is watched for the branches that an input reaches.
with atheris.instrument_imports(include=["sessiond_drivers", "sessiond_server.shim"]):
    from sessiond_server.shim import Link, program
    from tests.conformance.drivers import create, drivers

    # Found by entry points, so this is what imports them.
    drivers()

from sessiond_drivers.base import ExitStatus
from tests.conformance.host import DriverHost
from tests.conformance.steps import read_lines
from tests.fuzz import MAX_INPUT
from tests.golden.compare import scenarios

Target: TypeAlias = Callable[[bytes], object]

_AWKWARD = [
    b"-",
    b"-1",
    b"1e999",
    b"9" * 30,
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"[[[[[[[[",
    b"\\x00",
    b"\\xff",
]
_AWKWARD += [rb"\\ud800", rb"\x22\x22", rb"\x0a"]
_HELLO = {"kind": "hello", "protocol": 1, "run": 1, "shim_pid": 1, "agent_pid": 1, "base": 0, "size": 0}
_HELLO |= {"last_input_id": 0, "exit": None, "paused": ""}


def _driver(name: str) -> Target:
    """All the lines of one process, which dies at the end; every promise is checked at every line."""

    def play(data: bytes) -> None:
        host = DriverHost(lambda: create(name))
        host.launch()
        host.send("m1", "hello")
        for line in data.split(b"\n"):
            host.line(line)
        host.exited(ExitStatus(signal=9))
        host.obligations.quiet()

    return play


def _shim(data: bytes) -> bool:
    """What a shim hears of its server; whether it understood all of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = program._Connection(theirs, lambda header, payload: None)
        ours.sendall(data)
        ours.close()
        try:
            while connection.read():
                pass
        except (OSError, ValueError, RecursionError) as error:
            # What the shim's loop expects; anything else would end it, and the agent with it.
            return isinstance(error, ConnectionResetError)
        return False


async def _receive(data: bytes) -> bool:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        link = Link(ours)
        theirs.sendall(program.encode(_HELLO) + data)
        theirs.close()
        while not link._lost:
            link._collect()
        understood = link._hello is not None and link._lost == "the shim closed the connection"
        await link.close()
        return understood


def _link(data: bytes) -> bool:
    """What a server hears of a shim; whether it understood all of it."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(_receive(data))


def _target(name: str) -> Target:
    ends = {"shim": _shim, "link": _link}
    return ends[name] if name in ends else _driver(name.removeprefix("driver-"))


def seeds(name: str) -> list[bytes]:
    """Return true inputs of a target: what agents said, or what shim and server say."""
    if name.startswith("driver-"):
        folders = scenarios(name.removeprefix("driver-"))
        whole = [b"\n".join(read_lines(folder / "stdout.jsonl")) for folder in folders]
        return [said for said in whole if len(said) <= MAX_INPUT]
    header = program.encode
    if name == "shim":
        return [
            header({"kind": "attach", "offset": 0}) + header({"kind": "committed", "offset": 7}),
            header({"kind": "input", "id": 1, "len": 3}) + b"{}\n" + header({"kind": "ping"}),
            header({"kind": "signal", "signal": 2}) + header({"kind": "kill"}),
            header({"kind": "close_stdin", "id": 2}) + header({"kind": "collected"}),
        ]
    return [
        header({"kind": "out", "offset": 0, "len": 3}) + b"{}\n" + header({"kind": "ack", "id": 1}),
        header({"kind": "paused", "reason": "full"}) + header({"kind": "resumed"}),
        header({"kind": "eof", "size": 3}) + header({"kind": "pong"}),
        header({"kind": "exit", "exit_code": 0, "signal": 0, "size": 3}),
    ]


def _words(name: str) -> set[bytes]:
    """Return what inputs are made of, as libFuzzer writes it: awkward JSON, and strings of the seeds."""
    strings = {word for seed in seeds(name) for word in re.findall(rb'"([\w.:/-]{1,40})"', seed)}
    return {*_AWKWARD, *(b"\\x22%s\\x22" % word for word in strings)}


def main() -> None:
    """Write the seeds and their words into the corpus, if there is one; the rest is libFuzzer's."""
    name, *options = sys.argv[1:]
    for folder in filter(Path.is_dir, map(Path, options)):
        for number, seed in enumerate(seeds(name)):
            assert _target(name)(seed) is not False, "a seed is not understood"
            (folder / f"seed-{number}").write_bytes(seed)
        words = folder.with_suffix(".words")
        words.write_bytes(b"".join(b'"%s"\n' % word for word in _words(name)))
        options = [*options, f"-dict={words}"]
    atheris.Setup([sys.argv[0], *options], _target(name))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
