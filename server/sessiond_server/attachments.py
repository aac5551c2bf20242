"""Attachments: files named by the sha256 of their content, and uploads that survive a restart.

Only the bytes live here. Which session may see which ref, and under what name, are rows of the store.
A chunk is at most a few MiB, so files are written on the event loop: no thread, no locking.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sessiond.v1 import attachment_service_pb2, session_pb2
from sessiond.v1 import error_reason_pb2 as reasons
from sessiond_drivers.base import Content
from sessiond_server.config import Limits
from sessiond_server.errors import DomainError, invalid
from sessiond_server.store import StorageFull

__all__ = ["AttachmentRows", "Attachments", "check_ref", "not_found"]

_REF = re.compile(r"[0-9a-f]{64}")
_UPLOAD_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,63}/[A-Za-z0-9!#$&^_.+-]{1,63}( *;[ -~]+)?")
_DEFAULT_TYPE = "application/octet-stream"
_MOST_TYPE = 128
_MOST_NAME = 255
_READ_CHUNK = 256 * 1024
_UPLOAD_AGE = 24 * 3600.0
# A file is written before its row is committed; younger ones may still be waiting for theirs.
_UNREFERENCED_AGE = 3600.0


class AttachmentRows(Protocol):
    """Which session has which attachment. Both raise DomainError SESSION_NOT_FOUND."""

    def get(self, session_id: str, ref: str) -> session_pb2.Attachment | None:
        """Return what `session_id` has under `ref`, or None."""
        ...

    async def add(self, session_id: str, attachment: session_pb2.Attachment) -> None:
        """Let `session_id` see `attachment`; durable on return. The first name and type stay."""
        ...


@dataclass(slots=True)
class _Upload:
    path: Path
    size: int
    digest: Any  # hashlib gives its objects no public type


class Attachments:
    """The files below `data_dir`: `attachments/<first two digits>/<ref>` and `uploads/<digest>`."""

    def __init__(self, data_dir: Path, limits: Limits, clock: Callable[[], float] = time.time) -> None:
        """Make the folders; `clock` gives the time of day in seconds, as file systems reckon it."""
        self._files = data_dir / "attachments"
        self._unfinished = data_dir / "uploads"
        for folder in (self._files, self._unfinished):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._limits = limits
        self._clock = clock
        self._uploads: dict[str, _Upload] = {}

    # --- uploads ---

    def check(self, request: attachment_service_pb2.WriteAttachmentRequest) -> None:
        """Raise DomainError INVALID_FIELD for a chunk that could never be written."""
        if not _UPLOAD_ID.fullmatch(request.upload_id):
            raise invalid("upload_id", "1 to 64 characters of A-Z a-z 0-9 _ -, chosen by the client")
        if request.offset < 0:
            raise invalid("offset", "must not be negative")
        if len(request.data) > self._limits.max_chunk_bytes:
            most = self._limits.max_chunk_bytes
            raise invalid("data", f"at most {most} bytes in one call; send the rest in the next")
        if not request.finish:
            return
        if not _REF.fullmatch(request.sha256.lower()):
            raise invalid("sha256", "64 hexadecimal digits, required with finish")
        kind = request.media_type
        if kind and (len(kind) > _MOST_TYPE or not _MEDIA_TYPE.fullmatch(kind)):
            raise invalid("media_type", f"a media type such as image/png, at most {_MOST_TYPE} bytes")
        name = request.filename
        if len(name.encode()) > _MOST_NAME or "/" in name or not name.isprintable():
            raise invalid("filename", f"a plain name of at most {_MOST_NAME} bytes, without folders")

    def write(
        self, request: attachment_service_pb2.WriteAttachmentRequest
    ) -> attachment_service_pb2.WriteAttachmentResponse:
        """Take one chunk that `check` let through; with the last one, keep the file.

        An attachment in the response has no row yet: the caller writes it within the hour. Raises
        DomainError WRONG_OFFSET (metadata `committed_size` says where to go on), ATTACHMENT_TOO_LARGE
        and DIGEST_MISMATCH (both discard the upload); StorageFull (what was committed before stays).
        """
        name = _upload_name(request)
        upload = self._open(name)
        with _storage_errors():
            if not _is_repeated(upload, request):
                self._append(name, upload, request)
            if not request.finish:
                return attachment_service_pb2.WriteAttachmentResponse(committed_size=upload.size)
            self._finish(name, upload, request.sha256.lower())
        attachment = session_pb2.Attachment(
            ref=request.sha256.lower(),
            media_type=request.media_type or _DEFAULT_TYPE,
            filename=request.filename,
            size_bytes=upload.size,
        )
        return attachment_service_pb2.WriteAttachmentResponse(
            committed_size=upload.size, attachment=attachment
        )

    def drop_upload(self, request: attachment_service_pb2.WriteAttachmentRequest) -> None:
        """Forget the upload that `request` names, if there is one."""
        self._discard(_upload_name(request))

    def _open(self, name: str) -> _Upload:
        upload = self._uploads.get(name)
        if upload is None:
            upload = _Upload(self._unfinished / name, 0, hashlib.sha256())
            with contextlib.suppress(FileNotFoundError), upload.path.open("rb") as file:
                while block := file.read(_READ_CHUNK):
                    upload.digest.update(block)
                    upload.size += len(block)
                self._uploads[name] = upload
        return upload

    def _append(
        self,
        name: str,
        upload: _Upload,
        request: attachment_service_pb2.WriteAttachmentRequest,
    ) -> None:
        committed = {"committed_size": str(upload.size)}
        if request.offset != upload.size:
            raise DomainError(
                reasons.ERROR_REASON_WRONG_OFFSET,
                f"the upload has {upload.size} bytes: go on at that offset",
                field="offset",
                metadata=committed,
            )
        if upload.size + len(request.data) > self._limits.max_attachment_bytes:
            self._discard(name)
            raise DomainError(
                reasons.ERROR_REASON_ATTACHMENT_TOO_LARGE,
                f"an attachment has at most {self._limits.max_attachment_bytes} bytes",
                field="data",
                metadata={"max_attachment_bytes": str(self._limits.max_attachment_bytes)},
            )
        if not request.data and not request.finish:
            # Only asked; a client may ask about any number of uploads that are none.
            return
        descriptor = os.open(upload.path, os.O_WRONLY | os.O_CREAT, 0o600)
        self._uploads[name] = upload
        try:
            _write_at(descriptor, upload.size, request.data)
        except OSError:
            os.ftruncate(descriptor, upload.size)
            raise
        finally:
            os.close(descriptor)
        upload.digest.update(request.data)
        upload.size += len(request.data)

    def _finish(self, name: str, upload: _Upload, ref: str) -> None:
        digest = upload.digest.hexdigest()
        if digest != ref:
            self._discard(name)
            raise DomainError(
                reasons.ERROR_REASON_DIGEST_MISMATCH,
                f"the {upload.size} bytes that arrived have sha256 {digest}: upload them again",
                field="sha256",
                metadata={"sha256": digest},
            )
        self._keep(upload.path, ref)
        self._uploads.pop(name, None)

    def _discard(self, name: str) -> None:
        self._uploads.pop(name, None)
        (self._unfinished / name).unlink(missing_ok=True)

    # --- files ---

    def put(self, data: bytes, media_type: str, filename: str = "") -> session_pb2.Attachment:
        """Keep `data` and return its attachment; the caller writes the row within the hour.

        Raises DomainError STORAGE_FULL.
        """
        ref = hashlib.sha256(data).hexdigest()
        temporary = self._unfinished / f"put-{ref}"
        with _storage_errors():
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _write_at(descriptor, 0, data)
            finally:
                os.close(descriptor)
            self._keep(temporary, ref)
        return session_pb2.Attachment(
            ref=ref,
            media_type=media_type or _DEFAULT_TYPE,
            filename=filename,
            size_bytes=len(data),
        )

    def _keep(self, source: Path, ref: str) -> None:
        target = self._path(ref)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        now, present = self._clock(), target.exists()
        # Young again until its row is there, though the last chunk may be a day old: see collect().
        os.utime(target if present else source, (now, now))
        if present:
            source.unlink()
            return
        _sync(source)
        source.replace(target)
        _sync(target.parent)

    def content(self, attachment: session_pb2.Attachment) -> Content:
        """Return an attachment with its bytes, as drivers want it; OSError when its file is gone."""
        path = self._path(attachment.ref)
        return Content(
            ref=attachment.ref,
            media_type=attachment.media_type,
            filename=attachment.filename,
            path=str(path),
            data=path.read_bytes(),
        )

    def read(self, attachment: session_pb2.Attachment, offset: int) -> Iterator[bytes]:
        """Return the bytes from `offset` on, in pieces of at most 256 KiB; errors come at once.

        Raises INVALID_FIELD, WRONG_OFFSET beyond the end, ATTACHMENT_NOT_FOUND for a file that is gone.
        """
        if offset < 0:
            raise invalid("offset", "must not be negative")
        if offset > attachment.size_bytes:
            raise DomainError(
                reasons.ERROR_REASON_WRONG_OFFSET,
                f"the attachment has {attachment.size_bytes} bytes",
                field="offset",
                metadata={"committed_size": str(attachment.size_bytes)},
            )
        path = self._path(attachment.ref)
        if not path.exists():
            raise not_found(attachment.ref)
        return _pieces(path, offset)

    def _path(self, ref: str) -> Path:
        if not _REF.fullmatch(ref):
            raise ValueError(f"{ref[:80]!r} is no attachment's ref")
        return self._files / ref[:2] / ref

    # --- garbage ---

    def remove_old_uploads(self) -> int:
        """Remove uploads that nobody went on with for a day; return how many."""
        removed = 0
        for path in list(self._unfinished.iterdir()):
            if self._age(path) > _UPLOAD_AGE:
                self._discard(path.name)
                removed += 1
        return removed

    async def collect(self, refs_in_use: Set[str]) -> int:
        """Remove files that no session has, once they are an hour old; return how many."""
        removed = 0
        for folder in list(self._files.iterdir()):
            for path in list(folder.iterdir()):
                if path.name not in refs_in_use and self._age(path) > _UNREFERENCED_AGE:
                    path.unlink()
                    removed += 1
            # There may be many: calls go on in between.
            await asyncio.sleep(0)
        return removed

    def _age(self, path: Path) -> float:
        return self._clock() - path.stat().st_mtime


def check_ref(ref: str, field: str = "ref") -> None:
    """Raise DomainError INVALID_FIELD, naming the request's `field`, unless `ref` could be a ref."""
    if not _REF.fullmatch(ref):
        raise invalid(field, "64 lower-case hexadecimal digits: the ref of an attachment")


def not_found(ref: str) -> DomainError:
    """Return the error for an attachment that a session does not have."""
    return DomainError(
        reasons.ERROR_REASON_ATTACHMENT_NOT_FOUND,
        f"this session has no attachment {ref[:64]!r}",
        metadata={"ref": ref},
    )


def _upload_name(request: attachment_service_pb2.WriteAttachmentRequest) -> str:
    # Names from outside never become paths, and no pair of them meets another.
    key = f"{len(request.session_id)}:{request.session_id}{request.upload_id}"
    return hashlib.sha256(key.encode()).hexdigest()


def _is_repeated(upload: _Upload, request: attachment_service_pb2.WriteAttachmentRequest) -> bool:
    """Whether the chunk is stored already: its response was lost on the way."""
    if not request.data or request.offset + len(request.data) > upload.size:
        return False
    with upload.path.open("rb") as file:
        file.seek(request.offset)
        return file.read(len(request.data)) == request.data


def _write_at(descriptor: int, offset: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pieces(path: Path, offset: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while piece := file.read(_READ_CHUNK):
            yield piece


@contextlib.contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageFull(f"attachments: {error.strerror}") from error
        raise
