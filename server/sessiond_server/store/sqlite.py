"""The store: one SQLite file in WAL mode, read on the event loop, written by one thread."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sessiond.v1 import session_pb2
from sessiond_server.store import records, schema
from sessiond_server.store.writer import Statement, Writer

# Rows of one step are cut at this size, so that reading from the middle never loads much more.
ROW_BYTES = 256 * 1024
LINE, CLOSE_STDIN = 0, 1
# In `requests`, creations stand under a key that no session has, and deletions below it by their week.
CREATIONS = 0
_NO_END = 2**63 - 1

_SESSION_COLUMNS = (
    "key, session_id, transcript_id, driver, spec, head_seq, run, alive, raw_offset, input_id, "
    "state, driver_state, summary"
)


@dataclass(slots=True)
class SessionRow:
    """A session as it is stored; the fields are the columns of schema.py."""

    key: int
    session_id: str
    transcript_id: str
    driver: str
    spec: bytes
    head_seq: int = 0
    run: int = 0
    alive: int = 0
    raw_offset: int = 0
    input_id: int = 0
    state: bytes = b""
    driver_state: bytes = b""
    summary: bytes = b""


@dataclass(slots=True)
class Response:
    """What a call with a request_id got: the digest of its content and its encoded response."""

    request_id: str
    digest: bytes
    response: bytes


@dataclass(slots=True)
class Step:
    """Everything that one step changes in one session; committed together or not at all.

    `records` are the events from `first_seq` on. None means unchanged. `acked` drops the outbox up to
    that input id; `clear_outbox` drops it whole.
    """

    key: int
    first_seq: int
    records: list[bytes] = field(default_factory=list)
    run: int | None = None
    alive: bool | None = None
    raw_offset: int | None = None
    input_id: int | None = None
    state: bytes | None = None
    driver_state: bytes | None = None
    summary: bytes | None = None
    outbox: list[tuple[int, int, bytes]] = field(default_factory=list)
    acked: int = 0
    clear_outbox: bool = False
    responses: list[Response] = field(default_factory=list)
    attachments: list[session_pb2.Attachment] = field(default_factory=list)

    @property
    def head_seq(self) -> int:
        """The seq of the last event after this step."""
        return self.first_seq + len(self.records) - 1

    def chunks(self) -> list[tuple[int, int, bytes]]:
        """Return (first seq, last seq, joined records) of each row to store."""
        chunks: list[tuple[int, int, bytes]] = []
        first, size, start = self.first_seq, 0, 0
        for index, item in enumerate(self.records):
            if size and size + len(item) > ROW_BYTES:
                data = b"".join(self.records[start:index])
                chunks.append((first, first + index - start - 1, data))
                first, size, start = first + index - start, 0, index
            size += len(item)
        if start < len(self.records):
            chunks.append((first, self.head_seq, b"".join(self.records[start:])))
        return chunks


class Store:
    """All durable state of one daemon. Reads are immediate; writes are futures (see Writer)."""

    def __init__(self, path: Path, *, full_sync: bool = False) -> None:
        """Open or create the file at `path` (mode 0600).

        `full_sync` survives a power cut without losing the last commits, at some milliseconds each.
        Raises StoreTooNew, or sqlite3.DatabaseError when the file is not a store.
        """
        self.path = path
        path.touch(mode=0o600)
        writing = self._connect(full_sync)
        schema.prepare(writing)
        self._reading = self._connect(full_sync)
        self._writing = writing
        self._writer: Writer | None = None
        self.full_sync = full_sync

    def _connect(self, full_sync: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=10
        )
        # Before the first change: a file of a later version stays as it is.
        schema.check(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {_synchronous(full_sync)}")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA cache_size = -16384")
        # What is deleted may be a secret. ON would need room for all of a transcript to delete it.
        connection.execute("PRAGMA secure_delete = FAST")
        return connection

    def close(self) -> None:
        """Finish what is being written and close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._reading.close()
        self._writing.close()

    def write(self, statements: Sequence[Statement], *, sync: bool = False) -> asyncio.Future[None]:
        """Commit statements as one transaction (StorageFull when the disk is full).

        With `sync` not even a power cut takes them back.
        """
        if self._writer is None:
            loop = asyncio.get_running_loop()
            self._writer = Writer(self._writing, loop, _synchronous(self.full_sync))
        return self._writer.commit(statements, sync)

    # --- what the server knows of itself ---

    def get_meta(self, key: str) -> str:
        """Return a value that the daemon keeps about itself, or ""."""
        row = self._reading.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else ""

    def set_meta(self, values: Mapping[str, str], *, sync: bool = False) -> asyncio.Future[None]:
        """Keep values about the daemon itself."""
        sql = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
        return self.write([(sql, pair) for pair in values.items()], sync=sync)

    # --- sessions ---

    def sessions(self) -> Iterator[SessionRow]:
        """Yield every session, oldest first, without its states (empty)."""
        columns = _SESSION_COLUMNS.replace("state, driver_state", "x'', x''")
        for row in self._reading.execute(f"SELECT {columns} FROM sessions ORDER BY key").fetchall():
            yield SessionRow(*row)

    def session(self, session_id: str) -> SessionRow | None:
        """Return one session with its states, or None."""
        sql = f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE session_id = ?"
        row = self._reading.execute(sql, (session_id,)).fetchone()
        return SessionRow(*row) if row else None

    async def create_session(self, row: SessionRow, response: Response | None) -> int:
        """Insert a session and return its key; `row.key` is not looked at.

        One of the same id that was never started makes way: its creation has failed.
        """
        statements: list[Statement] = [
            ("DELETE FROM sessions WHERE session_id = ? AND run = 0", (row.session_id,)),
            (
                "INSERT INTO sessions (session_id, transcript_id, driver, spec, state, summary) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (row.session_id, row.transcript_id, row.driver, row.spec, row.state, row.summary),
            ),
        ]
        if response is not None:
            statements.append(_insert_response(CREATIONS, response))
        await self.write(statements)
        key: int = self._reading.execute(
            "SELECT key FROM sessions WHERE session_id = ?", (row.session_id,)
        ).fetchone()[0]
        return key

    def delete_session(
        self, key: int, creation: str = "", response: Response | None = None, week: int = 0
    ) -> asyncio.Future[None]:
        """Delete a session with its transcript and all that belongs to it.

        `creation` is the request_id that made it, "" for none. `response` is kept under minus the number
        of this `week`, and what was kept so two weeks ago and before is forgotten.
        """
        statements: list[Statement] = [
            (f"DELETE FROM {table} WHERE session = ?", (key,))
            for table in ("transcript", "outbox", "requests", "attachments")
        ]
        statements.append(("DELETE FROM sessions WHERE key = ?", (key,)))
        sql = "DELETE FROM requests WHERE session = ? AND request_id = ?"
        statements.append((sql, (CREATIONS, creation)))
        if response is not None:
            sql = "DELETE FROM requests WHERE session > ? AND session < ?"
            statements.append((sql, (1 - week, CREATIONS)))
            statements.append(_insert_response(-week, response))
        return self.write(statements)

    def keep_response(self, key: int, response: Response) -> asyncio.Future[None]:
        """Keep what a call got, in place of what was kept under its request_id."""
        return self.write([_insert_response(key, response)])

    def change_transcripts(self, ids: Sequence[tuple[str, int]]) -> asyncio.Future[None]:
        """Give sessions new transcript ids: (transcript_id, key) each."""
        return self.write(
            [("UPDATE sessions SET transcript_id = ? WHERE key = ?", pair) for pair in ids]
        )

    def change_states(self, states: Sequence[tuple[bytes, int]]) -> asyncio.Future[None]:
        """Give sessions new states, outside any step: (state, key) each."""
        return self.write([("UPDATE sessions SET state = ? WHERE key = ?", pair) for pair in states])

    # --- one step ---

    def commit(self, step: Step) -> asyncio.Future[None]:
        """Commit a step; the future ends when it is durable (StorageFull when the disk is full)."""
        return self.write(_step_statements(step))

    def outbox(self, key: int) -> list[tuple[int, int, bytes]]:
        """Return (input id, kind, data) of what the shim has not acknowledged, in order."""
        sql = "SELECT input_id, kind, data FROM outbox WHERE session = ? ORDER BY input_id"
        return self._reading.execute(sql, (key,)).fetchall()

    def response(self, key: int, request_id: str) -> Response | None:
        """Return what an earlier call with this request_id got.

        `key` is a session's, CREATIONS, or minus the number of the week of a deletion.
        """
        sql = "SELECT request_id, digest, response FROM requests WHERE session = ? AND request_id = ?"
        row = self._reading.execute(sql, (key, request_id)).fetchone()
        return Response(*row) if row else None

    # --- transcripts ---

    def read_after(self, key: int, after_seq: int, most: int, upto: int = _NO_END) -> tuple[bytes, int]:
        """Return joined records after `after_seq`, of about `most` bytes, and the last seq.

        At least one row, whatever its size; (b"", after_seq) at the end of the transcript. `upto` is the
        head that the reader is told of: a step may be committed before its actor knows.
        """
        sql = (
            "SELECT first_seq, last_seq, data FROM transcript WHERE session = ?1 AND first_seq >= "
            "ifnull((SELECT max(first_seq) FROM transcript WHERE session = ?1 AND first_seq <= ?2), 0) "
            "AND last_seq >= ?2 AND last_seq <= ?3 ORDER BY first_seq"
        )
        parts: list[bytes] = []
        size, last = 0, after_seq
        cursor = self._reading.execute(sql, (key, after_seq + 1, upto))
        for first_seq, last_seq, data in cursor:
            if first_seq <= after_seq:
                data = records.skip(data, after_seq - first_seq + 1)
            if size and size + len(data) > most:
                break
            parts.append(data)
            size += len(data)
            last = last_seq
            if size >= most:
                break
        cursor.close()
        return b"".join(parts), last

    def read_before(self, key: int, before_seq: int, count: int, most: int) -> bytes:
        """Return the last `count` records before `before_seq`, ascending, of at most about `most` bytes.

        At least one record, unless there is none.
        """
        sql = (
            "SELECT first_seq, last_seq, data FROM transcript WHERE session = ? AND first_seq < ? "
            "ORDER BY first_seq DESC"
        )
        parts: list[bytes] = []
        size, wanted, end = 0, count, before_seq
        cursor = self._reading.execute(sql, (key, before_seq))
        for first_seq, last_seq, data in cursor:
            if last_seq >= end:
                data = records.head(data, end - first_seq)
            held = end - first_seq
            if held > wanted:
                data = records.skip(data, held - wanted)
                held = wanted
            if size + len(data) > most:
                parts.append(records.last(data, most - size, at_least_one=not parts))
                break
            parts.append(data)
            size += len(data)
            wanted -= held
            end = first_seq
            if not wanted:
                break
        cursor.close()
        return b"".join(reversed(parts))

    # --- attachments ---

    def get_attachment(self, key: int, ref: str) -> session_pb2.Attachment | None:
        """Return the attachment that this session has under `ref`, or None."""
        sql = (
            "SELECT ref, media_type, filename, size_bytes FROM attachments WHERE session = ? AND ref = ?"
        )
        row = self._reading.execute(sql, (key, ref)).fetchone()
        if row is None:
            return None
        return session_pb2.Attachment(ref=row[0], media_type=row[1], filename=row[2], size_bytes=row[3])

    async def add_attachment(self, key: int, attachment: session_pb2.Attachment) -> bool:
        """Let a session see an attachment; the first name and type stay.

        False when the session was deleted meanwhile: nothing is kept then.
        """
        await self.write([_insert_attachment(key, attachment)])
        return self.get_attachment(key, attachment.ref) is not None

    def drop_orphans(self) -> asyncio.Future[None]:
        """Forget attachments of sessions that are no more, whose files would be kept for ever."""
        sql = "DELETE FROM attachments WHERE session NOT IN (SELECT key FROM sessions)"
        return self.write([(sql, ())])

    def attachment_refs(self) -> set[str]:
        """Return every ref that some session has."""
        return {row[0] for row in self._reading.execute("SELECT DISTINCT ref FROM attachments")}


