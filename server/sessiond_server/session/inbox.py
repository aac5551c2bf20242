"""What waits for a session's next step: calls, and what the process says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.message import Message

from sessiond_server.session.context import request_id_reused
from sessiond_server.session.core import Core
from sessiond_server.session.process import Delivery
from sessiond_server.store import Response, Step, Store

_RECENT = 256


@dataclass(slots=True)
class Call:
    """A call that waits to be run in a step.

    `run` may return None when `waits_for` names the message whose fate is the answer.
    """

    run: Callable[[Core], Message | None]
    response_type: type[Message]
    future: asyncio.Future[Message] = field(repr=False)
    request_id: str = ""
    digest: bytes = b""
    actor: str = ""
    waits_for: str = ""

    def answer(self, response: Message) -> None:
        """Give the caller its response, if it still waits."""
        if not self.future.done():
            self.future.set_result(response)

    def fail(self, error: Exception) -> None:
        """Give the caller an error, if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True)
class Delivered:
    """What the process of a run said; `taken` ends when a step has used it up and is committed."""

    run: int
    delivery: Delivery
    taken: asyncio.Future[None] = field(repr=False)

    def done(self) -> None:
        """Let the process go on."""
        if not self.taken.done():
            self.taken.set_result(None)


class Answers:
    """The answers of earlier calls, by request_id: the last ones in memory, all in the store."""

    def __init__(self, store: Store, key: int) -> None:
        self._store = store
        self._key = key
        self._recent: dict[str, Response] = {}

    def earlier(self, call: Call, step: Step) -> Message | None:
        """Return what an equal call got before, in this step too; raises REQUEST_ID_REUSED."""
        if not call.request_id:
            return None
        known = (
            next((r for r in step.responses if r.request_id == call.request_id), None)
            or self._recent.get(call.request_id)
            or self._store.response(self._key, call.request_id)
        )
        if known is None:
            return None
        if known.digest != call.digest:
            raise request_id_reused(call.request_id)
        return call.response_type.FromString(known.response)

    def committed(self, step: Step) -> None:
        """Remember the answers of a step."""
        for response in step.responses:
            self._recent[response.request_id] = response
        while len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
