"""Steps are committed whole or not at all, and read back from any place."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_server.store import (
    COPIED,
    CREATIONS,
    LINE,
    Response,
    SessionRow,
    Step,
    StorageFull,
    Store,
    StoreTooNew,
    copy,
    schema,
)
from sessiond_server.store.records import record


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "store.db")
    yield store
    store.close()


def _row(session_id: str = "s") -> SessionRow:
    return SessionRow(0, session_id, "t", "echo", b"spec", summary=b"summary", state=b"state")


def _step(key: int, first: int, count: int, size: int = 10) -> Step:
    events = (
        ev.Event(seq=seq, assistant_text=ev.AssistantText(delta=f"{seq}".rjust(size, ".")))
        for seq in range(first, first + count)
    )
    return Step(key, first, [record(event.SerializeToString()) for event in events])


def _seqs(data: bytes) -> list[int]:
    return [event.seq for event in api.SubscribeResponse.FromString(data).events]


async def test_a_step_is_read_back_whole(store: Store) -> None:
    key = await store.create_session(_row(), None)
    step = _step(key, 1, 3)
    step.run, step.alive, step.raw_offset, step.input_id = 1, True, 77, 2
    step.state, step.driver_state, step.summary = b"s2", b"d2", b"y2"
    step.outbox = [(1, LINE, b"one\n"), (2, LINE, b"two\n")]
    step.responses = [Response("r", b"digest", b"answer")]
    step.attachments = [session_pb2.Attachment(ref="ab", media_type="text/plain", size_bytes=5)]
    await store.commit(step)
    row = store.session("s")
    assert row is not None
    assert (row.head_seq, row.run, row.alive, row.raw_offset, row.input_id) == (3, 1, 1, 77, 2)
    assert (row.state, row.driver_state, row.summary) == (b"s2", b"d2", b"y2")
    assert store.outbox(key) == [(1, LINE, b"one\n"), (2, LINE, b"two\n")]
    assert store.response(key, "r") == Response("r", b"digest", b"answer")
    assert store.get_attachment(key, "ab") == step.attachments[0]
    acked = Step(key, 4, acked=1)
    await store.commit(acked)
    assert [row[0] for row in store.outbox(key)] == [2]
    row = store.session("s")
    assert row is not None
    assert row.head_seq == 3


async def test_reading_from_any_place_gives_the_rest_in_order(store: Store) -> None:
    key = await store.create_session(_row(), None)
    other = await store.create_session(_row("other"), None)
    chooser = random.Random(1)
    head = 0
    while head < 300:
        count = chooser.choice([1, 1, 1, 2, 7, 40])
        await store.commit(_step(key, head + 1, count, chooser.choice([1, 100, 5000])))
        await store.commit(_step(other, head + 1, count))
        head += count
    for after in [0, 1, 2, 150, head - 1, head]:
        for most in (1, 1000, 50_000, 10_000_000):
            found: list[int] = []
            position = after
            while True:
                data, last = store.read_after(key, position, most)
                if not data:
                    assert last == position
                    break
                assert _seqs(data)[-1] == last
                found += _seqs(data)
                position = last
            assert found == list(range(after + 1, head + 1))
    for before in (1, 2, 77, head, head + 1):
        for count in (1, 10, 1000):
            page = _seqs(store.read_before(key, before, count, 100_000_000))
            assert page == list(range(max(1, before - count), before))


async def test_nothing_is_read_beyond_the_head_that_the_reader_is_told(store: Store) -> None:
    key = await store.create_session(_row(), None)
    for first in (1, 4):
        await store.commit(_step(key, first, 3))
    data, last = store.read_after(key, 1, 10_000, 3)
    assert (_seqs(data), last) == ([2, 3], 3)
    assert store.read_after(key, 3, 10_000, 3) == (b"", 3)


async def test_a_page_stays_under_its_bytes(store: Store) -> None:
    key = await store.create_session(_row(), None)
    await store.commit(_step(key, 1, 50, 1000))
    data = store.read_before(key, 51, 50, 10_000)
    assert len(data) <= 10_000
    assert _seqs(data) == list(range(51 - len(_seqs(data)), 51))
    assert _seqs(store.read_before(key, 51, 50, 1)) == [50]


async def test_a_big_step_is_cut_into_rows(store: Store) -> None:
    key = await store.create_session(_row(), None)
    step = _step(key, 1, 100, 20_000)
    assert len(step.chunks()) > 5
    await store.commit(step)
    data, last = store.read_after(key, 0, 300_000)
    assert len(data) <= 300_000
    assert _seqs(data) == list(range(1, last + 1))


async def test_one_failing_transaction_hurts_no_other(store: Store) -> None:
    key = await store.create_session(_row(), None)
    steps = [_step(key, seq, 1) for seq in (1, 2)]
    twice = _step(key, 1, 1)
    results = await asyncio.gather(
        store.commit(steps[0]), store.commit(twice), store.commit(steps[1]), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), sqlite3.IntegrityError, type(None)]
    assert _seqs(store.read_after(key, 0, 10_000)[0]) == [1, 2]


async def test_what_sqlite_cannot_hold_hurts_only_who_gave_it(store: Store) -> None:
    key = await store.create_session(_row(), None)
    impossible = _step(key, 1, 1)
    impossible.raw_offset = 2**63
    results = await asyncio.gather(
        store.commit(impossible), store.commit(_step(key, 1, 1)), return_exceptions=True
    )
    assert [type(result) for result in results] == [OverflowError, type(None)]
    async with asyncio.timeout(10):
        await store.commit(_step(key, 2, 1))
    assert _seqs(store.read_after(key, 0, 10_000)[0]) == [1, 2]


async def test_a_full_disk_keeps_nothing_of_the_step_and_recovers(store: Store) -> None:
    key = await store.create_session(_row(), None)
    await store.commit(_step(key, 1, 1))
    pages = store._writing.execute("PRAGMA page_count").fetchone()[0]
    store._writing.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StorageFull):
        await store.commit(_step(key, 2, 50, 20_000))
    row = store.session("s")
    assert row is not None
    assert row.head_seq == 1
    store._writing.execute("PRAGMA max_page_count = 1000000")
    await store.commit(_step(key, 2, 50, 20_000))
    assert _seqs(store.read_after(key, 0, 10_000_000)[0]) == list(range(1, 52))


async def test_deleting_removes_all_that_belongs_to_a_session(store: Store) -> None:
    key = await store.create_session(_row(), None)
    step = _step(key, 1, 3)
    step.outbox = [(1, LINE, b"x\n")]
    step.responses = [Response("r", b"d", b"a")]
    step.attachments = [session_pb2.Attachment(ref="ab")]
    await store.commit(step)
    await store.keep_response(CREATIONS, Response("create", b"d", b"a"))
    await store.delete_session(key, "create", Response("delete", b"d", b""), week=7)
    assert store.session("s") is None
    for table in ("transcript", "outbox", "attachments", "requests"):
        left = store._reading.execute(f"SELECT count(*) FROM {table} WHERE session = ?", (key,))
        assert left.fetchone() == (0,)
    assert store.response(CREATIONS, "create") is None
    assert store.response(-7, "delete") is not None
    await store.delete_session(key, "", Response("next", b"d", b""), week=8)
    assert store.response(-7, "delete") is not None
    await store.delete_session(key, "", Response("later", b"d", b""), week=9)
    assert store.response(-7, "delete") is None
    assert store.response(-8, "next") is not None
    assert await store.create_session(_row(), None) != key


async def test_a_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    # As a restored backup has it.
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match="newer daemon"):
        Store(path)
    assert path.read_bytes() == before


async def test_a_backup_of_a_busy_store_is_consistent(store: Store, tmp_path: Path) -> None:
    key = await store.create_session(_row(), None)
    commits = [store.commit(_step(key, seq, 1, 2000)) for seq in range(1, 300)]
    copied = copy(store.path, tmp_path / "backup.db")
    await asyncio.gather(*commits)
    assert (copied.sessions, copied.attachments) == (1, [])
    other = Store(tmp_path / "backup.db")
    row = other.session("s")
    assert row is not None
    assert _seqs(other.read_after(key, 0, 10_000_000)[0]) == list(range(1, row.head_seq + 1))
    assert other.get_meta(COPIED) == "1"
    assert not store.get_meta(COPIED)
    other.close()


async def test_a_backup_of_a_large_store_ends_while_others_write(store: Store, tmp_path: Path) -> None:
    key = await store.create_session(_row(), None)
    await asyncio.gather(*(store.commit(_step(key, seq, 1, 100_000)) for seq in range(1, 400)))
    seq = 400
    copying = asyncio.create_task(asyncio.to_thread(copy, store.path, tmp_path / "backup.db"))
    async with asyncio.timeout(60):
        while not copying.done():
            await store.commit(_step(key, seq, 1, 100))
            seq += 1
    assert (await copying).sessions == 1


@pytest.mark.parametrize("full_sync", [False, True])
async def test_files_copied_at_any_moment_hold_a_consistent_prefix(
    tmp_path: Path, full_sync: bool
) -> None:
    """A power cut: the database as it was, and a log that ends anywhere."""
    live = tmp_path / "live"
    live.mkdir()
    store = Store(live / "store.db", full_sync=full_sync)
    key = await store.create_session(_row(), None)
    chooser = random.Random(7)
    for round_ in range(12):
        first = round_ * 20 + 1
        for seq in range(first, first + 20):
            step = _step(key, seq, 1, 500)
            step.raw_offset = seq * 10
            await store.commit(step)
        torn = tmp_path / f"torn-{round_}"
        shutil.copytree(live, torn)
        log = torn / "store.db-wal"
        if round_ % 3:
            data = log.read_bytes()
            cut = chooser.randrange(len(data))
            noise = chooser.randbytes(chooser.choice([0, 100, 4096]))
            log.write_bytes(data[:cut] + noise)
        (torn / "store.db-shm").unlink(missing_ok=True)
        copy = Store(torn / "store.db", full_sync=full_sync)
        row = copy.session("s")
        if row is not None:
            seqs = _seqs(copy.read_after(key, 0, 10_000_000)[0])
            assert seqs == list(range(1, row.head_seq + 1))
            assert row.raw_offset == row.head_seq * 10
        copy.close()
    store.close()
