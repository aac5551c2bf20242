"""Attachments in chunks, across cuts."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from sessiond.v1 import attachment_service_pb2 as wire
from sessiond.v1 import session_pb2
from sessiond_client import BrokenPromiseError, SessiondClient, SessiondError, UnavailableError
from tests.unit.client.scripted import Context, Scripted, fail

_C = grpc.StatusCode
MIB = 1 << 20
CONTENT = bytes(range(256)) * 4096 * 2 + b"tail"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Store:
    """Keeps uploads as the daemon does; `lose` names requests whose answer is lost, by their number."""

    def __init__(self, lose: set[int] | None = None) -> None:
        self.data = b""
        self.finished: wire.WriteAttachmentRequest | None = None
        self.offsets: list[int] = []
        self._lose = lose or set()

    async def write(self, request: wire.WriteAttachmentRequest, context: Context) -> Message:
        self.offsets.append(request.offset)
        if request.offset != len(self.data):
            await fail(
                context,
                _C.OUT_OF_RANGE,
                "WRONG_OFFSET",
                metadata={"committed_size": str(len(self.data))},
            )
        self.data += request.data
        if len(self.offsets) in self._lose:
            await fail(context, _C.UNAVAILABLE)
        response = wire.WriteAttachmentResponse(committed_size=len(self.data))
        if request.finish:
            self.finished = request
            response.attachment.CopyFrom(
                session_pb2.Attachment(
                    ref=request.sha256, size_bytes=len(self.data), media_type=request.media_type
                )
            )
        return response


async def test_an_upload_comes_in_chunks_with_its_digest(
    daemon: Scripted, client: SessiondClient, folder: Path
) -> None:
    store = Store()
    daemon.replies["WriteAttachment"] = store.write
    file = folder / "picture.png"
    file.write_bytes(CONTENT)
    attachment = await client.upload_attachment("s", file)
    assert store.data == CONTENT
    assert store.offsets == [0, MIB, 2 * MIB]
    assert (attachment.ref, attachment.media_type) == (DIGEST, "image/png")
    assert store.finished is not None
    assert store.finished.filename == "picture.png"


@pytest.mark.parametrize("lost", [{1}, {2}, {1, 2}])
async def test_a_chunk_whose_answer_was_lost_is_not_stored_twice(
    daemon: Scripted, client: SessiondClient, lost: set[int]
) -> None:
    store = Store(lost)
    daemon.replies["WriteAttachment"] = store.write
    attachment = await client.upload_attachment("s", io.BytesIO(CONTENT))
    assert store.data == CONTENT
    assert attachment.ref == DIGEST


async def test_another_process_continues_an_upload(daemon: Scripted, client: SessiondClient) -> None:
    store = Store()
    store.data = CONTENT[: MIB + 5]
    daemon.replies["WriteAttachment"] = store.write
    await client.upload_attachment("s", CONTENT, upload_id="mine")
    assert store.data == CONTENT
    assert store.offsets == [0, MIB + 5]
    assert {request.upload_id for request in daemon.of_type(wire.WriteAttachmentRequest)} == {"mine"}


async def test_nothing_is_an_attachment_too(daemon: Scripted, client: SessiondClient) -> None:
    store = Store()
    daemon.replies["WriteAttachment"] = store.write
    attachment = await client.upload_attachment("s", b"", media_type="text/plain")
    assert (attachment.ref, store.offsets) == (hashlib.sha256(b"").hexdigest(), [0])


async def test_a_daemon_that_never_agrees_on_an_offset_is_given_up(
    daemon: Scripted, client: SessiondClient
) -> None:
    async def write(request: wire.WriteAttachmentRequest, context: Context) -> Message:
        wrong = {"committed_size": str((request.offset + 1) % 3)}
        await fail(context, _C.OUT_OF_RANGE, "WRONG_OFFSET", metadata=wrong)
        raise AssertionError

    daemon.replies["WriteAttachment"] = write
    with pytest.raises(SessiondError, match="WRONG_OFFSET"):
        await client.upload_attachment("s", b"abcdef")
    assert len(daemon.requests) < 10


async def test_a_refused_upload_is_told(daemon: Scripted, client: SessiondClient) -> None:
    async def write(_: wire.WriteAttachmentRequest, context: Context) -> Message:
        await fail(context, _C.RESOURCE_EXHAUSTED, "ATTACHMENT_TOO_LARGE")
        raise AssertionError

    daemon.replies["WriteAttachment"] = write
    with pytest.raises(SessiondError, match="ATTACHMENT_TOO_LARGE"):
        await client.upload_attachment("s", b"abc")


async def download(client: SessiondClient, offset: int = 0) -> bytes:
    return b"".join([chunk async for chunk in client.download_attachment("s", DIGEST, offset=offset)])


async def test_a_download_continues_after_cuts(daemon: Scripted, client: SessiondClient) -> None:
    async def read(request: wire.ReadAttachmentRequest, context: Context) -> None:
        for start in range(request.offset, len(CONTENT), 1_000_000):
            await context.write(wire.ReadAttachmentResponse(data=CONTENT[start : start + 1_000_000]))
            if start < 2_000_000:
                await fail(context, _C.UNAVAILABLE)

    daemon.read = read
    assert await download(client) == CONTENT
    assert await download(client, offset=2_000_000) == CONTENT[2_000_000:]


async def test_a_download_with_another_digest_is_told(daemon: Scripted, client: SessiondClient) -> None:
    async def read(_: wire.ReadAttachmentRequest, context: Context) -> None:
        await context.write(wire.ReadAttachmentResponse(data=CONTENT[1:]))

    daemon.read = read
    with pytest.raises(BrokenPromiseError, match="DIGEST_MISMATCH"):
        await download(client)


async def test_a_download_that_never_succeeds_ends(
    daemon: Scripted, client: SessiondClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiond_client._attachments._MAX_STEPS_BACK", 2)

    async def read(_: wire.ReadAttachmentRequest, context: Context) -> None:
        await fail(context, _C.UNAVAILABLE)

    daemon.read = read
    with pytest.raises(UnavailableError):
        await download(client)
    assert len(daemon.requests) == 3
