"""A daemon whose clock jumps: by seconds, hours and days, forwards and back, while it runs."""

from __future__ import annotations

from tests.support.daemon import Daemon

__all__ = ["JumpingDaemon"]

# Seconds off the truth; every few seconds the next one. A week is past every age that is looked at.
_OFFSETS = (0, 3600, -90, 7 * 86400, -86400, 1)
_EVERY = 7
# Who imports the clock later gets this one.
_JUMP = f"""
import time
def now(real=time.time_ns, since=time.monotonic, offsets={_OFFSETS}):
    return real() + offsets[int(since() / {_EVERY}) % len(offsets)] * 10**9
time.time_ns, time.time = now, lambda: now() / 1e9
"""


class JumpingDaemon(Daemon):
    """A daemon that reads a clock which is set again and again; how much time passes is not touched."""

    prelude = _JUMP
