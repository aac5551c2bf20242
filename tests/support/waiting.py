"""Waiting for what has no event of its own, with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["until"]


async def until(condition: Callable[[], object], what: str, timeout: float = 10.0) -> None:
    """Return once `condition()` is true; AssertionError naming `what` after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not condition():
        assert loop.time() < deadline, f"waited {timeout:g} s in vain until {what}"
        await asyncio.sleep(0.01)
