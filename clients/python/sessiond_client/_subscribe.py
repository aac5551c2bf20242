"""A subscription that outlives its connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

import grpc
from grpc import aio

from sessiond.v1 import event_pb2, session_service_pb2, session_service_pb2_grpc

from ._errors import (
    BrokenPromiseError,
    SessiondError,
    TranscriptChangedError,
    UnavailableError,
    from_rpc_error,
)
from ._transport import Backoff, Transport, closed_elsewhere

__all__ = ["Subscription"]

_log = logging.getLogger("sessiond_client")

_C = grpc.StatusCode
# The daemon's default; the real interval comes from GetServerInfo once there is a connection.
DEFAULT_HEARTBEAT = 15.0
# A connection is given up when it was silent for this many heartbeats.
_SILENT_BEATS = 3
# How a stream may end, besides UNAVAILABLE, when only the connection is at fault. They have other causes
# too: they count only without a reason of the daemon's, and only a few times without a word in between.
_PERHAPS_LOST = frozenset({_C.UNKNOWN, _C.INTERNAL, _C.CANCELLED})
_MAX_PERHAPS = 10

_Call = aio.UnaryStreamCall[session_service_pb2.SubscribeRequest, session_service_pb2.SubscribeResponse]


class Subscription:
    """The events of one session after a seq: history first, then live, each exactly once and in order.

    Iterate over it for events, or over `batches()` for whole responses, which is several times faster in
    bulk. A lost connection is made again behind the scenes and continues after the last seq that was
    delivered. The iteration ends when the session is deleted; breaking out of it and iterating again
    goes on where it stopped. One iteration at a time.

    The iterations raise SessiondError: NotFoundError, SeqInFutureError, SeqPrunedError,
    TranscriptChangedError, BrokenPromiseError when the daemon sent a gap or a repetition, and
    UnavailableError when nothing was heard for `patience` seconds.

    Attributes, as of what was delivered: `session_id`; `transcript_id`, empty before the first response;
    `last_seq`, where a later subscription would go on; `head_seq`, the newest event there was when the
    last response was sent; `first_seq`, the oldest there is; `heartbeats`
    and `reconnects`, how many responses without events and how many lost connections there were.
    """

    def __init__(
        self,
        transport: Transport,
        session_id: str,
        *,
        after_seq: int,
        transcript_id: str,
        heartbeat: Callable[[], Awaitable[float]],
        patience: float | None,
        watchdog: float | None,
        on_lost: Callable[[SessiondError], None] | None,
    ) -> None:
        self.session_id = session_id
        self.transcript_id = transcript_id
        self.last_seq = after_seq
        self.head_seq = 0
        self.first_seq = 0
        self.heartbeats = 0
        self.reconnects = 0
        self._transport = transport
        self._heartbeat = heartbeat
        self._patience = patience
        self._watchdog = watchdog
        self._on_lost = on_lost
        self._heard = False
        self._call: _Call | None = None
        self._silent_failures = 0
        self._backoff = Backoff()

    @property
    def caught_up(self) -> bool:
        """Whether everything that existed at the last response was delivered."""
        return self._heard and self.last_seq >= self.head_seq

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection now rather than when the iteration is collected."""
        if self._call is not None:
            self._call.cancel()

    async def __aiter__(self) -> AsyncIterator[event_pb2.Event]:
        """Yield every event."""
        stream = self._responses()
        try:
            async for response in stream:
                for event in response.events:
                    self.last_seq = event.seq
                    yield event
        finally:
            await stream.aclose()

    async def batches(self) -> AsyncIterator[session_service_pb2.SubscribeResponse]:
        """Yield every response, empty ones too: the first tells `head_seq`, later ones are beats."""
        stream = self._responses()
        try:
            async for response in stream:
                if response.events:
                    self.last_seq = response.events[-1].seq
                yield response
        finally:
            await stream.aclose()

    async def _responses(self) -> AsyncGenerator[session_service_pb2.SubscribeResponse]:
        clock = asyncio.get_running_loop().time
        heard = clock()
        again = False
        while True:
            call = self._connect(wait_for_ready=again)
            try:
                timeout = self._first_timeout()
                fresh = True
                while (response := await _read(call, timeout)) is not None:
                    heard = clock()
                    self._accept(response, fresh)
                    yield response
                    timeout = self._watchdog or _SILENT_BEATS * await self._heartbeat()
                    fresh = False
                return
            except SessiondError as error:
                failure = error
            finally:
                # Not self.close(): an iteration that was broken off may end after the next began.
                call.cancel()
            delay = max(self._backoff.next(), failure.retry_after or 0.0)
            left = None if self._patience is None else heard + self._patience - clock()
            if not self._may_retry(failure) or (left is not None and delay >= left):
                raise failure
            self._report(failure, delay)
            await asyncio.sleep(delay)
            again = True

    def _connect(self, *, wait_for_ready: bool) -> _Call:
        self.close()
        stub = session_service_pb2_grpc.SessionServiceStub(self._transport.channel)
        request = session_service_pb2.SubscribeRequest(
            session_id=self.session_id, after_seq=self.last_seq, transcript_id=self.transcript_id
        )
        self._call = stub.Subscribe(
            request, metadata=self._transport.metadata(), wait_for_ready=wait_for_ready
        )
        return self._call

    def _first_timeout(self) -> float:
        default = self._watchdog or _SILENT_BEATS * DEFAULT_HEARTBEAT
        return default if self._patience is None else min(default, self._patience)

    def _accept(self, response: session_service_pb2.SubscribeResponse, fresh: bool) -> None:
        """Check the promises and take note of where the transcript stands."""
        if self.transcript_id and response.transcript_id != self.transcript_id:
            raise TranscriptChangedError(
                _C.FAILED_PRECONDITION,
                f"the transcript is {response.transcript_id}, not {self.transcript_id} any more",
                reason="TRANSCRIPT_CHANGED",
            )
        expected = self.last_seq
        if expected == 0 and response.events and response.first_seq > 1:
            # "From the beginning" of a transcript whose beginning is gone.
            expected = response.first_seq - 1
        seqs = [event.seq for event in response.events]
        last = expected + len(seqs)
        if seqs != list(range(expected + 1, last + 1)):
            raise BrokenPromiseError(_C.DATA_LOSS, f"the daemon sent {_first_wrong(seqs, expected)}")
        if response.head_seq < last:
            raise BrokenPromiseError(
                _C.DATA_LOSS, f"the daemon says head_seq {response.head_seq} after event {last}"
            )
        self.transcript_id = response.transcript_id
        self.head_seq = response.head_seq
        self.first_seq = response.first_seq
        self._heard = True
        self._silent_failures = 0
        self.heartbeats += not response.events
        # A daemon that greets and fails, again and again, is not one that does well.
        if response.events or not fresh:
            self._backoff.reset()

    def _may_retry(self, failure: SessiondError) -> bool:
        if isinstance(failure, UnavailableError):
            return True
        if failure.code in _PERHAPS_LOST and not failure.reason:
            self._silent_failures += 1
            return self._silent_failures <= _MAX_PERHAPS
        # The places of a daemon that was restarted may be taken for a moment.
        return self._heard and failure.retry_after is not None

    def _report(self, failure: SessiondError, delay: float) -> None:
        self.reconnects += 1
        _log.info("subscription %s lost, again in %.2f s: %s", self.session_id, delay, failure)
        if self._on_lost is not None:
            self._on_lost(failure)


def _first_wrong(seqs: list[int], before: int) -> str:
    wrong = next((seq, due) for due, seq in enumerate(seqs, before + 1) if seq != due)
    return f"event {wrong[0]} where {wrong[1]} must come"


async def _read(call: _Call, timeout: float) -> session_service_pb2.SubscribeResponse | None:
    """Return the next response, or None when the stream ended well or was closed on this side."""
    try:
        async with asyncio.timeout(timeout):
            response = await call.read()
    except TimeoutError:
        raise UnavailableError(_C.UNAVAILABLE, f"nothing heard for {timeout:.0f} s") from None
    except aio.AioRpcError as error:
        raise from_rpc_error(error) from None
    except asyncio.CancelledError:
        if closed_elsewhere():
            return None
        raise
    return response if isinstance(response, session_service_pb2.SubscribeResponse) else None
