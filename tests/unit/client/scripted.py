"""A daemon whose behaviour a test writes down, on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc import aio
from grpc_status import rpc_status

from sessiond.v1 import (
    attachment_service_pb2,
    attachment_service_pb2_grpc,
    event_pb2,
    server_service_pb2,
    server_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
)

Context = aio.ServicerContext[Any, Any]
Request = session_service_pb2.SubscribeRequest
Response = session_service_pb2.SubscribeResponse
Reply = Callable[[Any, Context], Awaitable[Message]]
Stream = Callable[[Request, Context], Awaitable[None]]


def events(first: int, last: int) -> list[event_pb2.Event]:
    """Events first..last, each with its seq as text."""
    return [
        event_pb2.Event(seq=seq, assistant_text=event_pb2.AssistantText(delta=f"{seq} "))
        for seq in range(first, last + 1)
    ]


def batch(first: int, last: int, head: int, transcript: str = "t1") -> Response:
    """A response with events first..last; last < first is an empty one."""
    return Response(events=events(first, last), head_seq=head, first_seq=1, transcript_id=transcript)


def _pack(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


async def fail(
    context: Context,
    code: grpc.StatusCode,
    reason: str = "",
    message: str = "as scripted",
    *,
    metadata: Mapping[str, str] | None = None,
    field_name: str = "",
    retry_ms: int | None = None,
) -> None:
    """End the call with a status as the daemon makes them."""
    details: list[Message] = []
    if reason:
        details.append(
            error_details_pb2.ErrorInfo(reason=reason, domain="sessiond", metadata=metadata or {})
        )
    if field_name:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field_name, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if retry_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(retry_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(
        code=code.value[0], message=message, details=[_pack(detail) for detail in details]
    )
    await context.abort_with_status(rpc_status.to_status(status))


@dataclass
class Scripted:
    """What the daemon does: one function per unary method name, and one for Subscribe.

    `requests` records every request in order, `metadata` what came with each.
    """

    heartbeat_ms: int = 15_000
    replies: dict[str, Reply] = field(default_factory=dict)
    stream: Stream | None = None
    read: Callable[[Any, Context], Awaitable[None]] | None = None
    requests: list[Message] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    server: aio.Server | None = None

    def of_type(self, kind: type[Message]) -> list[Any]:
        """The recorded requests of one type."""
        return [request for request in self.requests if isinstance(request, kind)]

    async def start(self, address: str) -> int:
        """Serve at `address`; returns the port of a TCP one."""
        server = aio.server(options=[("grpc.so_reuseport", 0)])
        session_service_pb2_grpc.add_SessionServiceServicer_to_server(_sessions(self), server)
        attachment_service_pb2_grpc.add_AttachmentServiceServicer_to_server(_attachments(self), server)
        server_service_pb2_grpc.add_ServerServiceServicer_to_server(_server(self), server)
        port = server.add_insecure_port(address)
        await server.start()
        self.server = server
        return port

    async def stop(self) -> None:
        """Cut every stream and connection, as a killed daemon does."""
        server, self.server = self.server, None
        if server is not None:
            await server.stop(None)

    def note(self, request: Message, context: Context) -> None:
        """Record a request."""
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata() or ()))


def _method(scripted: Scripted, name: str, default: type[Message]) -> Any:
    async def handle(_: object, request: Message, context: Context) -> Message:
        scripted.note(request, context)
        reply = scripted.replies.get(name)
        return await reply(request, context) if reply else default()

    return handle


def _servicer(scripted: Scripted, base: type, module: Any, names: list[str], **more: Any) -> Any:
    methods = {name: _method(scripted, name, getattr(module, f"{name}Response")) for name in names}
    return type("Servicer", (base,), {**methods, **more})()


def _sessions(scripted: Scripted) -> Any:
    async def subscribe(_: object, request: Request, context: Context) -> None:
        scripted.note(request, context)
        assert scripted.stream is not None
        await scripted.stream(request, context)

    service = session_service_pb2.DESCRIPTOR.services_by_name["SessionService"]
    names = [method.name for method in service.methods if method.name != "Subscribe"]
    base = session_service_pb2_grpc.SessionServiceServicer
    return _servicer(scripted, base, session_service_pb2, names, Subscribe=subscribe)


def _attachments(scripted: Scripted) -> Any:
    async def read(_: object, request: Message, context: Context) -> None:
        scripted.note(request, context)
        assert scripted.read is not None
        await scripted.read(request, context)

    names = ["WriteAttachment", "GetAttachment"]
    base = attachment_service_pb2_grpc.AttachmentServiceServicer
    return _servicer(scripted, base, attachment_service_pb2, names, ReadAttachment=read)


def _server(scripted: Scripted) -> Any:
    async def info(_: object, request: Message, context: Context) -> Message:
        scripted.note(request, context)
        response = server_service_pb2.GetServerInfoResponse(server_version="scripted")
        response.limits.heartbeat_interval.FromMilliseconds(scripted.heartbeat_ms)
        return response

    base = server_service_pb2_grpc.ServerServiceServicer
    return type("Servicer", (base,), {"GetServerInfo": info})()


async def for_ever() -> None:
    """Wait until the call is cancelled."""
    await asyncio.Event().wait()


def socket_in(folder: Path) -> str:
    """A unix address in `folder`."""
    return f"unix:{folder / 's.sock'}"
