"""The daemon's last minute: streams are told to end, new calls are refused, the agents live on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond_server.errors import DomainError

__all__ = ["Drain"]

# A restart takes about this long.
_RETRY_AFTER = 1.0


class Drain:
    """Begins once and never ends. gRPC's `stop` does not tell the handlers, so streams wait for this.

    `event` is set from then on; a stream that sees it raises `error()`.
    """

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._wakes: list[Callable[[], None]] = []

    def wakes(self, callback: Callable[[], None]) -> None:
        """Call `callback` when it begins: whoever waits for something else is to look here."""
        self._wakes.append(callback)

    @property
    def begun(self) -> bool:
        """Whether the daemon is going away."""
        return self.event.is_set()

    def begin(self) -> None:
        """Refuse new calls and wake every stream."""
        self.event.set()
        for wake in self._wakes:
            wake()

    def error(self) -> DomainError:
        """Return what a call gets from now on: SERVER_DRAINING, with a time to try again."""
        return DomainError(
            reasons.ERROR_REASON_SERVER_DRAINING,
            "the daemon is stopping; sessions go on, try again when it is back",
            retry_after=_RETRY_AFTER,
        )
