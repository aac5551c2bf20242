"""A call that is made until it is answered, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

from tests.support.session import Failure

__all__ = ["LOST", "Stuck", "persist"]

R = TypeVar("R")
_PATIENCE = 180.0
_PAUSE = 0.05

# What a caller sees when the connection, or who stood behind it, is gone: it can't know what happened.
LOST = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
# Refusals that pass.
_LATER = frozenset({"QUEUE_FULL", "STORAGE_FULL", "SERVER_DRAINING", "TOO_MANY_SUBSCRIBERS"})


class Stuck(Exception):
    """Nothing answered for minutes."""


async def persist(what: str, call: Callable[[], Awaitable[R]], patience: float = _PATIENCE) -> R:
    """Make a call again until it is answered; raises Stuck, or what the daemon refused it with.

    An error of the daemon itself has a reason, and INTERNAL with one is never passed over.
    """
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            failure = Failure(error)
            if not (failure.reason in _LATER or (error.code() in LOST and not failure.reason)):
                raise
            if asyncio.get_running_loop().time() > deadline:
                raise Stuck(f"{what}: {error.code().name} {failure.reason}: {failure.text}") from error
        await asyncio.sleep(_PAUSE)
