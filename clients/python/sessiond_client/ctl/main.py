"""The command `sessionctl`."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run sessionctl with the arguments of the process."""
    # grpc reads this when it is imported; its own log lines are not for people who run commands.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Text of agents may hold anything; a terminal that can't show a character gets its number.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    from .app import app

    app()
