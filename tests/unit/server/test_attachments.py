"""Attachments: chunks, resumption, digests, limits, what is thrown away when."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from pathlib import Path
from typing import Any, cast

import pytest

from sessiond.v1 import attachment_service_pb2 as pb
from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1.session_pb2 import Attachment
from sessiond_server.attachments import Attachments
from sessiond_server.config import Limits
from sessiond_server.errors import DomainError
from sessiond_server.rpc import Context
from sessiond_server.services.attachment import AttachmentService
from sessiond_server.store import StorageFull
from tests.support.disk import no_file_over

LIMITS = Limits(max_chunk_bytes=1000, max_attachment_bytes=3000)
NO_CONTEXT = cast(Context, None)


class Rows:
    """Rows of the sessions "s" and "t", in memory."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Attachment] = {}

    def get(self, session_id: str, ref: str) -> Attachment | None:
        if session_id not in ("s", "t"):
            raise DomainError(reasons.ERROR_REASON_SESSION_NOT_FOUND, "no such session")
        return self.kept.get((session_id, ref))

    async def add(self, session_id: str, attachment: Attachment) -> None:
        self.kept.setdefault((session_id, attachment.ref), attachment)


class Bench:
    """The service on files, and a clock that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = time.time()
        self.rows = Rows()
        self.restart()

    def restart(self) -> None:
        self.attachments = Attachments(self.folder, LIMITS, lambda: self.now)
        self.service = AttachmentService(self.attachments, self.rows)

    async def write(self, data: bytes, offset: int = 0, **fields: Any) -> pb.WriteAttachmentResponse:
        fields = {"session_id": "s", "upload_id": "u", **fields}
        request = pb.WriteAttachmentRequest(data=data, offset=offset, **fields)
        return await self.service.WriteAttachment(request, NO_CONTEXT)

    async def upload(self, data: bytes, **fields: Any) -> Attachment:
        response = await self.write(data, finish=True, sha256=digest(data), **fields)
        return response.attachment

    def files(self, kind: str) -> list[Path]:
        return sorted(path for path in (self.folder / kind).rglob("*") if path.is_file())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def refused(awaitable: Any) -> DomainError:
    with pytest.raises(DomainError) as caught:
        await awaitable
    return caught.value


async def test_chunks_become_a_private_file_named_by_its_content(bench: Bench) -> None:
    data = os.urandom(2500)
    assert (await bench.write(data[:1000])).committed_size == 1000
    assert (await bench.write(data[1000:2000], 1000)).committed_size == 2000
    response = await bench.write(
        data[2000:], 2000, finish=True, sha256=digest(data), media_type="image/png", filename="a b.png"
    )
    assert response.committed_size == 2500
    expected = Attachment(ref=digest(data), media_type="image/png", filename="a b.png", size_bytes=2500)
    assert response.attachment == expected
    assert bench.rows.kept == {("s", digest(data)): expected}
    (path,) = bench.files("attachments")
    assert path.relative_to(bench.folder / "attachments") == Path(digest(data)[:2], digest(data))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == data
    assert bench.files("uploads") == []


async def test_an_upload_goes_on_after_a_restart(bench: Bench) -> None:
    data = os.urandom(1500)
    await bench.write(data[:1000])
    bench.restart()
    error = await refused(bench.write(b""))
    assert error.reason == reasons.ERROR_REASON_WRONG_OFFSET
    assert error.metadata == {"committed_size": "1000"}
    response = await bench.write(data[1000:], 1000, finish=True, sha256=digest(data))
    assert response.attachment.ref == digest(data)


@pytest.mark.parametrize("offset", [1, 499, 501, 10**12])
async def test_a_wrong_offset_says_the_right_one(bench: Bench, offset: int) -> None:
    await bench.write(b"a" * 500)
    error = await refused(bench.write(b"b" * 10, offset))
    assert error.reason == reasons.ERROR_REASON_WRONG_OFFSET
    assert error.metadata == {"committed_size": "500"}
    data = b"a" * 500 + b"c"
    assert (await bench.write(b"c", 500, finish=True, sha256=digest(data))).committed_size == 501


async def test_asking_about_uploads_that_are_none_leaves_nothing(bench: Bench) -> None:
    for number in range(20):
        assert (await bench.write(b"", upload_id=f"u{number}")).committed_size == 0
        await refused(bench.write(b"b", 5, upload_id=f"u{number}"))
    assert not bench.attachments._uploads
    assert not bench.files("uploads")


async def test_a_repeated_chunk_changes_nothing(bench: Bench) -> None:
    data = os.urandom(1500)
    await bench.write(data[:1000])
    assert (await bench.write(data[:1000])).committed_size == 1000
    assert (await bench.write(data[200:700], 200)).committed_size == 1000
    assert (await bench.write(data[1000:], 1000)).committed_size == 1500
    response = await bench.write(data[1000:], 1000, finish=True, sha256=digest(data))
    assert response.attachment.size_bytes == 1500


async def test_finishing_again_gives_the_same_response(bench: Bench) -> None:
    first = await bench.write(b"data", finish=True, sha256=digest(b"data"), filename="x")
    again = await bench.write(b"data", finish=True, sha256=digest(b"data"), filename="y")
    assert again == first
    bench.restart()
    assert await bench.write(b"", 4, finish=True, sha256=digest(b"data").upper()) == first
    other = await bench.write(b"", 0, upload_id="v", finish=True, sha256=digest(b"data"))
    assert other == first


async def test_what_another_session_has_must_be_uploaded(bench: Bench) -> None:
    await bench.upload(b"data")
    error = await refused(bench.write(b"", session_id="t", finish=True, sha256=digest(b"data")))
    assert error.reason == reasons.ERROR_REASON_DIGEST_MISMATCH
    assert (await bench.upload(b"data", session_id="t")).ref == digest(b"data")
    assert len(bench.files("attachments")) == 1


async def test_uploads_of_two_sessions_do_not_meet(bench: Bench) -> None:
    await bench.write(b"one")
    await bench.write(b"two", session_id="t")
    assert (await bench.write(b"", 3, finish=True, sha256=digest(b"one"))).attachment.ref
    response = await bench.write(b"", 3, session_id="t", finish=True, sha256=digest(b"two"))
    assert response.attachment.ref == digest(b"two")


async def test_a_wrong_digest_discards_the_upload(bench: Bench) -> None:
    await bench.write(b"da")
    error = await refused(bench.write(b"tA", 2, finish=True, sha256=digest(b"data")))
    assert error.reason == reasons.ERROR_REASON_DIGEST_MISMATCH
    assert error.metadata["sha256"] == digest(b"datA")
    assert bench.files("attachments") == bench.files("uploads") == []
    assert bench.rows.kept == {}
    assert (await bench.upload(b"data")).size_bytes == 4


async def test_too_much_discards_the_upload(bench: Bench) -> None:
    for offset in (0, 1000, 2000):
        await bench.write(b"x" * 1000, offset)
    error = await refused(bench.write(b"x", 3000))
    assert error.reason == reasons.ERROR_REASON_ATTACHMENT_TOO_LARGE
    assert bench.files("uploads") == []


async def test_an_empty_file_is_a_file(bench: Bench) -> None:
    assert (await bench.upload(b"")).size_bytes == 0
    assert list(bench.attachments.read(Attachment(ref=digest(b"")), 0)) == []


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("upload_id", ["", "a" * 65, "../x", "a b", "ä"]),
        ("offset", [-1]),
        ("data", [b"x" * 1001]),
        ("sha256", ["", "abc", "g" * 64, "../" + "a" * 61]),
        ("media_type", ["png", "image/", "image/png\n", "a/" + "b" * 130]),
        ("filename", ["a/b", "..//", "a\0b", "a\nb", "x" * 256]),
    ],
)
async def test_bad_fields_are_named_and_nothing_is_kept(
    bench: Bench, field: str, values: list[Any]
) -> None:
    for value in values:
        fields: dict[str, Any] = {
            "session_id": "s",
            "upload_id": "u",
            "data": b"x",
            "finish": True,
            "sha256": digest(b"x"),
            field: value,
        }
        request = pb.WriteAttachmentRequest(**fields)
        error = await refused(bench.service.WriteAttachment(request, NO_CONTEXT))
        assert (error.reason, error.field) == (reasons.ERROR_REASON_INVALID_FIELD, field), value
    assert bench.files("uploads") == bench.files("attachments") == []


async def test_an_unknown_session_gets_nothing(bench: Bench) -> None:
    for awaitable in (
        bench.write(b"x", session_id="nobody"),
        bench.service.GetAttachment(
            pb.GetAttachmentRequest(session_id="nobody", ref="a" * 64), NO_CONTEXT
        ),
    ):
        assert (await refused(awaitable)).reason == reasons.ERROR_REASON_SESSION_NOT_FOUND
    assert bench.files("uploads") == []


async def test_get_describes_and_refuses(bench: Bench) -> None:
    kept = await bench.upload(b"data", filename="n")

    async def get(session_id: str, ref: str) -> Attachment:
        request = pb.GetAttachmentRequest(session_id=session_id, ref=ref)
        return (await bench.service.GetAttachment(request, NO_CONTEXT)).attachment

    assert await get("s", kept.ref) == kept
    for session_id, ref in (("t", kept.ref), ("s", "0" * 64)):
        error = await refused(get(session_id, ref))
        assert error.reason == reasons.ERROR_REASON_ATTACHMENT_NOT_FOUND
    for ref in ("", "../../token", kept.ref.upper() if kept.ref.upper() != kept.ref else "A" * 64):
        error = await refused(get("s", ref))
        assert (error.reason, error.field) == (reasons.ERROR_REASON_INVALID_FIELD, "ref")


class Writer:
    """Stands for the stream of a call."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def write(self, response: pb.ReadAttachmentResponse) -> None:
        self.pieces.append(response.data)


