"""Waiting for child processes without threads."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import TypeVarTuple, Unpack

_Args = TypeVarTuple("_Args")

if sys.version_info < (3, 12) and sys.platform == "linux":

    class _Watcher(asyncio.AbstractChildWatcher):
        """Waits for each child by pidfd in the loop that started it.

        The one in asyncio belongs to a loop, and the policy takes that loop away whenever another
        loop of the process ends: the first one could start no child from then on.
        """

        def __init__(self) -> None:
            self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, int]] = {}

        def __enter__(self) -> _Watcher:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def is_active(self) -> bool:
            return True

        def attach_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
            pass

        def close(self) -> None:
            for pid in list(self._waiting):
                self.remove_child_handler(pid)

        def add_child_handler(
            self, pid: int, callback: Callable[[int, int, Unpack[_Args]], object], *args: *_Args
        ) -> None:
            self.remove_child_handler(pid)
            loop = asyncio.get_running_loop()
            pidfd = os.pidfd_open(pid)
            self._waiting[pid] = loop, pidfd
            loop.add_reader(pidfd, self._ended, pid, callback, args)

        def remove_child_handler(self, pid: int) -> bool:
            waiting = self._waiting.pop(pid, None)
            if waiting is None:
                return False
            loop, pidfd = waiting
            if not loop.is_closed():
                loop.remove_reader(pidfd)
            os.close(pidfd)
            return True

        def _ended(
            self,
            pid: int,
            callback: Callable[[int, int, Unpack[_Args]], object],
            args: tuple[*_Args],
        ) -> None:
            self.remove_child_handler(pid)
            try:
                _, status = os.waitpid(pid, 0)
            except ChildProcessError:
                # Someone else has read how it ended; 255 is what asyncio says then.
                code = 255
            else:
                code = os.waitstatus_to_exitcode(status)
            callback(pid, code, *args)


def watch() -> None:
    """Let this process wait for its children by pidfd; to be called before a child is started.

    Without this, up to Python 3.11, asyncio waits for each child in a thread of its own. Later versions
    need no help, and other systems than Linux keep what asyncio does there.
    """
    if sys.version_info < (3, 12) and sys.platform == "linux":
        policy = asyncio.get_event_loop_policy()
        if not isinstance(policy.get_child_watcher(), _Watcher):
            policy.set_child_watcher(_Watcher())