def _synchronous(full: bool) -> str:
    return "FULL" if full else "NORMAL"


def _insert_response(key: int, response: Response) -> Statement:
    return (
        "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?)",
        (key, response.request_id, response.digest, response.response),
    )


def _insert_attachment(key: int, attachment: session_pb2.Attachment) -> Statement:
    # Its session may have been deleted between the call and this commit.
    return (
        "INSERT OR IGNORE INTO attachments SELECT ?1, ?2, ?3, ?4, ?5 "
        "WHERE EXISTS (SELECT 1 FROM sessions WHERE key = ?1)",
        (key, attachment.ref, attachment.media_type, attachment.filename, attachment.size_bytes),
    )


def _step_statements(step: Step) -> list[Statement]:
    statements: list[Statement] = [
        ("INSERT INTO transcript VALUES (?, ?, ?, ?)", (step.key, *chunk)) for chunk in step.chunks()
    ]
    if step.clear_outbox:
        statements.append(("DELETE FROM outbox WHERE session = ?", (step.key,)))
    elif step.acked:
        sql = "DELETE FROM outbox WHERE session = ? AND input_id <= ?"
        statements.append((sql, (step.key, step.acked)))
    statements += [("INSERT INTO outbox VALUES (?, ?, ?, ?)", (step.key, *row)) for row in step.outbox]
    statements += [_insert_response(step.key, response) for response in step.responses]
    statements += [_insert_attachment(step.key, attachment) for attachment in step.attachments]
    columns = {
        "head_seq": step.head_seq,
        "run": step.run,
        "alive": step.alive,
        "raw_offset": step.raw_offset,
        "input_id": step.input_id,
        "state": step.state,
        "driver_state": step.driver_state,
        "summary": step.summary,
    }
    changed = {name: value for name, value in columns.items() if value is not None}
    names = ", ".join(f"{name} = ?" for name in changed)
    statements.append((f"UPDATE sessions SET {names} WHERE key = ?", (*changed.values(), step.key)))
    return statements
