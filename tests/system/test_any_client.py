"""Whatever a client sends: an answer or a typed error, and the daemon serves on."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from sessiond.v1 import session_service_pb2 as api
from sessiond.v1 import session_service_pb2_grpc
from tests.bench.measure import rss_mb
from tests.chaos import hostile
from tests.support.daemon import Daemon
from tests.support.session import TIMEOUT, Failure, watched

METHODS = [pytest.param(method, id=method.name) for method in hostile.methods()]
AT_ONCE = 8
BAD_BYTES = 150


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[tuple[Daemon, grpc.aio.Channel]]:
    async with Daemon(settings={"log.level": '"warning"'}) as daemon, daemon.channel() as channel:
        yield daemon, channel


async def _call(channel: grpc.aio.Channel, method: MethodDescriptor, request: bytes) -> Failure | None:
    """Make a call of bytes; None when it was answered (or its stream began)."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.server_streaming:
            stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path)
            call = stream(request, timeout=TIMEOUT)
            await call.read()
            call.cancel()
        else:
            unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
            answered = await unary(request, timeout=TIMEOUT)
            GetMessageClass(method.output_type).FromString(answered)
    except grpc.aio.AioRpcError as error:
        return Failure(error)
    return None


def _check(what: str, failure: Failure | None) -> None:
    if failure is not None:
        said = f"{what}: {failure.code} {failure.reason} {failure.text}"
        assert failure.reason, said
        assert failure.info.domain == "sessiond", said
        assert failure.code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), said
        assert failure.text, said


@contextlib.asynccontextmanager
async def _valid(
    daemon: Daemon, channel: grpc.aio.Channel, method: MethodDescriptor
) -> AsyncIterator[Message]:
    """Yield a request that makes sense, for a session in the middle of a turn."""
    async with watched(channel, str(daemon.workspace)) as session:
        await session.send('!ask "Which?" [a|b]\n!hang 0.1')
        asked = await session.until("question_asked")
        waiting = await session.send("waits", delivery=2)
        values: dict[str, Any] = {
            "session_id": session.session_id,
            "driver": "echo",
            "workspace": str(daemon.workspace),
            "question_id": asked.question_asked.question_id,
            "answers": "a",
            "message_id": waiting.message_id,
            "request_id": "",
            "native_session_id": "",
            "transcript_id": "",
            "turn_id": "",
            "model": "echo-1",
            "permission_mode": "ask",
            "effort": "low",
            "page_token": "",
            "paths": "title",
            "delivery": 2,
        }
        if method.name == "CreateSession":
            values["session_id"] = ""
        yield hostile.valid(method, values)
        request = api.DeleteSessionRequest(session_id=session.session_id)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await session.stub.DeleteSession(request, timeout=TIMEOUT)


async def _still_serves(daemon: Daemon, channel: grpc.aio.Channel) -> None:
    async with watched(channel, str(daemon.workspace)) as session:
        await session.run("still here")
        assert session.text() == "still here"
        request = api.DeleteSessionRequest(session_id=session.session_id)
        await session.stub.DeleteSession(request, timeout=TIMEOUT)
    assert "Traceback" not in daemon.log()


async def _delete_all(channel: grpc.aio.Channel) -> None:
    stub: session_service_pb2_grpc.SessionServiceAsyncStub
    stub = session_service_pb2_grpc.SessionServiceStub(channel)
    listed = await stub.ListSessions(api.ListSessionsRequest(page_size=1000), timeout=TIMEOUT)
    for session in listed.sessions:
        request = api.DeleteSessionRequest(session_id=session.session_id)
        await stub.DeleteSession(request, timeout=TIMEOUT)


@pytest.mark.parametrize("method", METHODS)
async def test_every_field_missing_or_absurd(
    method: MethodDescriptor, served: tuple[Daemon, grpc.aio.Channel]
) -> None:
    daemon, channel = served
    gate = asyncio.Semaphore(AT_ONCE)

    async def attempt(name: str, request: Message) -> None:
        async with gate:
            _check(f"{method.name} {name}", await _call(channel, method, request.SerializeToString()))

    async with _valid(daemon, channel, method) as request:
        await asyncio.gather(*(attempt(*varied) for varied in hostile.variations(request)))
    await _delete_all(channel)
    await _still_serves(daemon, channel)


@pytest.mark.parametrize("method", METHODS)
async def test_bytes_that_are_no_request(
    method: MethodDescriptor, served: tuple[Daemon, grpc.aio.Channel]
) -> None:
    daemon, channel = served
    rng = random.Random(method.name)
    others = [other for other in hostile.methods() if other is not method]
    async with _valid(daemon, channel, method) as request:
        data = request.SerializeToString()
        for number in range(BAD_BYTES):
            bad = hostile.mutated(data, rng)
            _check(f"{method.name} {bad!r:.300}", await _call(channel, method, bad))
            if number % 10 == 0:
                strange = hostile.valid(rng.choice(others), {}).SerializeToString()
                _check(f"{method.name} {strange!r:.300}", await _call(channel, method, strange))
    await _delete_all(channel)
    await _still_serves(daemon, channel)


async def test_requests_that_are_too_big(served: tuple[Daemon, grpc.aio.Channel]) -> None:
    daemon, channel = served
    async with watched(channel, str(daemon.workspace)) as session:
        for size in (1_000_000, 7_900_000):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await session.send("x" * size)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert Failure(refused.value).fields == ["text"]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await session.send("x" * 20_000_000)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await session.run("still here")
        assert session.kinds().count("message_queued") == 1
    await _delete_all(channel)


async def test_connections_that_say_little_or_nothing(daemon: Daemon) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    host, _, port = daemon.tcp.rpartition(":")
    before = rss_mb(daemon.pid)
    with contextlib.ExitStack() as stack:
        for number in range(400):
            sock = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            # Nothing, half a preface, a whole one, and one with a frame that promises much.
            sock.sendall(
                (b"", preface[:9], preface, preface + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01")[
                    number % 4
                ]
            )
        for number in range(40):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(str(daemon.runtime_dir / "sessiond.sock"))
            sock.sendall(preface[: number % 24])
        async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
            await session.run("served meanwhile")
            assert session.text() == "served meanwhile"
    assert rss_mb(daemon.pid) - before < 60
    async with daemon.channel() as channel:
        await _still_serves(daemon, channel)


async def test_thousands_of_streams_at_once_all_begin_and_cost_little(daemon: Daemon) -> None:
    count = 3000
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.run("hello")
        head = (await session.get()).head_seq
        before = rss_mb(daemon.pid)
        request = api.SubscribeRequest(session_id=session.session_id, after_seq=head)
        calls = [session.stub.Subscribe(request) for _ in range(count)]
        for response in await asyncio.gather(*(call.read() for call in calls)):
            assert isinstance(response, api.SubscribeResponse)
        assert rss_mb(daemon.pid) - before < 0.05 * count
        await session.send("to all")
        for call in calls:
            response = await call.read()
            assert isinstance(response, api.SubscribeResponse)
            assert response.events[0].seq == head + 1
            call.cancel()
