"""Waiting for child processes without threads."""

from __future__ import annotations

import asyncio
import sys


def watch() -> None:
    """Let this loop wait for its children by pidfd; to be called before a child is started.

    Without this, up to Python 3.11, asyncio waits for each child in a thread of its own. Later versions
    need no help, and other systems than Linux keep what asyncio does there.
    """
    if sys.version_info < (3, 12) and sys.platform == "linux":
        policy = asyncio.get_event_loop_policy()
        watcher = policy.get_child_watcher()
        if not isinstance(watcher, asyncio.PidfdChildWatcher):
            watcher = asyncio.PidfdChildWatcher()
            policy.set_child_watcher(watcher)
        if not watcher.is_active():
            watcher.attach_loop(asyncio.get_running_loop())
