"""A backup holds one moment of a daemon's data, and only an empty directory takes it back."""

from __future__ import annotations

import errno
import stat
import tarfile
from pathlib import Path
from unittest.mock import patch

import pytest

from sessiond.v1 import session_pb2
from sessiond_server.backup import BackupError, backup, restore
from sessiond_server.config import Config
from sessiond_server.directories import InUse, locked
from sessiond_server.store import COPIED, SessionRow, Store

REF = "ab" + "0" * 62


def _config(data_dir: Path) -> Config:
    return Config(data_dir=data_dir, runtime_dir=data_dir)


def _children(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.fixture
async def data_dir(tmp_path: Path) -> Path:
    """A data directory with one session that has one attachment, and a file that nobody has."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    store = Store(directory / "sessiond.db")
    key = await store.create_session(SessionRow(0, "s", "t", "echo", b"", state=b"", summary=b""), None)
    await store.add_attachment(key, session_pb2.Attachment(ref=REF, media_type="a/b", size_bytes=5))
    store.close()
    for ref in (REF, "cd" + "0" * 62):
        file = directory / "attachments" / ref[:2] / ref
        file.parent.mkdir(parents=True)
        file.write_bytes(b"hello")
    return directory


async def test_what_is_backed_up_is_restored(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "saved.tar"
    saved = backup(_config(data_dir), file)
    assert (saved.sessions, saved.attachments) == (1, 1)
    assert saved.size_bytes == file.stat().st_size
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(path.name for path in _children(tmp_path)) == ["data", "saved.tar"]
    fresh = tmp_path / "fresh"
    await restore(_config(fresh), file)
    assert (fresh / "attachments" / "ab" / REF).read_bytes() == b"hello"
    assert not (fresh / "attachments" / "cd").exists()
    store = Store(fresh / "sessiond.db")
    assert [row.session_id for row in store.sessions()] == ["s"]
    assert store.get_meta(COPIED) == "1"
    store.close()


async def test_nothing_is_written_over(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "saved.tar"
    backup(_config(data_dir), file)
    with pytest.raises(BackupError, match="exists"):
        backup(_config(data_dir), file)
    with pytest.raises(BackupError, match="holds sessions already"):
        await restore(_config(data_dir), file)
    with pytest.raises(BackupError, match="holds no sessions"):
        backup(_config(tmp_path / "nowhere"), tmp_path / "other.tar")


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
async def test_what_a_gone_store_left_beside_it_does_not_get_into_a_restored_one(
    suffix: str, data_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "saved.tar"
    backup(_config(data_dir), file)
    fresh = tmp_path / "fresh"
    fresh.mkdir(mode=0o700)
    left = fresh / f"sessiond.db{suffix}"
    left.write_bytes(b"of another store")
    with pytest.raises(BackupError, match=f"move {left.name} away"):
        await restore(_config(fresh), file)
    assert left.read_bytes() == b"of another store"
    assert not (fresh / "sessiond.db").exists()
    left.unlink()
    await restore(_config(fresh), file)


async def test_a_restore_that_broke_off_can_be_done_again(data_dir: Path, tmp_path: Path) -> None:
    file, fresh = tmp_path / "saved.tar", tmp_path / "fresh"
    backup(_config(data_dir), file)
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        patch("os.fsync", side_effect=full),
        pytest.raises(BackupError, match="fresh: No space left on device"),
    ):
        await restore(_config(fresh), file)
    assert not list(fresh.glob("sessiond.db*"))
    # As if it had been killed.
    (fresh / "sessiond.db.restoring").write_bytes(b"half of it")
    await restore(_config(fresh), file)
    assert [path.name for path in fresh.glob("sessiond.db*")] == ["sessiond.db"]
    store = Store(fresh / "sessiond.db")
    assert [row.session_id for row in store.sessions()] == ["s"]
    store.close()


async def test_a_directory_in_use_is_left_alone(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "saved.tar"
    backup(_config(data_dir), file)
    fresh = tmp_path / "fresh"
    fresh.mkdir(mode=0o700)
    async with locked(fresh):
        with pytest.raises(InUse):
            await restore(_config(fresh), file)


@pytest.mark.parametrize("content", [b"", b"no tar at all" * 100, None])
async def test_what_is_no_backup_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "strange.tar"
    if content is None:
        with tarfile.open(file, "w") as tar:
            tar.add(__file__, "something.py")
    else:
        file.write_bytes(content)
    fresh = tmp_path / "fresh"
    with pytest.raises(BackupError, match="is no"):
        await restore(_config(fresh), file)
    assert not (fresh / "sessiond.db").exists()


async def test_a_name_that_leads_out_of_the_directory_is_refused(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "saved.tar"
    backup(_config(data_dir), file)
    with tarfile.open(file, "a") as tar:
        tar.add(__file__, "attachments/../../evil")
    with pytest.raises(BackupError):
        await restore(_config(tmp_path / "fresh"), file)
    assert not (tmp_path / "evil").exists()


async def test_a_backup_that_was_cut_short_is_refused(data_dir: Path, tmp_path: Path) -> None:
    file, cut, fresh = (tmp_path / name for name in ("saved.tar", "cut.tar", "fresh"))
    backup(_config(data_dir), file)
    whole = file.read_bytes()
    with tarfile.open(file) as tar:
        last = tar.getmembers()[-1]
    end = last.offset_data + last.size
    for size in [*range(0, end, 512), *range(100, end, 5000), end - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(BackupError, match="whole backup"):
            await restore(_config(fresh), cut)
        assert not list(fresh.glob("sessiond.db*"))
    await restore(_config(fresh), file)


async def test_attachments_that_are_gone_are_counted(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "attachments" / "ab" / REF).unlink()
    saved = backup(_config(data_dir), tmp_path / "saved.tar")
    assert (saved.attachments, saved.missing) == (0, 1)


async def test_a_file_that_came_meanwhile_is_not_written_over(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "saved.tar"

    def meanwhile(_: int) -> None:
        file.write_text("somebody's")

    with patch("os.fsync", meanwhile), pytest.raises(BackupError, match="exists by now"):
        backup(_config(data_dir), file)
    assert file.read_text() == "somebody's"
    assert sorted(path.name for path in _children(tmp_path)) == ["data", "saved.tar"]


async def test_a_place_that_is_not_there_is_named(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=f"{tmp_path}/absent is no directory"):
        backup(_config(data_dir), tmp_path / "absent" / "saved.tar")
