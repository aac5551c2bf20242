"""The shim that keeps an agent alive without the server, and the server's end of it.

`launch` starts one, `Link` talks to it, `read_rest` and `read_exit` read what a finished one left.
"""

from .launching import AlreadyRunning, LaunchFailed, launch
from .leftovers import Leftover, find_leftovers, frozen_shims, is_frozen, kill_leftovers, kill_runs
from .link import (
    Acked,
    Hello,
    InputClosed,
    Link,
    LinkLost,
    Output,
    OutputClosed,
    Paused,
    Received,
    Resumed,
    ShimGone,
    ShimUnreachable,
    supports,
)
from .program import boot_id
from .rawlog import (
    Exited,
    discard,
    is_alive,
    is_kept,
    raw_size,
    read_exit,
    read_rest,
    stderr_tail,
    wait_gone,
    was_started,
)

__all__ = [
    "Acked",
    "AlreadyRunning",
    "Exited",
    "Hello",
    "InputClosed",
    "LaunchFailed",
    "Leftover",
    "Link",
    "LinkLost",
    "Output",
    "OutputClosed",
    "Paused",
    "Received",
    "Resumed",
    "ShimGone",
    "ShimUnreachable",
    "boot_id",
    "discard",
    "find_leftovers",
    "frozen_shims",
    "is_alive",
    "is_frozen",
    "is_kept",
    "kill_leftovers",
    "kill_runs",
    "launch",
    "raw_size",
    "read_exit",
    "read_rest",
    "stderr_tail",
    "supports",
    "wait_gone",
    "was_started",
]
