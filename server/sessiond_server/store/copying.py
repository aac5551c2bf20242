"""A consistent copy of a store that may be in use, also by a daemon of another version."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from sessiond_server.store.schema import COPIED


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy holds: how many sessions, and the refs of their attachments."""

    sessions: int
    attachments: list[str]


def copy(source: Path, target: Path) -> Copied:
    """Copy the store at `source` to `target` (mode 0600), as it is at one moment; changes nothing in it.

    The copy is marked as one: a daemon that opens it gives the transcripts new ids, for the original may
    have gone on. Raises sqlite3.Error.
    """
    target.touch(mode=0o600)
    with (
        contextlib.closing(
            sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
        ) as reading,
        contextlib.closing(sqlite3.connect(target)) as writing,
    ):
        # In one step, which holds one view of the store: any smaller ones begin anew whenever the daemon
        # commits in between, and with a busy one that never ends. Nobody waits for it.
        reading.backup(writing, pages=-1)
        # One file: without this the copy would want a log beside it.
        writing.execute("PRAGMA journal_mode = DELETE")
        with writing:
            writing.execute("INSERT OR REPLACE INTO meta VALUES (?, '1')", (COPIED,))
        (sessions,) = writing.execute("SELECT count(*) FROM sessions").fetchone()
        refs = writing.execute("SELECT DISTINCT ref FROM attachments ORDER BY ref").fetchall()
    return Copied(sessions, [ref for (ref,) in refs])
