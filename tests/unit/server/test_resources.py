"""The daemon may have as many files open as its limits on sessions and streams need."""

from __future__ import annotations

import subprocess
import sys

_TELL = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, %d))
from sessiond_server.resources import allow_open_files
allow_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def _limits(hard: int) -> list[int]:
    """Return soft and hard limit of a process that began with 64 and `hard`."""
    command = [sys.executable, "-c", _TELL % hard]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return [int(number) for number in told.split()]


def test_the_soft_limit_goes_as_far_as_the_hard_one() -> None:
    assert _limits(500) == [500, 500]
