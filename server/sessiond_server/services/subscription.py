"""Subscribe: a position in the transcript that follows the head, at the pace of its own reader."""

from __future__ import annotations

import asyncio

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_service_pb2 as api
from sessiond_server import validate
from sessiond_server.config import Config
from sessiond_server.drain import Drain
from sessiond_server.errors import DomainError
from sessiond_server.rpc import Context
from sessiond_server.session import Session

# Nothing of a transcript is ever pruned yet.
FIRST_SEQ = 1


def trailer(session: Session) -> bytes:
    """Return what follows the events of a response: head_seq, first_seq and transcript_id, encoded."""
    row = session.row
    return api.SubscribeResponse(
        head_seq=row.head_seq, first_seq=FIRST_SEQ, transcript_id=row.transcript_id
    ).SerializeToString()


class Subscriptions:
    """All open Subscribe streams of the daemon."""

    def __init__(self, config: Config, drain: Drain) -> None:
        self._most = config.limits.max_batch_bytes
        self._max_subscribers = config.limits.max_subscribers
        self._heartbeat = config.heartbeat_interval
        self._pause = config.live_pause
        self._drain = drain
        self._open = 0

    async def serve(self, session: Session, request: api.SubscribeRequest, context: Context) -> None:
        """Serve one stream until the session is deleted, the caller goes, or the daemon drains."""
        self._check(session, request)
        if self._open >= self._max_subscribers:
            raise DomainError(
                reasons.ERROR_REASON_TOO_MANY_SUBSCRIBERS,
                f"{self._open} streams are open; close some, or raise limits.max_subscribers",
                retry_after=5.0,
            )
        self._open += 1
        session.tail.readers += 1
        try:
            await self._follow(session, request.after_seq, context)
        finally:
            self._open -= 1
            session.tail.readers -= 1
            if not session.tail.readers:
                session.tail.forget()

    def _check(self, session: Session, request: api.SubscribeRequest) -> None:
        validate.seq("after_seq", request.after_seq)
        row = session.row
        if request.transcript_id and request.transcript_id != row.transcript_id:
            raise DomainError(
                reasons.ERROR_REASON_TRANSCRIPT_CHANGED,
                "the session has another transcript now; forget what you have and start at 0",
                metadata={"transcript_id": row.transcript_id},
            )
        if request.after_seq > row.head_seq:
            raise DomainError(
                reasons.ERROR_REASON_SEQ_IN_FUTURE,
                f"after_seq is beyond the newest event, {row.head_seq}",
                field="after_seq",
                metadata={"head_seq": str(row.head_seq)},
            )

    async def _follow(self, session: Session, position: int, context: Context) -> None:
        loop = asyncio.get_running_loop()
        tail = session.tail
        data, position = session.read(position, self._most)
        await context.write(data + trailer(session))
        while True:
            live = position == tail.head_seq
            if live:
                # Bursts coalesce: the first event goes at once, the next ones wait for each other.
                await asyncio.sleep(self._pause)
                deadline = loop.time() + self._heartbeat
                while position == tail.head_seq and not tail.closed and not self._drain.begun:
                    rest = deadline - loop.time()
                    if rest <= 0:
                        break
                    await tail.wait(position, rest)
            if self._drain.begun:
                raise self._drain.error()
            if tail.closed:
                return
            data, position = session.read(position, self._most)
            await context.write(data + trailer(session))
