"""The tables, their version, and the way from an older version to this one.

One file holds everything: sessions, their transcripts, what is still to be written to their agents, the
answers to calls that named a request_id, and which session may see which attachment.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

VERSION = 1

# The key in `meta` that marks a copy: its original may have gone on.
COPIED = "copied"

# `transcript.data` is one or more whole records (see records.py): the events of one step, or a part of
# them when they are big. `outbox.kind` is 0 for a line, 1 for closing stdin.
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sessions (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  session_id TEXT NOT NULL UNIQUE,
  transcript_id TEXT NOT NULL,
  driver TEXT NOT NULL,
  spec BLOB NOT NULL,
  head_seq INTEGER NOT NULL DEFAULT 0,
  run INTEGER NOT NULL DEFAULT 0,
  alive INTEGER NOT NULL DEFAULT 0,
  raw_offset INTEGER NOT NULL DEFAULT 0,
  input_id INTEGER NOT NULL DEFAULT 0,
  state BLOB NOT NULL DEFAULT x'',
  driver_state BLOB NOT NULL DEFAULT x'',
  summary BLOB NOT NULL DEFAULT x''
);
CREATE TABLE transcript (
  session INTEGER NOT NULL,
  first_seq INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (session, first_seq)
);
CREATE TABLE outbox (
  session INTEGER NOT NULL,
  input_id INTEGER NOT NULL,
  kind INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (session, input_id)
);
CREATE TABLE requests (
  session INTEGER NOT NULL,
  request_id TEXT NOT NULL,
  digest BLOB NOT NULL,
  response BLOB NOT NULL,
  PRIMARY KEY (session, request_id)
) WITHOUT ROWID;
CREATE TABLE attachments (
  session INTEGER NOT NULL,
  ref TEXT NOT NULL,
  media_type TEXT NOT NULL,
  filename TEXT NOT NULL,
  size_bytes INTEGER NOT NULL,
  PRIMARY KEY (session, ref)
) WITHOUT ROWID;
CREATE INDEX attachments_by_ref ON attachments (ref);
"""

# MIGRATIONS[n] leads from version n to n + 1.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {}


class StoreTooNew(Exception):
    """The file was written by a later version of the daemon; this one would damage it."""


def check(connection: sqlite3.Connection) -> int:
    """Return the file's version, 0 for a new one; changes nothing.

    Raises StoreTooNew when it is higher than VERSION, sqlite3.DatabaseError when it is no store.
    """
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise StoreTooNew(
            f"the store has version {version}, this daemon knows up to {VERSION}: run the newer daemon, "
            "or restore a backup made by this one"
        )
    return version


def check_file(path: Path) -> None:
    """Look whether this daemon could open the store at `path`. Raises as `check`."""
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as reading:
        check(reading)


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables, or bring an older file to this version, in one transaction.

    Raises as `check`.
    """
    version = check(connection)
    if version == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if version == 0:
            for statement in _TABLES.split(";"):
                connection.execute(statement)
        else:
            for step in range(version, VERSION):
                MIGRATIONS[step](connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
