"""Attachments in chunks, both ways."""

from __future__ import annotations

import asyncio
import hashlib
import io
import uuid
from collections.abc import AsyncGenerator

from grpc import StatusCode, aio

from sessiond.v1 import attachment_service_pb2 as wire
from sessiond.v1 import attachment_service_pb2_grpc, session_pb2

from ._errors import BrokenPromiseError, SessiondError, UnavailableError, from_rpc_error
from ._transport import Backoff, Transport, closed_elsewhere, closed_error

__all__ = ["CHUNK_BYTES", "download", "upload"]

# Well under the 4 MiB that gRPC stacks accept unless told otherwise.
CHUNK_BYTES = 1 << 20
_MAX_STEPS_BACK = 5


async def upload(
    transport: Transport,
    session_id: str,
    source: io.BufferedIOBase,
    *,
    media_type: str,
    filename: str,
    upload_id: str,
    timeout: float,
) -> session_pb2.Attachment:
    """Send all of a seekable binary file and return the finished attachment.

    `timeout` is for each chunk. An upload that was cut is continued where the daemon has it, also by
    another process that uses the same `upload_id`.
    """
    stub = attachment_service_pb2_grpc.AttachmentServiceStub(transport.channel)
    digest = (await asyncio.to_thread(_digest, source)).hex()
    size = source.seek(0, 2)
    upload_id = upload_id or str(uuid.uuid4())
    offset = steps_back = 0
    while True:
        source.seek(offset)
        data = source.read(CHUNK_BYTES)
        finish = offset + len(data) >= size
        request = wire.WriteAttachmentRequest(
            session_id=session_id,
            upload_id=upload_id,
            offset=offset,
            data=data,
            finish=finish,
            sha256=digest if finish else "",
            media_type=media_type,
            filename=filename,
        )
        try:
            response = await transport.unary(stub.WriteAttachment, request, timeout)
        except SessiondError as error:
            steps_back += 1
            offset = _committed(error, offset, size, steps_back)
            continue
        if finish:
            return response.attachment
        offset = response.committed_size


def _digest(source: io.BufferedIOBase) -> bytes:
    source.seek(0)
    return hashlib.file_digest(source, "sha256").digest()


def _committed(error: SessiondError, offset: int, size: int, steps_back: int) -> int:
    """Return where to go on after a chunk whose offset the daemon did not expect, or raise `error`."""
    committed = error.metadata.get("committed_size", "")
    if error.reason != "WRONG_OFFSET" or not committed.isdecimal() or steps_back > _MAX_STEPS_BACK:
        raise error
    if int(committed) == offset or int(committed) > size:
        raise error
    return int(committed)


async def download(
    transport: Transport, session_id: str, ref: str, *, offset: int, timeout: float
) -> AsyncGenerator[bytes]:
    """Yield the content from `offset`, across lost connections; checks the digest when that is 0.

    `timeout` is how long the daemon may take for each next chunk, and for coming back.
    """
    stub = attachment_service_pb2_grpc.AttachmentServiceStub(transport.channel)
    digest = hashlib.sha256()
    at, backoff, failures = offset, Backoff(), 0
    while True:
        request = wire.ReadAttachmentRequest(session_id=session_id, ref=ref, offset=at)
        call = stub.ReadAttachment(request, metadata=transport.metadata(), wait_for_ready=failures > 0)
        try:
            while (data := await _read(call, timeout)) is not None:
                at, failures = at + len(data), 0
                digest.update(data)
                yield data
            break
        except UnavailableError:
            failures += 1
            if failures > _MAX_STEPS_BACK:
                raise
        finally:
            call.cancel()
        await asyncio.sleep(backoff.next())
    if offset == 0 and digest.hexdigest() != ref:
        raise BrokenPromiseError(
            StatusCode.DATA_LOSS,
            f"what the daemon sent has the digest {digest.hexdigest()}, not {ref}",
            reason="DIGEST_MISMATCH",
        )


_ReadCall = aio.UnaryStreamCall[wire.ReadAttachmentRequest, wire.ReadAttachmentResponse]


async def _read(call: _ReadCall, timeout: float) -> bytes | None:
    try:
        async with asyncio.timeout(timeout):
            response = await call.read()
    except TimeoutError:
        raise UnavailableError(
            StatusCode.UNAVAILABLE, f"no part of the attachment came for {timeout:.0f} s"
        ) from None
    except aio.AioRpcError as error:
        raise from_rpc_error(error) from None
    except asyncio.CancelledError:
        if closed_elsewhere():
            raise closed_error() from None
        raise
    return response.data if isinstance(response, wire.ReadAttachmentResponse) else None
