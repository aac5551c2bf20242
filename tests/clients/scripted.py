"""A server that plays a script: what no daemon says yet, and what one says only in bad moments.

A script is the `scripted` object of a scenario:

    {"token": TEXT, "told_token": TEXT, "stranger": BOOL, "subscribe": [ATTEMPT, ...],
     "calls": {METHOD: [ATTEMPT, ...]}}

`told_token` is what the token file says when that is not the truth, `stranger` makes the certificate one
that the CA did not sign. It listens on a unix socket, on loopback TCP, and on loopback TCP with TLS.
An ATTEMPT is a list of actions, carried out in order for one call; the last attempt repeats.

- in both: `{"wait_ms": N}`, `{"hang": true}` (until the call ends), `{"new_token": TEXT}` (from now on
  only this one is accepted, and it stands in the token file), `{"abort": {"code", "message", "reason",
  "domain", "metadata", "field", "retry_ms"}}`
- in calls: `{"response": {...}}`
- in Subscribe: `{"events": [EVENT, ...]}`, `{"texts": {"from": A, "to": B, "size": N}}`,
  `{"unknown_event": {"seq": N, "ignorable": B}, "and": [EVENT, ...]}`,
  `{"heartbeats": {"count": N, "every_ms": N}}`, `{"transcript_id": TEXT}` (of the responses from here
  on), `{"end": true}`
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import trustme
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from sessiond.v1 import attachment_service_pb2, event_pb2, server_service_pb2, session_service_pb2

__all__ = ["ScriptedServer"]

Json: TypeAlias = dict[str, Any]
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_FILES = (session_service_pb2, attachment_service_pb2, server_service_pb2)
_TRANSCRIPT = "t1"
_UNKNOWN_FIELD = 99
_LENGTH_DELIMITED = 2


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(content)) + content


def _unknown(action: Json) -> bytes:
    """An event as a later contract may have it: a body in a field that nobody knows today."""
    known = json_format.ParseDict(action, event_pb2.Event())
    body = _field(1, b"from a later contract") + _varint(2 << 3) + _varint(7)
    return known.SerializeToString() + _field(_UNKNOWN_FIELD, body)


def _events(action: Json) -> list[bytes]:
    """Return the encoded events of one action, in order."""
    if "unknown_event" in action:
        rest = _events({"events": action.get("and", [])})
        return [_unknown(action["unknown_event"]), *rest]
    if "texts" in action:
        texts = action["texts"]
        seqs = range(int(texts["from"]), int(texts["to"]) + 1)
        size = int(texts.get("size", 1))
        listed = [{"seq": str(s), "assistant_text": {"delta": "x" * size}} for s in seqs]
        return _events({"events": listed})
    parsed = (json_format.ParseDict(e, event_pb2.Event()) for e in action["events"])
    return [e.SerializeToString() for e in parsed]


def _status(abort: Json) -> status_pb2.Status:
    details: list[AnyMessage] = []

    def add(message: Any) -> None:
        packed = AnyMessage()
        packed.Pack(message)
        details.append(packed)

    if "reason" in abort:
        metadata = abort.get("metadata", {})
        domain = abort.get("domain", "sessiond")
        add(error_details_pb2.ErrorInfo(reason=abort["reason"], domain=domain, metadata=metadata))
    if "field" in abort:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=abort["field"], description=abort["message"]
        )
        add(error_details_pb2.BadRequest(field_violations=[violation]))
    if "retry_ms" in abort:
        delay = Duration()
        delay.FromMilliseconds(abort["retry_ms"])
        add(error_details_pb2.RetryInfo(retry_delay=delay))
    code: int = grpc.StatusCode[abort["code"]].value[0]
    return status_pb2.Status(code=code, message=abort["message"], details=details)


class ScriptedServer:
    """One server of one scenario. `seen()` is what `expect_server` is compared with."""

    def __init__(self, script: Json, token_file: Path) -> None:
        self._script = script
        self._token = script.get("token", "")
        self._token_file = token_file
        self._subscribes: list[Json] = []
        self._calls: list[Json] = []
        self._attempts: dict[str, int] = {}
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._server: grpc.aio.Server | None = None
        token_file.write_text(f"{script.get('told_token', self._token)}\n")

    async def start(self, unix: Path, ca_file: Path) -> tuple[int, int]:
        """Listen on the unix socket and on two free loopback ports; return them: plain, TLS.

        `ca_file` is written: what clients verify the TLS port with.
        """
        options = [("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)]
        server = grpc.aio.server(options=options)
        for file in _FILES:
            for service in file.DESCRIPTOR.services_by_name.values():
                handlers = {m.name: self._handler(m) for m in service.methods}
                server.add_generic_rpc_handlers(
                    (grpc.method_handlers_generic_handler(service.full_name, handlers),)
                )
        server.add_insecure_port(f"unix:{unix}")
        port = server.add_insecure_port("127.0.0.1:0")
        secure = server.add_secure_port("127.0.0.1:0", self._credentials(ca_file))
        await server.start()
        self._server = server
        return port, secure

    def _credentials(self, ca_file: Path) -> grpc.ServerCredentials:
        ca = trustme.CA()
        ca.cert_pem.write_to_path(str(ca_file))
        signer = trustme.CA() if self._script.get("stranger") else ca
        certificate = signer.issue_cert("localhost", "127.0.0.1")
        chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
        return grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])

    async def stop(self) -> None:
        """End every call and stop listening."""
        if self._server is not None:
            await self._server.stop(grace=None)

    async def seen(self) -> Json:
        """Return all calls so far, once the last of them has ended (bounded: five seconds)."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout=5)
        return {"subscribes": self._subscribes, "calls": self._calls}

    def _handler(self, method: Any) -> grpc.RpcMethodHandler[Any, Any]:
        name: str = method.name
        pool = descriptor_pool.Default()
        request = message_factory.GetMessageClass(
            pool.FindMessageTypeByName(method.input_type.full_name)
        )
        answer = message_factory.GetMessageClass(
            pool.FindMessageTypeByName(method.output_type.full_name)
        )

        async def subscribe(asked: Any, context: Context) -> None:
            seen = self._record(self._subscribes, context)
            seen["after_seq"] = str(asked.after_seq)
            seen["transcript_id"] = asked.transcript_id
            stream = _Stream(asked.after_seq, context)
            await self._play(
                seen, self._next("subscribe", self._script.get("subscribe", [])), context, stream.act
            )

        async def unary(asked: Any, context: Context) -> Any:
            seen = self._record(self._calls, context)
            seen["method"] = name
            seen["request"] = json_format.MessageToDict(asked, preserving_proto_field_name=True)
            response = answer()

            async def act(action: Json) -> None:
                json_format.ParseDict(action["response"], response)

            await self._play(seen, self._next(name, self._calls_of(name)), context, act)
            return response

        if name == "Subscribe":
            return grpc.unary_stream_rpc_method_handler(
                subscribe, request_deserializer=request.FromString, response_serializer=bytes
            )
        return grpc.unary_unary_rpc_method_handler(
            unary, request_deserializer=request.FromString, response_serializer=_serialize
        )

    def _calls_of(self, method: str) -> list[list[Json]]:
        attempts: list[list[Json]] | None = self._script.get("calls", {}).get(method)
        if attempts is None and method == "GetServerInfo":
            return [[{"response": {"server_version": "scripted"}}]]
        if attempts is None:
            return [[{"abort": {"code": "UNIMPLEMENTED", "message": f"{method} is not in the script"}}]]
        return attempts

    def _next(self, name: str, attempts: list[list[Json]]) -> list[Json]:
        number = self._attempts.get(name, 0)
        self._attempts[name] = number + 1
        return attempts[min(number, len(attempts) - 1)] if attempts else []

    def _record(self, into: list[Json], context: Context) -> Json:
        remaining = context.time_remaining()
        seen: Json = {"ended": "open"}
        if remaining is not None:
            seen["deadline_ms"] = int(remaining * 1000)
        into.append(seen)
        return seen

    async def _play(
        self, seen: Json, actions: list[Json], context: Context, act: Callable[[Json], Awaitable[None]]
    ) -> None:
        self._open += 1
        self._idle.clear()
        try:
            await self._authenticate(context)
            for action in actions:
                if not await self._common(action, context):
                    await act(action)
            seen["ended"] = "ok"
        except asyncio.CancelledError:
            seen["ended"] = "cancelled"
            raise
        except grpc.aio.AbortError:
            seen["ended"] = "aborted"
            raise
        finally:
            self._open -= 1
            if self._open == 0:
                self._idle.set()

    async def _common(self, action: Json, context: Context) -> bool:
        """Carry out an action that is not of one kind of call; False: it is."""
        if "wait_ms" in action:
            await asyncio.sleep(action["wait_ms"] / 1000)
        elif "hang" in action:
            await asyncio.Event().wait()
        elif "abort" in action:
            await context.abort_with_status(rpc_status.to_status(_status(action["abort"])))
        elif "new_token" in action:
            self._token = action["new_token"]
            self._token_file.write_text(self._token + "\n")
        elif "end" not in action:
            return False
        return True

    async def _authenticate(self, context: Context) -> None:
        sent: Mapping[str, Any] = dict(context.invocation_metadata() or ())
        if not self._token or context.peer().startswith("unix:"):
            return
        if sent.get("authorization") != f"Bearer {self._token}":
            refusal = {
                "code": "UNAUTHENTICATED",
                "message": "no such token",
                "reason": "UNAUTHENTICATED",
            }
            await context.abort_with_status(rpc_status.to_status(_status(refusal)))


class _Stream:
    """The responses of one Subscribe, with the bookmarks each of them carries."""

    def __init__(self, after_seq: int, context: Context) -> None:
        self._context = context
        self._head = after_seq
        self._transcript = _TRANSCRIPT

    async def act(self, action: Json) -> None:
        if "transcript_id" in action:
            self._transcript = action["transcript_id"]
            return
        if "heartbeats" in action:
            for _ in range(action["heartbeats"]["count"]):
                await asyncio.sleep(action["heartbeats"]["every_ms"] / 1000)
                await self._write([])
            return
        await self._write(_events(action))

    async def _write(self, events: list[bytes]) -> None:
        if events:
            self._head = event_pb2.Event.FromString(events[-1]).seq
        rest = session_service_pb2.SubscribeResponse(
            head_seq=self._head, first_seq=1, transcript_id=self._transcript
        )
        joined = b"".join(_field(1, e) for e in events)
        await self._context.write(joined + rest.SerializeToString())


def _serialize(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
