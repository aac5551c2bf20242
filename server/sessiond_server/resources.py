"""What the system gives the process: memory that goes back when it is free, and enough open files."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys

__all__ = ["allow_open_files", "give_back_early"]

# mallopt(3) of glibc: blocks of this size and above are mapped one by one, and unmapped when freed.
_M_MMAP_THRESHOLD = -3
_BYTES = 64 * 1024
# More than `max_sessions` and `max_subscribers` need by default. Not all that may be had: what is
# started here inherits it, and there are programs that close every number up to the limit.
_OPEN_FILES = 65536


def allow_open_files() -> None:
    """Raise the soft limit on open files, most often 1024, as far as the hard one allows.

    Each session and each connection takes one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give_back_early() -> None:
    """Keep the peaks of many readers' batches from staying with the process.

    glibc raises this threshold by itself the first time that a big block is freed, and from then on
    such blocks leave holes in a heap that only grows: measured with 200 readers, 170 MB stayed, and
    with a fixed threshold 10 MB, at the same speed. Nothing on other systems and libraries.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _BYTES)
