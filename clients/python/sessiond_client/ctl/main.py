"""The command `sessionctl`."""

from __future__ import annotations

import os

__all__ = ["main"]


def main() -> None:
    """Run sessionctl with the arguments of the process."""
    # grpc reads this when it is imported; its own log lines are not for people who run commands.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from .app import app

    app()
