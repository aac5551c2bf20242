"""Bad input gets a typed error that says what to do, and leaves no trace."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import grpc
import pytest

from sessiond.v1 import (
    attachment_service_pb2,
    attachment_service_pb2_grpc,
    session_pb2,
    session_service_pb2_grpc,
)
from sessiond.v1 import session_service_pb2 as api
from tests.support.daemon import Daemon
from tests.support.session import TIMEOUT, Watched, failing, watched

_LIMITS = {
    "limits.max_sessions": "3",
    "limits.max_queue_length": "2",
    "limits.max_subscribers": "3",
    "limits.max_text_bytes": "1000",
    "limits.max_attachment_bytes": "5000",
    "limits.max_chunk_bytes": "2000",
}


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    async with Daemon(settings=_LIMITS) as started:
        yield started


@pytest.fixture
async def session(daemon: Daemon) -> AsyncIterator[Watched]:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.until_state("IDLE")
        yield session


def _create(daemon: Daemon, **fields: Any) -> api.CreateSessionRequest:
    return api.CreateSessionRequest(**{"driver": "echo", "workspace": str(daemon.workspace), **fields})


_CREATE: list[tuple[dict[str, Any], str, str, str]] = [
    ({"driver": ""}, "INVALID_ARGUMENT", "INVALID_FIELD", "driver"),
    ({"driver": "nonesuch"}, "INVALID_ARGUMENT", "DRIVER_UNKNOWN", "driver"),
    ({"workspace": ""}, "INVALID_ARGUMENT", "INVALID_FIELD", "workspace"),
    ({"workspace": "relative"}, "INVALID_ARGUMENT", "INVALID_FIELD", "workspace"),
    ({"workspace": "/etc"}, "INVALID_ARGUMENT", "WORKSPACE_NOT_ALLOWED", "workspace"),
    ({"workspace": "{}/../../etc"}, "INVALID_ARGUMENT", "WORKSPACE_NOT_ALLOWED", "workspace"),
    ({"workspace": "{}/link-to-root"}, "INVALID_ARGUMENT", "WORKSPACE_NOT_ALLOWED", "workspace"),
    ({"workspace": "{}/missing"}, "FAILED_PRECONDITION", "WORKSPACE_NOT_FOUND", "workspace"),
    ({"session_id": "../x"}, "INVALID_ARGUMENT", "INVALID_FIELD", "session_id"),
    ({"session_id": "x" * 65}, "INVALID_ARGUMENT", "INVALID_FIELD", "session_id"),
    ({"title": "x" * 257}, "INVALID_ARGUMENT", "INVALID_FIELD", "title"),
    ({"labels": {"": "v"}}, "INVALID_ARGUMENT", "INVALID_FIELD", "labels"),
    ({"labels": {"k": "v" * 257}}, "INVALID_ARGUMENT", "INVALID_FIELD", "labels"),
    ({"environment": {"A=B": "v"}}, "INVALID_ARGUMENT", "INVALID_FIELD", "environment"),
    ({"environment": {"A": "a\0b"}}, "INVALID_ARGUMENT", "INVALID_FIELD", "environment"),
    ({"request_id": "x" * 129}, "INVALID_ARGUMENT", "INVALID_FIELD", "request_id"),
    ({"system_prompt": "x" * 1001}, "INVALID_ARGUMENT", "INVALID_FIELD", "system_prompt"),
]


async def test_a_session_that_cannot_be_is_not_created(daemon: Daemon) -> None:
    (daemon.workspace / "link-to-root").symlink_to("/")
    async with daemon.channel() as channel:
        stub: session_service_pb2_grpc.SessionServiceAsyncStub
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        for fields, code, reason, field in _CREATE:
            given = {
                key: value.replace("{}", str(daemon.workspace)) if isinstance(value, str) else value
                for key, value in fields.items()
            }
            async with failing(code, reason, field):
                await stub.CreateSession(_create(daemon, **given), timeout=TIMEOUT)
        listed = await stub.ListSessions(api.ListSessionsRequest(), timeout=TIMEOUT)
        assert not listed.sessions
    assert list((daemon.data_dir / "sessions").glob("*")) == []


async def test_a_missing_program_says_what_to_install() -> None:
    missing = {"drivers.echo.binary": '"/nowhere/python"'}
    async with Daemon(settings=missing) as daemon, daemon.channel() as channel:
        stub: session_service_pb2_grpc.SessionServiceAsyncStub
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        async with failing("FAILED_PRECONDITION", "DRIVER_UNAVAILABLE") as refused:
            await stub.CreateSession(_create(daemon), timeout=TIMEOUT)
        assert "/nowhere/python" in refused.failure.text
        assert refused.failure.metadata["driver"] == "echo"


async def test_limits_are_kept(daemon: Daemon, session: Watched) -> None:
    stub = session.stub
    await stub.CreateSession(_create(daemon), timeout=TIMEOUT)
    await stub.CreateSession(_create(daemon, session_id="third"), timeout=TIMEOUT)
    async with failing("RESOURCE_EXHAUSTED", "TOO_MANY_SESSIONS"):
        await stub.CreateSession(_create(daemon), timeout=TIMEOUT)
    async with failing("ALREADY_EXISTS", "SESSION_EXISTS"):
        await stub.CreateSession(_create(daemon, session_id="third"), timeout=TIMEOUT)
    subscribe = api.SubscribeRequest(session_id=session.session_id)
    streams = [stub.Subscribe(subscribe) for _ in range(2)]
    for stream in streams:
        await anext(aiter(stream))
    async with failing("RESOURCE_EXHAUSTED", "TOO_MANY_SUBSCRIBERS"):
        await anext(aiter(stub.Subscribe(subscribe)))
    for stream in streams:
        stream.cancel()
    await session.send("!sleep 60")
    await session.until("turn_started")
    for _ in range(2):
        await session.send("waits", delivery=session_pb2.DELIVERY_NEXT_TURN)
    head = (await session.get()).head_seq
    async with failing("RESOURCE_EXHAUSTED", "QUEUE_FULL") as full:
        await session.send("too many", delivery=session_pb2.DELIVERY_NEXT_TURN)
    assert full.failure.retry.HasField("retry_delay")
    assert (await session.get()).head_seq == head


Attempt = Callable[[Watched], Awaitable[Any]]
_ATTEMPTS: dict[str, tuple[Attempt, str, str, str | None]] = {
    "no text": (lambda s: s.send(""), "INVALID_ARGUMENT", "INVALID_FIELD", "text"),
    "long text": (lambda s: s.send("x" * 1001), "INVALID_ARGUMENT", "INVALID_FIELD", "text"),
    "no such delivery": (
        lambda s: s.send("x", delivery=session_pb2.Delivery.ValueType(77)),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "delivery",
    ),
    "no such attachment": (
        lambda s: s.send("x", attachment_refs=["0" * 64]),
        "NOT_FOUND",
        "ATTACHMENT_NOT_FOUND",
        None,
    ),
    "no reference": (
        lambda s: s.send("x", attachment_refs=["../../etc/passwd"]),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "attachment_refs",
    ),
    "no action": (lambda s: s.control(), "INVALID_ARGUMENT", "UNKNOWN_ACTION", "action"),
    "no model": (
        lambda s: s.control(set_model=api.SetModel()),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "set_model.model",
    ),
    "nothing to interrupt": (
        lambda s: s.control(interrupt=api.Interrupt()),
        "FAILED_PRECONDITION",
        "TURN_NOT_RUNNING",
        None,
    ),
    "another turn": (
        lambda s: s.control(interrupt=api.Interrupt(turn_id="turn-99")),
        "FAILED_PRECONDITION",
        "TURN_NOT_RUNNING",
        None,
    ),
    "no question": (lambda s: s.answer("", "a"), "INVALID_ARGUMENT", "INVALID_FIELD", "question_id"),
    "long answers": (
        lambda s: s.answer("q-99", "a" * 600, "b" * 600),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "answers",
    ),
    "long note": (
        lambda s: s.answer("q-99", "a" * 600, note="n" * 600),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "note",
    ),
    "unknown question": (lambda s: s.answer("q-99", "a"), "NOT_FOUND", "QUESTION_NOT_FOUND", None),
    "no message": (lambda s: s.unqueue(""), "INVALID_ARGUMENT", "INVALID_FIELD", "message_id"),
    "no command": (
        lambda s: s.control(run_command=api.RunCommand()),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "run_command.text",
    ),
    "negative page": (
        lambda s: s.stub.ListEvents(
            api.ListEventsRequest(session_id=s.session_id, page_size=-1), timeout=TIMEOUT
        ),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "page_size",
    ),
    "page from the future": (
        lambda s: s.stub.ListEvents(
            api.ListEventsRequest(session_id=s.session_id, before_seq=10**9), timeout=TIMEOUT
        ),
        "OUT_OF_RANGE",
        "SEQ_IN_FUTURE",
        "before_seq",
    ),
    "bad page token": (
        lambda s: s.stub.ListSessions(
            api.ListSessionsRequest(page_token="not a token"), timeout=TIMEOUT
        ),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "page_token",
    ),
    "a state that is none": (
        lambda s: s.stub.ListSessions(
            api.ListSessionsRequest(states=[session_pb2.SESSION_STATE_IDLE, cast(Any, 99)]),
            timeout=TIMEOUT,
        ),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "states",
    ),
    "no mask": (
        lambda s: s.stub.UpdateSession(
            api.UpdateSessionRequest(session=session_pb2.Session(session_id=s.session_id)),
            timeout=TIMEOUT,
        ),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "update_mask",
    ),
}


async def test_calls_that_cannot_be_change_nothing(session: Watched) -> None:
    before = await session.get()
    for name, (attempt, code, reason, field) in _ATTEMPTS.items():
        try:
            async with failing(code, reason, field):
                await attempt(session)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    assert await session.get() == before


@pytest.mark.parametrize("call", ["GetSession", "DeleteSession", "Send", "Answer", "Unqueue", "Control"])
async def test_an_unknown_session_is_not_found(daemon: Daemon, call: str) -> None:
    request = getattr(api, f"{call}Request")(session_id="no-such-session")
    async with daemon.channel() as channel:
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        async with failing("NOT_FOUND", "SESSION_NOT_FOUND") as missing:
            await getattr(stub, call)(request, timeout=TIMEOUT)
        assert missing.failure.metadata["session_id"] == "no-such-session"


async def test_uploads_are_checked_chunk_by_chunk(daemon: Daemon, session: Watched) -> None:
    data = b"some bytes" * 400
    digest = hashlib.sha256(data).hexdigest()

    def chunk(offset: int, size: int, **fields: Any) -> attachment_service_pb2.WriteAttachmentRequest:
        return attachment_service_pb2.WriteAttachmentRequest(
            session_id=session.session_id,
            upload_id="upload",
            offset=offset,
            data=data[offset : offset + size],
            **fields,
        )

    async with daemon.channel() as channel:
        stub: attachment_service_pb2_grpc.AttachmentServiceAsyncStub
        stub = attachment_service_pb2_grpc.AttachmentServiceStub(channel)
        first = await stub.WriteAttachment(chunk(0, 1000), timeout=TIMEOUT)
        assert first.committed_size == 1000
        async with failing("OUT_OF_RANGE", "WRONG_OFFSET") as wrong:
            await stub.WriteAttachment(chunk(2000, 1000), timeout=TIMEOUT)
        assert wrong.failure.metadata["committed_size"] == "1000"
        async with failing("INVALID_ARGUMENT", "INVALID_FIELD"):
            await stub.WriteAttachment(chunk(1000, 2001), timeout=TIMEOUT)
        await daemon.restart()
        await stub.WriteAttachment(chunk(1000, 1000), timeout=TIMEOUT, wait_for_ready=True)
        done = await stub.WriteAttachment(
            chunk(2000, 2000, finish=True, sha256=digest, filename="a.txt"), timeout=TIMEOUT
        )
        assert (done.attachment.ref, done.attachment.size_bytes) == (digest, 4000)
        read = attachment_service_pb2.ReadAttachmentRequest(
            session_id=session.session_id, ref=digest, offset=500
        )
        parts = [part.data async for part in stub.ReadAttachment(read, timeout=TIMEOUT)]
        assert b"".join(parts) == data[500:]
        async with failing("INVALID_ARGUMENT", "DIGEST_MISMATCH"):
            bad = chunk(0, 1000, finish=True, sha256="0" * 64)
            bad.upload_id = "another"
            await stub.WriteAttachment(bad, timeout=TIMEOUT)
    sent = await session.send("with a file", attachment_refs=[digest])
    taken = await session.until("user_message", lambda m: m.message_id == sent.message_id)
    assert taken.user_message.attachments[0].filename == "a.txt"


async def test_tcp_needs_the_token(daemon: Daemon) -> None:
    async with grpc.aio.insecure_channel(daemon.tcp) as channel:
        stub: session_service_pb2_grpc.SessionServiceAsyncStub
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            async with failing("UNAUTHENTICATED", "UNAUTHENTICATED"):
                await stub.ListSessions(api.ListSessionsRequest(), metadata=metadata, timeout=TIMEOUT)
            async with failing("UNAUTHENTICATED", "UNAUTHENTICATED"):
                call = stub.Subscribe(api.SubscribeRequest(session_id="x"), metadata=metadata)
                await anext(aiter(call))
        allowed = (("authorization", f"Bearer {daemon.token}"),)
        await stub.ListSessions(api.ListSessionsRequest(), metadata=allowed, timeout=TIMEOUT)
