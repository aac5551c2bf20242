"""The gate over real sockets: authentication, statuses, streams, draining, logs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias, cast

import grpc
import pytest
import trustme
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status

from sessiond.v1 import attachment_service_pb2 as pb
from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1.session_pb2 import Attachment
from sessiond_server import auth, logs, rpc, server
from sessiond_server.auth import Authenticator
from sessiond_server.config import Config, ListenAddress, Log, TcpAddress, Tls, UnixAddress
from sessiond_server.drain import Drain
from sessiond_server.errors import DomainError, invalid
from sessiond_server.rpc import Context, Gate, service_handler
from sessiond_server.server import CannotServe, Server
from sessiond_server.store import StorageFull
from tests.support.waiting import until

Play: TypeAlias = Callable[[Message, Context], Awaitable[Any]]
# A call of bytes, as they are on the wire.
Unary: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"
SERVICE = pb.DESCRIPTOR.services_by_name["AttachmentService"]
TOKEN = "the-token"
AUTHORIZED = (("authorization", f"Bearer {TOKEN}"),)


class Servicer:
    """Does in each call what the test says."""

    def __init__(self) -> None:
        self.play: Play = self.echo

    async def echo(self, request: Message, context: Context) -> Any:
        assert isinstance(request, pb.GetAttachmentRequest)
        attachment = Attachment(ref=request.ref, filename=auth.actor())
        return pb.GetAttachmentResponse(attachment=attachment)

    async def GetAttachment(self, request: pb.GetAttachmentRequest, context: Context) -> Any:
        return await self.play(request, context)

    async def WriteAttachment(self, request: pb.WriteAttachmentRequest, context: Context) -> Any:
        return await self.play(request, context)

    async def ReadAttachment(self, request: pb.ReadAttachmentRequest, context: Context) -> None:
        await self.play(request, context)


class House:
    """A served gate with what a test needs of it."""

    def __init__(self, config: Config) -> None:
        self.drain = Drain()
        self.servicer = Servicer()
        self.config = config
        self.gate = Gate(Authenticator(TOKEN), self.drain)
        self.server = Server(config, self.gate, self.drain, {SERVICE: self.servicer})
        self.addresses: list[ListenAddress] = []

    @property
    def unix(self) -> str:
        return next(str(a) for a in self.addresses if isinstance(a, UnixAddress))

    @property
    def tcp(self) -> str:
        return next(str(a) for a in self.addresses if isinstance(a, TcpAddress))


@contextlib.asynccontextmanager
async def housed(config: Config) -> AsyncIterator[House]:
    house = House(config)
    house.addresses = await house.server.start()
    try:
        yield house
    finally:
        await house.server.stop()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    tmp_path.chmod(0o700)
    return Config(
        data_dir=tmp_path,
        runtime_dir=tmp_path,
        listen=(f"unix:{tmp_path}/s", "127.0.0.1:0"),
        drain_grace=0.2,
    )


@pytest.fixture
async def house(config: Config) -> AsyncIterator[House]:
    async with housed(config) as served:
        yield served


async def get(channel: grpc.aio.Channel, data: bytes = b"", **options: Any) -> pb.GetAttachmentResponse:
    call: Unary = channel.unary_unary("/sessiond.v1.AttachmentService/GetAttachment")
    return pb.GetAttachmentResponse.FromString(await call(data, timeout=10, **options))


def read(channel: grpc.aio.Channel, **options: Any) -> Any:
    call = channel.unary_stream(
        "/sessiond.v1.AttachmentService/ReadAttachment",
        request_serializer=pb.ReadAttachmentRequest.SerializeToString,
        response_deserializer=pb.ReadAttachmentResponse.FromString,
    )
    return call(pb.ReadAttachmentRequest(), timeout=10, **options)


def details(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    status = rpc_status.from_call(cast(grpc.Call, error))
    found: dict[str, Any] = {}
    for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
        for packed in status.details if status else ():
            message = kind()
            if packed.Unpack(message):
                found[kind.__name__] = message
    return found


async def failing(awaitable: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value


# --- who may ---


async def test_unix_needs_no_token_and_gives_the_users_name(house: House) -> None:
    async with grpc.aio.insecure_channel(house.unix) as channel:
        response = await get(channel, pb.GetAttachmentRequest(ref="r").SerializeToString())
    assert response.attachment.ref == "r"
    assert response.attachment.filename not in ("", "token")


async def test_tcp_needs_the_token_for_every_kind_of_call(house: House) -> None:
    async with grpc.aio.insecure_channel(house.tcp) as channel:
        assert (await get(channel, metadata=AUTHORIZED)).attachment.filename == "token"
        wrong = (("authorization", "Bearer no"),)
        for metadata in (None, wrong):
            error = await failing(get(channel, metadata=metadata))
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            assert details(error)["ErrorInfo"].reason == "UNAUTHENTICATED"
            error = await failing(anext(aiter(read(channel, metadata=metadata))))
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            error = await failing(anext(aiter(reflect(channel, metadata=metadata))))
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED


@contextlib.asynccontextmanager
async def unfinished(
    channel: grpc.aio.Channel, method: str, **options: Any
) -> AsyncIterator[grpc.aio.StreamUnaryCall[bytes, bytes]]:
    """A call whose request never arrives."""
    release = asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        await release.wait()
        yield b""

    start: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(method)
    call = start(requests(), timeout=10, **options)
    try:
        yield call
    finally:
        call.cancel()
        release.set()


@pytest.mark.parametrize("method", ["GetAttachment", "ReadAttachment"])
async def test_who_may_not_is_refused_before_the_request_is_there(house: House, method: str) -> None:
    async with (
        grpc.aio.insecure_channel(house.tcp) as channel,
        unfinished(channel, f"/sessiond.v1.AttachmentService/{method}") as call,
    ):
        error = await failing(call)
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED
    assert details(error)["ErrorInfo"].reason == "UNAUTHENTICATED"


async def test_strangers_have_little_room_for_unfinished_requests(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "_MOST_STRANGERS", 1)
    check = "/grpc.health.v1.Health/Check"
    async with housed(config) as house, grpc.aio.insecure_channel(house.tcp) as channel:
        health: Unary = channel.unary_unary(check)
        async with unfinished(channel, check):
            await until(house.gate._strangers.locked, "the room is taken")
            assert await health(b"", timeout=10, metadata=AUTHORIZED) == b"\x08\x01"
        assert await health(b"", timeout=10) == b"\x08\x01"
        monkeypatch.setattr(rpc, "_STRANGERS_TIME", 0.05)
        late = grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not arrive in time"
        async with unfinished(channel, check) as call:
            error = await failing(call)
            assert (error.code(), error.details()) == late
        await house.gate._strangers.acquire()
        error = await failing(health(b"", timeout=10))
        assert (error.code(), error.details()) == late


def reflect(channel: grpc.aio.Channel, version: str = "v1", **options: Any) -> Any:
    call = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return call(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=10, **options)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_the_services(house: House, version: str) -> None:
    async with grpc.aio.insecure_channel(house.tcp) as channel:
        (response,) = [r async for r in reflect(channel, version, metadata=AUTHORIZED)]
    names = {service.name for service in response.list_services_response.service}
    assert {"sessiond.v1.AttachmentService", "grpc.health.v1.Health"} <= names


async def test_health_needs_no_token(house: House) -> None:
    async with grpc.aio.insecure_channel(house.tcp) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        for service in ("", SERVICE.full_name):
            answer = await check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        error = await failing(check(health_pb2.HealthCheckRequest(service="no"), timeout=10))
        assert error.code() == grpc.StatusCode.NOT_FOUND


async def test_mutual_tls_names_the_caller(config: Config, tmp_path: Path) -> None:
    ours, theirs = trustme.CA(), trustme.CA()
    served = ours.issue_cert("127.0.0.1")
    served.private_key_pem.write_to_path(tmp_path / "key")
    served.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    theirs.cert_pem.write_to_path(tmp_path / "client_ca")
    phone = theirs.issue_cert("phone.example", common_name="phone")
    tls = Tls(cert=tmp_path / "cert", key=tmp_path / "key", client_ca=tmp_path / "client_ca")
    listening = config.model_copy(update={"tls": tls, "listen": ("127.0.0.1:0",)})
    async with housed(listening) as house:
        credentials = grpc.ssl_channel_credentials(
            ours.cert_pem.bytes(), phone.private_key_pem.bytes(), phone.cert_chain_pems[0].bytes()
        )
        async with grpc.aio.secure_channel(house.tcp, credentials) as channel:
            assert (await get(channel, metadata=AUTHORIZED)).attachment.filename == "phone"
            assert (await failing(get(channel))).code() == grpc.StatusCode.UNAUTHENTICATED
        nobody = grpc.ssl_channel_credentials(ours.cert_pem.bytes())
        async with grpc.aio.secure_channel(house.tcp, nobody) as channel:
            error = await failing(get(channel, metadata=AUTHORIZED))
            assert error.code() == grpc.StatusCode.UNAVAILABLE


# --- what calls get ---


async def test_bytes_and_messages_are_both_responses(house: House) -> None:
    message = pb.GetAttachmentResponse(attachment=Attachment(ref="r"))

    async def unary(request: Message, context: Context) -> Any:
        return message.SerializeToString()

    async def stream(request: Message, context: Context) -> None:
        await context.write(pb.ReadAttachmentResponse(data=b"1"))
        await context.write(pb.ReadAttachmentResponse(data=b"2").SerializeToString())

    async with grpc.aio.insecure_channel(house.unix) as channel:
        house.servicer.play = unary
        assert await get(channel) == message
        house.servicer.play = stream
        assert [r.data async for r in read(channel)] == [b"1", b"2"]


async def test_a_domain_error_is_its_status_also_in_the_middle_of_a_stream(house: House) -> None:
    async def fail(request: Message, context: Context) -> None:
        if isinstance(request, pb.ReadAttachmentRequest):
            await context.write(pb.ReadAttachmentResponse(data=b"1"))
        raise DomainError(
            reasons.ERROR_REASON_WRONG_OFFSET, "no", field="offset", metadata={"a": "b"}, retry_after=1.5
        )

    house.servicer.play = fail
    async with grpc.aio.insecure_channel(house.unix) as channel:
        stream = read(channel)
        assert (await anext(aiter(stream))).data == b"1"
        for error in (await failing(get(channel)), await failing(anext(aiter(stream)))):
            assert (error.code(), error.details()) == (grpc.StatusCode.OUT_OF_RANGE, "no")
            found = details(error)
            assert found["ErrorInfo"].reason == "WRONG_OFFSET"
            assert found["ErrorInfo"].domain == "sessiond"
            assert dict(found["ErrorInfo"].metadata) == {"a": "b"}
            assert found["BadRequest"].field_violations[0].field == "offset"
            assert found["RetryInfo"].retry_delay.ToMilliseconds() == 1500


@pytest.mark.parametrize("letter", ["x", "é", "\N{GRINNING FACE}", "\n", "\ud800"], ids=ascii)
async def test_the_longest_error_arrives(house: House, letter: str) -> None:
    long = letter * 5000

    async def fail(request: Message, context: Context) -> None:
        raise DomainError(
            reasons.ERROR_REASON_INVALID_FIELD,
            long,
            field=long,
            metadata={f"{number}{long}": long for number in range(100)},
            retry_after=1.5,
        )

    house.servicer.play = fail
    async with grpc.aio.insecure_channel(house.unix) as channel:
        error = await failing(get(channel))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    found = details(error)
    assert found["ErrorInfo"].reason == "INVALID_FIELD"
    assert found["RetryInfo"].retry_delay.ToMilliseconds() == 1500
    text = error.details() or ""
    assert set(text) == {letter if letter.isprintable() or letter == "\n" else "?"}
    assert 1020 < len(text.encode()) <= 1024
    trailers = error.trailing_metadata() or ()
    assert sum(len(key) + len(value) * 4 // 3 for key, value in trailers) + 3 * 1024 < 8 * 1024


async def test_bytes_that_are_no_request_are_an_invalid_argument(house: House) -> None:
    async with grpc.aio.insecure_channel(house.unix) as channel:
        error = await failing(get(channel, b"\xff\xff\xff"))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details(error)["ErrorInfo"].reason == "INVALID_FIELD"


async def test_a_full_disk_says_when_to_come_back(house: House) -> None:
    async def fail(request: Message, context: Context) -> None:
        raise StorageFull

    house.servicer.play = fail
    async with grpc.aio.insecure_channel(house.unix) as channel:
        error = await failing(get(channel))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details(error)["ErrorInfo"].reason == "STORAGE_FULL"
    assert "RetryInfo" in details(error)


@pytest.fixture
def log() -> Any:
    import logging

    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    logs.setup(Log(level="debug", format="json"), stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:] = handlers
    root.setLevel(level)


async def test_a_fault_shows_nothing_of_itself_but_where_to_look(house: House, log: Any) -> None:
    async def fail(request: Message, context: Context) -> None:
        raise ZeroDivisionError("inner workings")

    house.servicer.play = fail
    async with grpc.aio.insecure_channel(house.unix) as channel:
        error = await failing(get(channel))
    assert error.code() == grpc.StatusCode.INTERNAL
    info = details(error)["ErrorInfo"]
    assert info.reason == "INTERNAL"
    assert "inner workings" not in str(error)
    (line,) = [line for line in log() if line["event"] == "call_failed"]
    assert line["error_id"] == info.metadata["error_id"]
    assert "ZeroDivisionError: inner workings" in line["exception"]


async def test_calls_are_logged_with_their_session_and_without_contents(house: House, log: Any) -> None:
    async def refuse(request: Message, context: Context) -> None:
        raise invalid("ref", "nonsense")

    async with grpc.aio.insecure_channel(house.unix) as channel:
        request = pb.GetAttachmentRequest(session_id="s-1", ref="contents").SerializeToString()
        await get(channel, request)
        house.servicer.play = refuse
        await failing(get(channel, request))
        await failing(get(channel))
    lines = [line for line in log() if line["event"] == "call"]
    assert [(line["code"], line.get("session_id")) for line in lines] == [
        ("OK", "s-1"),
        ("INVALID_ARGUMENT", "s-1"),
        ("INVALID_ARGUMENT", None),
    ]
    assert lines[0]["method"] == "/sessiond.v1.AttachmentService/GetAttachment"
    assert lines[0]["ms"] >= 0
    assert "contents" not in json.dumps(lines)


async def test_a_cancelled_call_sees_the_cancellation(house: House, log: Any) -> None:
    entered, left = asyncio.Event(), asyncio.Event()
    tasks = []

    async def wait(request: Message, context: Context) -> None:
        tasks.append(asyncio.current_task())
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            # In its own task, or context variables could not be reset here.
            tasks.append(asyncio.current_task())
            left.set()

    house.servicer.play = wait
    async with grpc.aio.insecure_channel(house.unix) as channel:
        stream = read(channel)
        reading = asyncio.create_task(failing(anext(aiter(stream))))
        async with asyncio.timeout(10):
            await entered.wait()
            stream.cancel()
            await left.wait()
        reading.cancel()
        await asyncio.wait((reading,))
    assert tasks[0] is tasks[1]
    await until(lambda: any(line.get("code") == "CANCELLED" for line in log()), "it is logged")
    assert not [line for line in log() if line["level"] == "error"]


async def test_a_call_that_is_cut_off_in_its_request_is_logged_as_that(house: House, log: Any) -> None:
    method = "/sessiond.v1.AttachmentService/GetAttachment"
    async with grpc.aio.insecure_channel(house.unix) as channel:
        await get(channel)
        async with unfinished(channel, method) as call:
            # On the wire, and the daemon answers what comes after it.
            await call.wait_for_connection()
            await get(channel)
        await until(lambda: any(line.get("code") == "CANCELLED" for line in log()), "it is logged")

        async def nothing() -> AsyncIterator[bytes]:
            return
            yield b""

        start: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(method)
        error = await failing(start(nothing(), timeout=10))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert details(error)["ErrorInfo"].reason == "INVALID_FIELD"
    assert not [line for line in log() if line["level"] == "error"]


# --- the end ---


async def test_draining_refuses_new_calls_but_not_health(house: House) -> None:
    async with grpc.aio.insecure_channel(house.tcp) as channel:
        await get(channel, metadata=AUTHORIZED)
        house.drain.begin()
        error = await failing(get(channel, metadata=AUTHORIZED))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        found = details(error)
        assert found["ErrorInfo"].reason == "SERVER_DRAINING"
        assert found["RetryInfo"].retry_delay.ToMilliseconds() == 1000
        assert (await failing(get(channel))).code() == grpc.StatusCode.UNAUTHENTICATED
        check: Unary = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"", timeout=10) == b"\x08\x01"


async def test_a_running_call_gets_its_time(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    # What gRPC itself gives after the grace period is not what this is about.
    monkeypatch.setattr(server, "_LAST_WORDS", 0)
    patient = config.model_copy(update={"drain_grace": 30.0})
    entered, release = asyncio.Event(), asyncio.Event()

    async def wait(request: Message, context: Context) -> Any:
        entered.set()
        await release.wait()
        return pb.GetAttachmentResponse()

    async with housed(patient) as house, grpc.aio.insecure_channel(house.unix) as channel:
        house.servicer.play = wait
        call = asyncio.create_task(get(channel))
        await entered.wait()
        stopping = asyncio.create_task(house.server.stop())
        await house.drain.event.wait()
        assert not (await asyncio.wait((stopping,), timeout=0.1))[0]
        release.set()
        assert await call == pb.GetAttachmentResponse()
        async with asyncio.timeout(5):
            await stopping


async def test_a_call_that_goes_on_for_ever_is_cancelled(house: House) -> None:
    entered, left = asyncio.Event(), asyncio.Event()

    async def wait(request: Message, context: Context) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    house.servicer.play = wait
    async with grpc.aio.insecure_channel(house.unix) as channel:
        call = asyncio.create_task(failing(get(channel)))
        await entered.wait()
        async with asyncio.timeout(5):
            await house.server.stop()
            await left.wait()
        assert (await call).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


# --- the start ---


async def test_a_port_in_use_is_refused(house: House, config: Config) -> None:
    other = House(config.model_copy(update={"listen": (house.tcp,)}))
    with pytest.raises(CannotServe, match=house.tcp):
        await other.server.start()


async def test_big_requests_pass_and_bigger_ones_do_not(house: House) -> None:
    async def size(request: Message, context: Context) -> Any:
        return pb.WriteAttachmentResponse(committed_size=request.ByteSize())

    house.servicer.play = size
    async with grpc.aio.insecure_channel(house.unix) as channel:
        write: Unary = channel.unary_unary("/sessiond.v1.AttachmentService/WriteAttachment")
        for mib, code in ((7, None), (9, grpc.StatusCode.RESOURCE_EXHAUSTED)):
            data = pb.WriteAttachmentRequest(data=bytes(mib << 20)).SerializeToString()
            if code is None:
                await write(data, timeout=20)
            else:
                assert (await failing(write(data, timeout=20))).code() == code


def test_only_coroutine_methods_are_served() -> None:
    class Generator(Servicer):
        async def ReadAttachment(self, request: Any, context: Context) -> Any:
            yield b""

    class Synchronous(Servicer):
        def GetAttachment(self, request: Any, context: Context) -> Any:
            return b""

    for servicer in (Generator(), Synchronous(), object()):
        with pytest.raises(TypeError, match=r"\.(ReadAttachment|GetAttachment|WriteAttachment) is no"):
            service_handler(SERVICE, servicer)
