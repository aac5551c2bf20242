"""Whoever writes stops at any moment: what was promised is there, and what is there is whole."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import struct
import sys
from pathlib import Path

import pytest

from sessiond_server.store import SessionRow, Step, Store
from sessiond_server.store.records import record
from tests.support.waiting import until

_ROOT = Path(__file__).parents[3]
_KEY = 1
_ROUNDS = 12


async def write(path: Path, full_sync: bool) -> None:
    """Commit for ever, one event a step, and print each seq when it is promised."""
    store = Store(path, full_sync=full_sync)
    # Often enough that some of the moments are in the middle of one.
    store._writing.execute("PRAGMA wal_autocheckpoint = 40")
    key = await store.create_session(SessionRow(0, "s", "t", "echo", b"", state=b"", summary=b""), None)
    assert key == _KEY
    for seq in range(1, 1_000_000):
        step = Step(key, seq)
        step.records = [record(bytes([seq % 256]) * (seq % 3000))]
        step.raw_offset = seq
        await store.commit(step)
        print(seq, flush=True)


def _held(path: Path, full_sync: bool) -> int:
    """Return the head of the store, which must be whole up to there."""
    store = Store(path, full_sync=full_sync)
    row = store.session("s")
    assert store._reading.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    head = 0
    if row is not None:
        data, last = store.read_after(_KEY, 0, 1 << 30)
        assert data == b"".join(record(bytes([n % 256]) * (n % 3000)) for n in range(1, last + 1))
        assert last == row.head_seq == row.raw_offset
        head = last
    store.close()
    return head


def _stands_still(pid: int) -> bool:
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def _synced(index: bytes) -> int:
    """Return how much of the log no power cut takes: it is synced before a checkpoint copies from it.

    From the log's index in shared memory: at byte 128 the number of frames that a checkpoint may have
    copied (https://sqlite.org/walformat.html, section 2.2, nBackfillAttempted).
    """
    (frames,) = struct.unpack_from("=I", index, 128)
    return 32 + frames * (24 + 4096) if frames else 0


@pytest.mark.parametrize("full_sync", [False, True])
async def test_a_writer_that_is_frozen_anywhere_has_kept_its_promises(
    tmp_path: Path, full_sync: bool
) -> None:
    live, chooser = tmp_path / "live", random.Random(11)
    live.mkdir()
    code = f"import asyncio; from {__name__} import write; from pathlib import Path; "
    run = f"asyncio.run(write(Path({str(live / 'store.db')!r}), {full_sync}))"
    writer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code + run), cwd=_ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    try:
        promised = 0
        for round_ in range(_ROUNDS):
            for _ in range(chooser.randrange(1, 120)):
                promised = int(await asyncio.wait_for(writer.stdout.readline(), 30))
            # Nothing moves while the files are copied, as when the power goes.
            writer.send_signal(signal.SIGSTOP)
            await until(lambda: _stands_still(writer.pid), "all its threads stand still")
            copy = tmp_path / f"copy-{round_}"
            shutil.copytree(live, copy)
            writer.send_signal(signal.SIGCONT)
            synced = _synced((copy / "store.db-shm").read_bytes())
            (copy / "store.db-shm").unlink()
            torn = shutil.copytree(copy, tmp_path / f"torn-{round_}")
            assert _held(copy / "store.db", full_sync) >= promised
            log = torn / "store.db-wal"
            data = log.read_bytes()
            cut = chooser.randrange(min(synced, len(data)), len(data) + 1)
            log.write_bytes(data[:cut] + chooser.randbytes(100))
            _held(torn / "store.db", full_sync)
    finally:
        writer.kill()
        await writer.wait()


@pytest.mark.parametrize(("full_sync", "level"), [(False, 1), (True, 2)])
async def test_every_connection_syncs_as_it_was_told(
    tmp_path: Path, full_sync: bool, level: int
) -> None:
    store = Store(tmp_path / "store.db", full_sync=full_sync)
    for connection in (store._writing, store._reading):
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
    said: list[str] = []
    store._writing.set_trace_callback(said.append)
    await store.set_meta({"a": "1"})
    assert not [line for line in said if "synchronous" in line]
    await store.set_meta({"a": "2"}, sync=True)
    shown = [line.split(" = ")[-1] for line in said if "synchronous" in line or line == "COMMIT"]
    # The one commit that must not be lost, between what is and what was.
    assert shown == ["COMMIT", "FULL", "COMMIT", "FULL" if full_sync else "NORMAL"]
    store._writing.set_trace_callback(None)
    assert store._writing.execute("PRAGMA synchronous").fetchone() == (level,)
    store.close()
