"""Gates of real third-party agents, from their registries, against a scripted model on loopback."""

from __future__ import annotations

import shutil
import sys

from tests.gates.base import CI, Skipped, run
from tests.live.npm import CLAUDE_VERSIONS


def claude() -> None:
    """Claude Code, each pinned version, through client, daemon and shim."""
    if not CI and shutil.which("npm") is None:
        raise Skipped("npm is missing")
    for version in CLAUDE_VERSIONS:
        run(sys.executable, "-m", "tests.live.claude", "--version", version, timeout=900)
