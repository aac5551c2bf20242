"""The gate of the test suite."""

from __future__ import annotations

import secrets
import sys

from tests.gates.base import run

# Two cores: the slowest part of the whole run, so its bound is generous.
_TIMEOUT = 2400


def tests() -> None:
    """Everything that pytest finds, in random order, with warnings as errors, and its coverage.

    Real third-party agents have a gate of their own. Nothing found is a failure too (exit code 5). The
    command that is printed names the seed of the order: run again, it is the same.
    """
    command = ("-m", "pytest", "-q", "-m", "not live", "--durations=10")
    order = (f"--randomly-seed={secrets.randbelow(2**32)}",)
    coverage = ("--cov", "--cov-report=term:skip-covered")
    run(sys.executable, *command, *order, *coverage, timeout=_TIMEOUT)
