"""What gates share: how they fail, where they are, and how they run a command."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Set by CI systems; missing tools are installed there and are a failure, not a skip.
CI = os.environ.get("CI", "") == "true"


class Failed(Exception):
    """The gate is closed; the text says what to do."""


class Skipped(Exception):
    """The gate can't be checked on this machine; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate. `check` raises Failed or Skipped; its output goes to the terminal as it comes."""

    name: str
    about: str
    check: Callable[[], None]


def tool(name: str) -> str:
    """Return the path of a program that is installed beside the running interpreter."""
    return str(Path(sys.executable).parent / name)


def run(
    *command: str | Path,
    timeout: float = 600,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a command with the terminal's output; raises Failed when it fails or takes too long.

    `timeout` is in seconds. `env` is added to the environment.
    """
    words = [str(word) for word in command]
    shown = shlex.join([Path(words[0]).name, *(w.removeprefix(f"{ROOT}/") for w in words[1:])])
    print(f"$ {shown}", flush=True)
    try:
        done = subprocess.run(words, cwd=cwd, env={**os.environ, **(env or {})}, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Failed(f"{shown}: still running after {timeout:.0f} s") from None
    except OSError as error:
        raise Failed(f"{shown}: {error.strerror}") from error
    if done.returncode:
        raise Failed(f"{shown}: exit code {done.returncode}")