async def test_read_streams_from_any_offset_in_small_pieces(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    data = os.urandom(600_000)
    kept = bench.attachments.put(data, "text/plain", "big")
    await bench.rows.add("s", kept)
    for offset in (0, 1, 262_144, 599_999, 600_000):
        writer = Writer()
        request = pb.ReadAttachmentRequest(session_id="s", ref=kept.ref, offset=offset)
        await bench.service.ReadAttachment(request, cast(Context, writer))
        assert b"".join(writer.pieces) == data[offset:]
        assert max(map(len, writer.pieces), default=0) <= 256 * 1024
    for offset, reason in (
        (600_001, reasons.ERROR_REASON_WRONG_OFFSET),
        (-1, reasons.ERROR_REASON_INVALID_FIELD),
    ):
        request = pb.ReadAttachmentRequest(session_id="s", ref=kept.ref, offset=offset)
        error = await refused(bench.service.ReadAttachment(request, cast(Context, Writer())))
        assert error.reason == reason


def test_put_and_content_are_the_drivers_side(bench: Bench) -> None:
    kept = bench.attachments.put(b"data", "", "n")
    assert kept == Attachment(
        ref=digest(b"data"), media_type="application/octet-stream", filename="n", size_bytes=4
    )
    assert bench.attachments.put(b"data", "image/png").ref == kept.ref
    content = bench.attachments.content(kept)
    assert (content.data, Path(content.path).read_bytes()) == (b"data", b"data")
    Path(content.path).unlink()
    with pytest.raises(FileNotFoundError):
        bench.attachments.content(kept)
    assert bench.files("uploads") == []


@pytest.mark.parametrize("ref", ["", "../../../../etc/passwd", "a" * 63, "A" * 64])
def test_no_path_is_made_of_what_is_no_ref(bench: Bench, ref: str) -> None:
    with pytest.raises(ValueError, match="no attachment's ref"):
        bench.attachments.content(Attachment(ref=ref))


async def test_a_full_disk_keeps_what_was_committed(bench: Bench) -> None:
    data = os.urandom(2000)
    await bench.write(data[:1000])
    with no_file_over(1200):
        with pytest.raises(StorageFull):
            await bench.write(data[1000:], 1000)
        (path,) = bench.files("uploads")
        assert path.stat().st_size == 1000
        with pytest.raises(StorageFull):
            bench.attachments.put(data, "")
    assert (await bench.write(data[1000:], 1000)).committed_size == 2000


async def test_uploads_are_let_go_after_a_day(bench: Bench) -> None:
    await bench.write(b"old")
    bench.now += 23 * 3600
    assert bench.attachments.remove_old_uploads() == 0
    bench.now += 2 * 3600
    assert bench.attachments.remove_old_uploads() == 1
    assert bench.files("uploads") == []
    assert (await bench.upload(b"new")).size_bytes == 3


async def test_files_without_a_row_are_let_go_once_no_row_can_come(bench: Bench) -> None:
    used, unused = bench.attachments.put(b"used", ""), bench.attachments.put(b"unused", "")
    assert await bench.attachments.collect({used.ref}) == 0
    bench.now += 3500
    # Again on its way to a row: young again.
    again = bench.attachments.put(b"unused", "")
    bench.now += 3500
    assert await bench.attachments.collect({used.ref}) == 0
    bench.now += 3700
    assert await bench.attachments.collect({used.ref}) == 1
    assert [path.name for path in bench.files("attachments")] == [used.ref]
    assert again.ref == unused.ref


async def test_an_upload_that_took_hours_is_as_young_as_its_end(bench: Bench) -> None:
    await bench.write(b"slow")
    # The next file is there already when its upload, as slow, ends; what happens to it is the same.
    await bench.write(b"slow", upload_id="again", session_id="t")
    bench.now += 2 * 3600
    for fields in ({}, {"upload_id": "again", "session_id": "t"}):
        await bench.write(b"", 4, finish=True, sha256=digest(b"slow"), **fields)
        # What has a row by now was none when the tidying asked.
        assert await bench.attachments.collect(set()) == 0
        bench.now += 2 * 3600
    assert await bench.attachments.collect(set()) == 1
