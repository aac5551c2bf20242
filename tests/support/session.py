"""A session of a real daemon, watched by one subscription that outlives everything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2, session_service_pb2_grpc
from sessiond.v1 import session_service_pb2 as api

TIMEOUT = 30.0


class Watched:
    """One session: calls by `stub`, everything it said in `events`.

    The watching subscription reconnects after the last seq it has, and checks that each event has the
    next seq.
    """

    def __init__(self, stub: session_service_pb2_grpc.SessionServiceAsyncStub, session_id: str) -> None:
        self.stub = stub
        self.session_id = session_id
        self.events: list[ev.Event] = []
        self.ended = False
        self.patience = TIMEOUT
        self._news = asyncio.Condition()
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            request = api.SubscribeRequest(session_id=self.session_id, after_seq=len(self.events))
            try:
                async for response in self.stub.Subscribe(request, wait_for_ready=True):
                    async with self._news:
                        for event in response.events:
                            assert event.seq == len(self.events) + 1, "lost, doubled or reordered"
                            self.events.append(event)
                        self._news.notify_all()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.02)
            else:
                async with self._news:
                    self.ended = True
                    self._news.notify_all()
                return

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    # --- waiting ---

    async def until(
        self,
        kind: str,
        where: Callable[[Any], bool] = lambda body: True,
        after: int = 0,
    ) -> ev.Event:
        """Return the first event of `kind` after seq `after` whose body fits."""
        seen = after

        def find() -> ev.Event | None:
            nonlocal seen
            for event in self.events[seen:]:
                seen = event.seq
                if event.WhichOneof("body") == kind and where(getattr(event, kind)):
                    return event
            return None

        async with asyncio.timeout(self.patience), self._news:
            while True:
                found = find()
                if found is not None:
                    return found
                await self._news.wait()

    async def until_state(self, name: str, after: int = 0) -> ev.Event:
        """Return the StateChanged to a state, by its name without the prefix."""
        state = session_pb2.SessionState.Value(f"SESSION_STATE_{name}")
        return await self.until("state_changed", lambda body: body.state == state, after)

    async def until_gone(self) -> None:
        """Wait for the stream's end with OK: the session was deleted."""
        async with asyncio.timeout(TIMEOUT), self._news:
            await self._news.wait_for(lambda: self.ended)

    def kinds(self, after: int = 0) -> list[str]:
        """Return the kinds of all events so far."""
        return [event.WhichOneof("body") or "" for event in self.events[after:]]

    def text(self, after: int = 0) -> str:
        """Return all assistant text so far, joined."""
        return "".join(event.assistant_text.delta for event in self.events[after:])

    # --- calls ---

    async def send(self, text: str, **fields: Any) -> api.SendResponse:
        request = api.SendRequest(session_id=self.session_id, text=text, **fields)
        return await self.stub.Send(request, timeout=TIMEOUT, wait_for_ready=True)

    async def run(self, text: str) -> int:
        """Send a message and wait for the end of its turn; return the seq of its MessageQueued."""
        sent = await self.send(text)
        await self.until("turn_ended", after=sent.seq)
        await self.until_state("IDLE", after=sent.seq)
        return sent.seq

    async def answer(self, question_id: str, *answers: str, **fields: Any) -> api.AnswerResponse:
        request = api.AnswerRequest(
            session_id=self.session_id, question_id=question_id, answers=answers, **fields
        )
        return await self.stub.Answer(request, timeout=TIMEOUT, wait_for_ready=True)

    async def control(self, **fields: Any) -> api.ControlResponse:
        request = api.ControlRequest(session_id=self.session_id, **fields)
        return await self.stub.Control(request, timeout=TIMEOUT, wait_for_ready=True)

    async def unqueue(self, message_id: str, **fields: Any) -> api.UnqueueResponse:
        request = api.UnqueueRequest(session_id=self.session_id, message_id=message_id, **fields)
        return await self.stub.Unqueue(request, timeout=TIMEOUT, wait_for_ready=True)

    async def get(self) -> session_pb2.Session:
        request = api.GetSessionRequest(session_id=self.session_id)
        response = await self.stub.GetSession(request, timeout=TIMEOUT, wait_for_ready=True)
        return response.session


@contextlib.asynccontextmanager
async def watched(channel: grpc.aio.Channel, workspace: str, **fields: Any) -> AsyncIterator[Watched]:
    """Yield a new session of the echo agent, ready for a message."""
    stub = session_service_pb2_grpc.SessionServiceStub(channel)
    request = api.CreateSessionRequest(**{"driver": "echo", "workspace": workspace, **fields})
    created = await stub.CreateSession(request, timeout=TIMEOUT, wait_for_ready=True)
    session = Watched(stub, created.session.session_id)
    try:
        yield session
    finally:
        await session.close()


class Failure:
    """A call's error, decoded."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code: grpc.StatusCode = error.code()
        self.text = error.details() or ""
        # The stubs of grpcio-status know only the synchronous kind of call.
        status: status_pb2.Status | None = rpc_status.from_call(cast(grpc.Call, error))
        self.info = error_details_pb2.ErrorInfo()
        self.bad_request = error_details_pb2.BadRequest()
        self.retry = error_details_pb2.RetryInfo()
        for detail in status.details if status else ():
            for message in (self.info, self.bad_request, self.retry):
                detail.Unpack(message)
        self.reason = self.info.reason
        self.metadata = dict(self.info.metadata)
        self.fields = [violation.field for violation in self.bad_request.field_violations]


class _Failing:
    failure: Failure


@contextlib.asynccontextmanager
async def failing(code: str, reason: str, field: str | None = None) -> AsyncIterator[_Failing]:
    """Expect the call inside to fail with this status code and reason (and field violation)."""
    caught = _Failing()
    try:
        yield caught
    except grpc.aio.AioRpcError as error:
        caught.failure = Failure(error)
        found = (caught.failure.code.name, caught.failure.reason)
        assert found == (code, reason), caught.failure.text
        assert caught.failure.info.domain == "sessiond"
        if field is not None:
            assert caught.failure.fields == [field]
    else:
        raise AssertionError(f"the call was expected to fail with {reason}")
