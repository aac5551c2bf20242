"""The store's one writer: a thread that commits what is waiting, together (group commit)."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Statement: TypeAlias = tuple[str, Sequence[Any]]

# More than this in one commit only makes the first caller wait longer.
_MAX_GROUP = 256
# Numbers beyond 64 bits and text that is no UTF-8 never reach SQLite.
_REFUSALS = (sqlite3.Error, OverflowError, ValueError)


class StorageFull(Exception):
    """The disk or its quota is full; nothing of the transaction was kept."""


@dataclass(slots=True)
class _Job:
    statements: Sequence[Statement]
    done: asyncio.Future[None]
    sync: bool


class Writer:
    """Owns the writing connection. Transactions are committed in the order of `commit` calls."""

    def __init__(
        self, connection: sqlite3.Connection, loop: asyncio.AbstractEventLoop, synchronous: str
    ) -> None:
        self._connection = connection
        self._synchronous = synchronous
        self._loop = loop
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def commit(self, statements: Sequence[Statement], sync: bool) -> asyncio.Future[None]:
        """Commit `statements` as one transaction; the future ends when they are durable.

        With `sync` not even a power cut takes them back, however the connection is set up. The future
        raises StorageFull, or whatever else SQLite has against a statement: a bug here.
        """
        done: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put(_Job(statements, done, sync))
        return done

    def close(self) -> None:
        """Commit what is waiting and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            group, last = [job], False
            while len(group) < _MAX_GROUP:
                try:
                    more = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    last = True
                    break
                group.append(more)
            if any(job.sync for job in group):
                # Not a part of the group's transaction: within one it has no effect.
                self._connection.execute("PRAGMA synchronous = FULL")
                results = self._commit_group(group)
                self._connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            else:
                results = self._commit_group(group)
            self._loop.call_soon_threadsafe(_settle, results)
            if last:
                return

    def _commit_group(self, group: list[_Job]) -> list[tuple[_Job, Exception | None]]:
        results: list[tuple[_Job, Exception | None]] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for job in group:
                results.append((job, self._run_job(job)))
            self._connection.execute("COMMIT")
        except _REFUSALS as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            return [(job, _translate(error)) for job in group]
        return results

    def _run_job(self, job: _Job) -> Exception | None:
        # A savepoint of its own: one transaction that fails must not take the others along.
        execute = self._connection.execute
        execute("SAVEPOINT job")
        try:
            for sql, parameters in job.statements:
                execute(sql, parameters)
        except _REFUSALS as error:
            if not self._connection.in_transaction:
                raise  # SQLite gave up the whole transaction (disk full, I/O error)
            execute("ROLLBACK TO job")
            execute("RELEASE job")
            return _translate(error)
        execute("RELEASE job")
        return None


def _translate(error: Exception) -> Exception:
    if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
        return StorageFull("the disk that holds the data directory is full")
    return error


def _settle(results: list[tuple[_Job, Exception | None]]) -> None:
    for job, error in results:
        if job.done.cancelled():
            continue
        if error is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(error)
