"""Between gRPC and the services: handlers from the contract, and one gate before all of them.

The gate is the only place that authenticates, maps errors to statuses and writes access logs. Handlers
are coroutines that await `context.write`: a generator's `finally` would run in another task when its
client cancels, and synchronous handlers hang grpc.aio.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2
from grpc_status import rpc_status

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond_server.auth import Authenticator, Caller, set_actor
from sessiond_server.drain import Drain
from sessiond_server.errors import DomainError, invalid, to_status
from sessiond_server.store import StorageFull

__all__ = ["Context", "Gate", "service_handler"]

# What a servicer's method gets: `write` takes a response message, or its bytes.
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]"

_HEALTH = "/grpc.health.v1.Health/"
_STORAGE_RETRY = 5.0
_MOST_ID = 64
# A health check has some bytes; a request of 8 MiB that stays unfinished has the same name.
_MOST_STRANGERS = 4
_STRANGERS_TIME = 5.0

_logger = structlog.get_logger(__name__)


def service_handler(service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
    """Return the handlers of `service`: the coroutine methods of `servicer` that bear its calls' names.

    A method takes (request, context) and returns the response, or awaits `context.write` for each one of
    a stream; a response is a message or the bytes of one. Raises TypeError for a method that is missing
    or no coroutine function.
    """
    handlers = {method.name: _method_handler(method, servicer) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _method_handler(method: MethodDescriptor, servicer: object) -> _Handler:
    serve = getattr(servicer, method.name, None)
    if not inspect.iscoroutinefunction(serve) or method.client_streaming:
        raise TypeError(f"{type(servicer).__name__}.{method.name} is no coroutine method of one request")
    request_type = GetMessageClass(method.input_type)

    async def handle(data: bytes, context: Context) -> Any:
        return await serve(_decode(request_type, data), context)

    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(handle, response_serializer=_encode)
    return grpc.unary_unary_rpc_method_handler(handle, response_serializer=_encode)


def _decode(request_type: type[Message], data: bytes) -> Message:
    try:
        request = request_type.FromString(data)
    except DecodeError as error:
        raise invalid("", f"these bytes are no {request_type.DESCRIPTOR.full_name}") from error
    session_id = getattr(request, "session_id", "")
    if session_id:
        structlog.contextvars.bind_contextvars(session_id=session_id[:_MOST_ID])
    return request


def _encode(response: Message | bytes) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()


class _Cut(Exception):
    """The call ended before its request had arrived."""


class Gate(grpc.aio.ServerInterceptor):
    """Authenticates, refuses while draining, maps errors, logs. Health checks need no token."""

    def __init__(
        self,
        authenticator: Authenticator,
        drain: Drain,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authenticator = authenticator
        self._drain = drain
        self._clock = clock
        self._guarded: dict[str, _Handler] = {}
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._strangers = asyncio.Semaphore(_MOST_STRANGERS)

    async def settle(self, timeout: float) -> None:
        """Wait until no admitted call runs, at most `timeout` seconds. Health checks don't count."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._idle.wait()

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        """Return the guarded handler of the call's method; None (gRPC refuses) if there is none."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        guarded = self._guarded.get(method)
        if guarded is None:
            guarded = self._guarded[method] = self._guard(method, handler)
        return guarded

    def _guard(self, method: str, handler: _Handler) -> _Handler:
        serve: Any = handler.unary_unary or handler.unary_stream or handler.stream_stream

        async def answer(requests: Any, context: Context) -> Any:
            if method.startswith(_HEALTH):
                return await _answer(serve, await self._receive_from_anybody(context), context)
            set_actor(self._authenticator.authenticate(_caller(context)))
            request = requests if handler.request_streaming else await _receive(context)
            with self._admitted():
                return await _answer(serve, request, context)

        async def call(requests: Any, context: Context) -> Any:
            return await self._serve(method, context, lambda: answer(requests, context))

        # On the wire it is the same. But of a unary call gRPC takes in the one message, which may have
        # 8 MiB and stay unfinished, before it can be asked who sends it; of a stream it takes none.
        make: Any = grpc.stream_unary_rpc_method_handler
        if handler.response_streaming:
            make = grpc.stream_stream_rpc_method_handler
        guarded: _Handler = make(call, handler.request_deserializer, handler.response_serializer)
        return guarded

    async def _serve(self, method: str, context: Context, body: Callable[[], Awaitable[Any]]) -> Any:
        started = self._clock()
        try:
            response = await body()
        except asyncio.CancelledError:
            self._log(method, "CANCELLED", started)
            raise
        except grpc.aio.AbortError:
            self._log(method, "ABORTED_BY_LIBRARY", started)
            raise
        except _Cut:
            self._log(method, "CANCELLED", started)
            # Who only forgot to send a request is still there to read this.
            status = to_status(invalid("", "the call came without its request"))
            return await context.abort_with_status(rpc_status.to_status(status))
        except DomainError as error:
            status = to_status(error)
        except StorageFull:
            status = to_status(_storage_full())
        except grpc.aio.InternalError:
            # Written to a client that has gone, perhaps just now. gRPC would log its own exception as a
            # failure of the servicer; this is what it means.
            self._log(method, "CANCELLED", started)
            raise asyncio.CancelledError from None
        except Exception:
            if context.cancelled() or context.done():
                self._log(method, "CANCELLED", started)
                raise
            status = _internal(method)
        else:
            self._log(method, "OK", started)
            return response
        self._log(method, _code_name(status), started)
        return await context.abort_with_status(rpc_status.to_status(status))

    @contextlib.contextmanager
    def _admitted(self) -> Iterator[None]:
        if self._drain.begun:
            raise self._drain.error()
        self._active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    async def _receive_from_anybody(self, context: Context) -> Any:
        """Read the request of a call that needs no token; strangers share little memory and time."""
        try:
            self._authenticator.authenticate(_caller(context))
        except DomainError:
            try:
                async with asyncio.timeout(_STRANGERS_TIME), self._strangers:
                    return await _receive(context)
            except TimeoutError:
                code = grpc.StatusCode.DEADLINE_EXCEEDED
                await context.abort(code, "the request did not arrive in time")
        return await _receive(context)

    def _log(self, method: str, code: str, started: float) -> None:
        write = _logger.debug if method.startswith(_HEALTH) else _logger.info
        write("call", method=method, code=code, ms=round((self._clock() - started) * 1000, 2))


async def _receive(context: Context) -> Any:
    try:
        request = await context.read()
    except DecodeError as error:
        raise invalid("", "these bytes are no request") from error
    if request is grpc.aio.EOF:
        raise _Cut
    return request


async def _answer(serve: Any, request: Any, context: Context) -> Any:
    result = serve(request, context)
    if not inspect.isasyncgen(result):
        return await result
    # The reflection library's handler is a generator; here it runs inside this call's own task.
    async for response in result:
        await context.write(response)
    return None


def _caller(context: Context) -> Caller:
    peer = context.peer()
    if peer.startswith("unix:"):
        return Caller(peer)
    authorization = ""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str):
            authorization = value
    return Caller(peer, authorization, context.auth_context())


def _storage_full() -> DomainError:
    return DomainError(
        reasons.ERROR_REASON_STORAGE_FULL,
        "the daemon's disk is full; nothing was recorded",
        retry_after=_STORAGE_RETRY,
    )


def _internal(method: str) -> status_pb2.Status:
    error_id = secrets.token_hex(4)
    _logger.exception("call_failed", method=method, error_id=error_id)
    return to_status(
        DomainError(
            reasons.ERROR_REASON_INTERNAL,
            f"a fault of the daemon; its log has it as error_id {error_id}",
            metadata={"error_id": error_id},
        )
    )


def _code_name(status: status_pb2.Status) -> str:
    return next(code.name for code in grpc.StatusCode if code.value[0] == status.code)
