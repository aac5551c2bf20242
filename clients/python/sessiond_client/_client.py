"""The client: one method per call of the contract."""

from __future__ import annotations

import io
import mimetypes
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

from google.protobuf import field_mask_pb2
from google.protobuf.message import Message
from grpc import aio

from sessiond.v1 import (
    attachment_service_pb2,
    attachment_service_pb2_grpc,
    event_pb2,
    server_service_pb2,
    server_service_pb2_grpc,
    session_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
)

from . import _attachments
from ._control import ControlMethods
from ._endpoint import Endpoint, discover
from ._errors import SessiondError
from ._subscribe import DEFAULT_HEARTBEAT, Subscription
from ._transport import ChannelOption, Request, Response, Transport

__all__ = ["SessiondClient", "new_request_id"]

_STUBS: Mapping[str, Callable[[aio.Channel], object]] = {
    "AttachmentService": attachment_service_pb2_grpc.AttachmentServiceStub,
    "ServerService": server_service_pb2_grpc.ServerServiceStub,
    "SessionService": session_service_pb2_grpc.SessionServiceStub,
}


class SessiondClient(ControlMethods):
    """A connection to one daemon, used as `async with SessiondClient() as client`.

    `endpoint`: an Endpoint, an address as in SESSIOND_ADDRESS, or None to find the daemon (`discover`).
    `timeout`: seconds each call may take, unless the call says otherwise. `patience`: seconds of those
    during which a call is tried again while the daemon is away. `options`: more gRPC channel options.

    Every call raises SessiondError or one of its subclasses. Calls that change something take a
    `request_id`; it is made up when left empty, and the same one is used for every try of a call.
    To try again after an error with an unknown outcome (a deadline), pass the same id yourself: the
    daemon answers the repetition as it did the first time.
    """

    def __init__(
        self,
        endpoint: Endpoint | str | None = None,
        *,
        timeout: float = 30.0,
        patience: float = 20.0,
        options: Sequence[ChannelOption] = (),
    ) -> None:
        found = endpoint if isinstance(endpoint, Endpoint) else discover(endpoint)
        self._transport = Transport(found, patience=patience, options=options)
        self._timeout = timeout
        self._heartbeat: float | None = None

    async def __aenter__(self) -> Self:
        self._transport.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; subscriptions that still run end."""
        await self._transport.close()

    @property
    def endpoint(self) -> Endpoint:
        """Which daemon this is."""
        return self._transport.endpoint

    @property
    def _sessions(self) -> session_service_pb2_grpc.SessionServiceAsyncStub:
        return session_service_pb2_grpc.SessionServiceStub(self._transport.channel)

    # --- sessions -------------------------------------------------------------------------------

    async def create_session(
        self,
        driver: str,
        workspace: str | Path,
        *,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        model: str = "",
        permission_mode: str = "",
        effort: str = "",
        system_prompt: str = "",
        native_session_id: str = "",
        ephemeral: bool = False,
        environment: Mapping[str, str] | None = None,
        session_id: str = "",
        request_id: str = "",
        timeout: float | None = None,
    ) -> session_pb2.Session:
        """Start an agent in `workspace`, an absolute path on the daemon's machine."""
        request = session_service_pb2.CreateSessionRequest(
            request_id=request_id or new_request_id(),
            session_id=session_id,
            driver=driver,
            workspace=str(workspace),
            title=title,
            labels=labels,
            settings=session_pb2.Settings(model=model, permission_mode=permission_mode, effort=effort),
            system_prompt=system_prompt,
            native_session_id=native_session_id,
            ephemeral=ephemeral,
            environment=environment,
        )
        return (await self._call(self._sessions.CreateSession, request, timeout)).session

    async def get_session(self, session_id: str) -> session_pb2.Session:
        """Return the session as it is now."""
        request = session_service_pb2.GetSessionRequest(session_id=session_id)
        return (await self._call(self._sessions.GetSession, request)).session

    async def list_sessions(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        states: Iterable[session_pb2.SessionState.ValueType] = (),
        page_size: int = 0,
    ) -> AsyncIterator[session_pb2.Session]:
        """Yield the sessions that have all `labels` and one of `states`, fetching pages as needed."""
        request = session_service_pb2.ListSessionsRequest(
            labels=labels, states=states, page_size=page_size
        )
        while True:
            page = await self._call(self._sessions.ListSessions, request)
            for session in page.sessions:
                yield session
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def update_session(
        self,
        session_id: str,
        *,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
        request_id: str = "",
    ) -> session_pb2.Session:
        """Replace the title, the labels (all of them), or both; None leaves a field as it is."""
        session = session_pb2.Session(session_id=session_id, title=title or "", labels=labels)
        given = {"title": title, "labels": labels}
        request = session_service_pb2.UpdateSessionRequest(
            request_id=request_id or new_request_id(),
            session=session,
            update_mask=field_mask_pb2.FieldMask(
                paths=[name for name, value in given.items() if value is not None]
            ),
        )
        return (await self._call(self._sessions.UpdateSession, request)).session

    async def delete_session(self, session_id: str, *, request_id: str = "") -> None:
        """End the process and delete the session with its transcript."""
        request = session_service_pb2.DeleteSessionRequest(
            request_id=request_id or new_request_id(), session_id=session_id
        )
        await self._call(self._sessions.DeleteSession, request)

    # --- events ---------------------------------------------------------------------------------

    def subscribe(
        self,
        session_id: str,
        after_seq: int = 0,
        transcript_id: str = "",
        *,
        patience: float | None = None,
        watchdog: float | None = None,
        on_lost: Callable[[SessiondError], None] | None = None,
    ) -> Subscription:
        """Return the session's events after `after_seq`, history and then live, to iterate over.

        `transcript_id` guards a stored `after_seq`: give the one that was stored with it. Connections
        are made again by themselves for ever, or until nothing was heard for `patience` seconds;
        `on_lost` hears of every lost one. A connection counts as lost after `watchdog` seconds without
        a response, three of the daemon's heartbeats when None.
        """
        return Subscription(
            self._transport,
            session_id,
            after_seq=after_seq,
            transcript_id=transcript_id,
            heartbeat=self._heartbeat_interval,
            patience=patience,
            watchdog=watchdog,
            on_lost=on_lost,
        )

    async def list_events(
        self, session_id: str, *, before_seq: int = 0, page_size: int = 0
    ) -> session_service_pb2.ListEventsResponse:
        """Return the page of events just before `before_seq`, ascending; 0 is the newest page."""
        request = session_service_pb2.ListEventsRequest(
            session_id=session_id, before_seq=before_seq, page_size=page_size
        )
        return await self._call(self._sessions.ListEvents, request)

    async def history(self, session_id: str, *, page_size: int = 0) -> AsyncIterator[event_pb2.Event]:
        """Yield the events backwards from the newest, fetching pages as needed."""
        before_seq = 0
        while True:
            page = await self.list_events(session_id, before_seq=before_seq, page_size=page_size)
            for event in reversed(page.events):
                yield event
            if not page.events or page.events[0].seq <= max(page.first_seq, 1):
                return
            before_seq = page.events[0].seq

    # --- messages and questions -----------------------------------------------------------------

    async def send(
        self,
        session_id: str,
        text: str,
        *,
        attachment_refs: Iterable[str] = (),
        delivery: session_pb2.Delivery.ValueType = session_pb2.DELIVERY_UNSPECIFIED,
        request_id: str = "",
    ) -> session_service_pb2.SendResponse:
        """Send a message: on return it is durable; that the agent reads it is an event, UserMessage."""
        request = session_service_pb2.SendRequest(
            session_id=session_id,
            request_id=request_id or new_request_id(),
            text=text,
            attachment_refs=attachment_refs,
            delivery=delivery,
        )
        return await self._call(self._sessions.Send, request)

    async def edit_message(
        self,
        session_id: str,
        message_id: str,
        text: str,
        *,
        attachment_refs: Iterable[str] = (),
        revision: int = 0,
        request_id: str = "",
    ) -> session_service_pb2.EditMessageResponse:
        """Replace the text of a message that still waits; `revision` 0 means whichever it has."""
        request = session_service_pb2.EditMessageRequest(
            session_id=session_id,
            request_id=request_id or new_request_id(),
            message_id=message_id,
            text=text,
            attachment_refs=attachment_refs,
            revision=revision,
        )
        return await self._call(self._sessions.EditMessage, request)

    async def move_message(
        self,
        session_id: str,
        message_id: str,
        before_message_id: str = "",
        *,
        revision: int = 0,
        request_id: str = "",
    ) -> session_service_pb2.MoveMessageResponse:
        """Move a message that still waits to the place before another; empty: to the end."""
        request = session_service_pb2.MoveMessageRequest(
            session_id=session_id,
            request_id=request_id or new_request_id(),
            message_id=message_id,
            before_message_id=before_message_id,
            revision=revision,
        )
        return await self._call(self._sessions.MoveMessage, request)

    async def unqueue(
        self, session_id: str, message_id: str, *, request_id: str = ""
    ) -> session_service_pb2.UnqueueResponse:
        """Take a message back; the outcome says whether the agent will read it after all."""
        request = session_service_pb2.UnqueueRequest(
            session_id=session_id, request_id=request_id or new_request_id(), message_id=message_id
        )
        return await self._call(self._sessions.Unqueue, request)

    async def answer(
        self,
        session_id: str,
        question_id: str,
        answers: Iterable[str],
        *,
        note: str = "",
        request_id: str = "",
    ) -> session_service_pb2.AnswerResponse:
        """Answer an open question with labels of its options, or own words where it allows text."""
        request = session_service_pb2.AnswerRequest(
            session_id=session_id,
            request_id=request_id or new_request_id(),
            question_id=question_id,
            answers=answers,
            note=note,
        )
        return await self._call(self._sessions.Answer, request)

    async def control(
        self, request: session_service_pb2.ControlRequest
    ) -> session_service_pb2.ControlResponse:
        """Ask for an action on the session; a `request_id` is added when there is none."""
        if not request.request_id:
            request.request_id = new_request_id()
        return await self._call(self._sessions.Control, request)

    # --- attachments and the server -------------------------------------------------------------

    async def upload_attachment(
        self,
        session_id: str,
        content: bytes | Path | io.BufferedIOBase,
        *,
        media_type: str = "",
        filename: str = "",
        upload_id: str = "",
        timeout: float | None = None,
    ) -> session_pb2.Attachment:
        """Store bytes, a file, or a seekable binary stream; the result's `ref` goes into `send`.

        Media type and name default to those of the file. Give an `upload_id` to continue an upload that
        another process began. `timeout` is for each chunk.
        """
        name = filename or (content.name if isinstance(content, Path) else "")
        kind = media_type or mimetypes.guess_type(name)[0] or "application/octet-stream"
        with _opened(content) as source:
            return await _attachments.upload(
                self._transport,
                session_id,
                source,
                media_type=kind,
                filename=name,
                upload_id=upload_id,
                timeout=self._timeout if timeout is None else timeout,
            )

    async def get_attachment(self, session_id: str, ref: str) -> session_pb2.Attachment:
        """Return what is known of an attachment, without its content."""
        stub = attachment_service_pb2_grpc.AttachmentServiceStub(self._transport.channel)
        request = attachment_service_pb2.GetAttachmentRequest(session_id=session_id, ref=ref)
        return (await self._call(stub.GetAttachment, request)).attachment

    def download_attachment(
        self, session_id: str, ref: str, *, offset: int = 0, timeout: float | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the content from `offset`; the digest is checked when that is 0.

        Lost connections are made again and continue where they broke. `timeout` is for each chunk.
        """
        return _attachments.download(
            self._transport,
            session_id,
            ref,
            offset=offset,
            timeout=self._timeout if timeout is None else timeout,
        )

    async def server_info(self) -> server_service_pb2.GetServerInfoResponse:
        """Return the daemon's version, its limits, and what each of its drivers can do."""
        stub = server_service_pb2_grpc.ServerServiceStub(self._transport.channel)
        return await self._call(stub.GetServerInfo, server_service_pb2.GetServerInfoRequest())

    async def call(self, name: str, request: Message, *, timeout: float | None = None) -> Message:
        """Make the unary call `name` (as in the contract: "Send") with its request message.

        For programs that go through the contract generically. Nothing is added to the request: without
        a `request_id` of its own, a call that is repeated may happen twice. Raises ValueError when the
        request belongs to no such call.
        """
        services = request.DESCRIPTOR.file.services_by_name.values()
        owners = [s.name for s in services if name in s.methods_by_name]
        if not owners:
            raise ValueError(f"there is no call {name} with {request.DESCRIPTOR.full_name}")
        stub = _STUBS[owners[0]](self._transport.channel)
        answer: Message = await self._call(getattr(stub, name), request, timeout)
        return answer

    async def _heartbeat_interval(self) -> float:
        """Return how often an idle subscription hears from this daemon, in seconds."""
        if self._heartbeat is None:
            try:
                limits = (await self.server_info()).limits
            except SessiondError:
                return DEFAULT_HEARTBEAT
            told = limits.heartbeat_interval.ToTimedelta().total_seconds()
            self._heartbeat = told if told > 0 else DEFAULT_HEARTBEAT
        return self._heartbeat

    async def _call(
        self,
        method: aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        timeout: float | None = None,
    ) -> Response:
        return await self._transport.unary(
            method, request, self._timeout if timeout is None else timeout
        )


def new_request_id() -> str:
    """Return a fresh request_id."""
    return str(uuid.uuid4())


def _opened(content: bytes | Path | io.BufferedIOBase) -> AbstractContextManager[io.BufferedIOBase]:
    if isinstance(content, bytes):
        return io.BytesIO(content)
    if isinstance(content, Path):
        return content.open("rb")
    return nullcontext(content)
