"""Run the console sessions of README.md: `python -m tests.docs.tour [--programs DIR] [--page FILE]`.

They run in a new home folder, with the programs in DIR (default: those beside the running interpreter)
before all others on the PATH, and with ports of their own. Exit code 1 when something is not as shown.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.docs import console

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
# The daemon's default port, as the page shows it; the machine's own daemon may be using it.
_PORT = "7419"


def differences(
    page: Path, programs: Path, without: Sequence[str] = (), timeout: float = 240
) -> list[str]:
    """Run the page's commands and return what is not as it shows.

    Commands that begin with a word in `without` are left out, for tools that the machine lacks.
    """
    port = _free_port()
    chosen = [
        replace(command, text=command.text.replace(f":{_PORT}", f":{port}"))
        for command in console.commands(page.read_text())
        if command.text.split()[0] not in without
    ]
    # A short path: sockets live below it.
    with tempfile.TemporaryDirectory(prefix="tour-") as scratch:
        home = Path(scratch).resolve()
        work = home / "work"
        work.mkdir()
        env = {
            "HOME": str(home),
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "SESSIOND_LISTEN": f"unix:{home}/.local/share/sessiond/run/sessiond.sock,127.0.0.1:{port}",
        }
        try:
            return console.differences(console.run(chosen, work, env, timeout))
        finally:
            # Agents outlive the daemon; those of a tour that stopped half-way are ended here.
            for pid in _processes_below(home):
                os.kill(pid, signal.SIGKILL)


def missing_tools() -> list[str]:
    """Return the tools of the page that this machine lacks."""
    return [tool for tool in ("grpcurl",) if shutil.which(tool) is None]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _processes_below(folder: Path) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes() + str((entry / "cwd").readlink()).encode()
        except OSError:
            continue  # it ended meanwhile, or belongs to somebody else
        if f"{folder}/".encode() in words + b"/":
            yield int(entry.name)


def main() -> int:
    """Run the page that the command line names."""
    parser = argparse.ArgumentParser(description="Run the console sessions of a page.")
    parser.add_argument("--programs", type=Path, default=Path(sys.executable).parent)
    parser.add_argument("--page", type=Path, default=README)
    options = parser.parse_args()
    found = differences(options.page, options.programs, missing_tools())
    print("\n\n".join(found) or f"{options.page.name}: all as shown")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
