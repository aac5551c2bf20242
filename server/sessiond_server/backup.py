"""One file that holds all transcripts and attachments, made while the daemon runs, and the way back.

It is a plain tar: `attachments/`, then `sessiond.db`, a consistent copy of the store. The store is last
because a tar that was cut short looks like a whole one: without its end it is no backup. What agents
keep themselves (their own conversation files, the workspaces) is not the daemon's and not in it.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sessiond_server import directories, store
from sessiond_server.config import Config

__all__ = ["BackupError", "Saved", "backup", "restore"]

_DATABASE, _ATTACHMENTS = "sessiond.db", "attachments"
# SQLite would take what lies beside the restored file for its own, and put it in its place.
_STORE_FILES = (_DATABASE, f"{_DATABASE}-wal", f"{_DATABASE}-shm", f"{_DATABASE}-journal")


class BackupError(Exception):
    """The backup can't be made or put back; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a backup holds."""

    sessions: int
    attachments: int
    missing: int
    """Attachments that the store names and that are not in the data directory."""
    size_bytes: int


def backup(config: Config, target: Path) -> Saved:
    """Write everything in `config.data_dir` to `target` (mode 0600), whether a daemon runs or not.

    The file appears when it is whole. Raises BackupError, OSError.
    """
    database = config.data_dir / _DATABASE
    if not database.exists():
        raise BackupError(f"{config.data_dir} holds no sessions: name the daemon's --data-dir")
    if not target.parent.is_dir():
        raise BackupError(f"{target.parent} is no directory: make it, or choose another place")
    if target.exists():
        raise BackupError(f"{target} exists: choose another name, or remove it")
    # Beside the target: the same file system, so that the last step is a rename, and not /tmp.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        copy, whole = Path(folder) / _DATABASE, Path(folder) / "whole.tar"
        refs = store.copy(database, copy)
        # After the copy: what it names is never changed, and there already.
        files = [path for ref in refs.attachments if (path := _file(config.data_dir, ref)).exists()]
        with tarfile.open(whole, "w") as tar:
            for path in files:
                tar.add(path, str(path.relative_to(config.data_dir)))
            tar.add(copy, _DATABASE)
        whole.chmod(0o600)
        with whole.open("rb") as file:
            os.fsync(file.fileno())
        _name(whole, target)
    missing = len(refs.attachments) - len(files)
    return Saved(refs.sessions, len(files), missing, target.stat().st_size)


def _name(whole: Path, target: Path) -> None:
    """Give the file its name, if nobody has taken it meanwhile."""
    try:
        target.hardlink_to(whole)
    except FileExistsError:
        raise BackupError(f"{target} exists by now: choose another name") from None
    except OSError:
        # A file system without hard links.
        whole.rename(target)


def _file(data_dir: Path, ref: str) -> Path:
    return data_dir / _ATTACHMENTS / ref[:2] / ref


async def restore(config: Config, source: Path) -> None:
    """Put a backup back into `config.data_dir`, which must hold no sessions yet; no daemon may run.

    The sessions come back as exited, their transcripts under new ids: what was said after the backup is
    not in them, so seqs that clients may have seen are given again. Raises BackupError, OSError,
    ConfigError and directories.InUse.
    """
    data_dir = config.data_dir
    directories.prepare(data_dir)
    async with directories.locked(data_dir):
        present = ", ".join(name for name in _STORE_FILES if (data_dir / name).exists())
        if present:
            raise BackupError(
                f"{data_dir} holds sessions already: move {present} away, or name another directory"
            )
        try:
            with tarfile.open(source, "r:") as tar:
                members = [member for member in tar if _belongs(member)]
                if not any(member.name == _DATABASE for member in members):
                    raise BackupError(f"{source} is no whole backup: {_DATABASE} is not in it")
                _extract(tar, members, data_dir)
        except tarfile.TarError as error:
            raise BackupError(f"{source} is no whole backup: {error}") from error
        except OSError as error:
            raise BackupError(f"{source} can't be restored to {data_dir}: {error.strerror}") from error


def _extract(tar: tarfile.TarFile, members: list[tarfile.TarInfo], data_dir: Path) -> None:
    """Attachments first, which nothing names yet, then the store under its own name when it is whole."""
    unfinished = data_dir / f"{_DATABASE}.restoring"
    try:
        for member in members:
            name = unfinished.name if member.name == _DATABASE else member.name
            tar.extract(member.replace(name=name), data_dir, filter="data")
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.rename(data_dir / _DATABASE)
    finally:
        unfinished.unlink(missing_ok=True)


def _belongs(member: tarfile.TarInfo) -> bool:
    return member.isfile() and (member.name == _DATABASE or member.name.startswith(f"{_ATTACHMENTS}/"))
