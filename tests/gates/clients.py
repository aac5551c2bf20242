"""The gate of the clients: one suite of scenarios, every language."""

from __future__ import annotations

import sys

from tests.gates.base import run


def conformance() -> None:
    """Builds every client and plays every scenario; a missing toolchain is a failure in CI."""
    run(sys.executable, "-m", "tests.clients.conformance", timeout=2400)
