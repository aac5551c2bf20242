"""A file of an earlier version is brought to this one, step by step and whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from sessiond.v1 import session_service_pb2 as api
from sessiond_server.session.state import decode_spec, decode_state
from sessiond_server.store import Store, schema

EVERY_VERSION = sorted((Path(__file__).parent / "versions").glob("v*.sql"))


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A file of version 1 with a value in it."""
    path = tmp_path / "store.db"
    Store(path).close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO meta VALUES ('kept', 'value')")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    return path


def _next(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[sqlite3.Connection], None]) -> None:
    monkeypatch.setattr(schema, "VERSION", 1 + len(steps))
    monkeypatch.setattr(schema, "MIGRATIONS", dict(enumerate(steps, 1)))


def _add(name: str) -> Callable[[sqlite3.Connection], None]:
    def step(connection: sqlite3.Connection) -> None:
        connection.execute(f"ALTER TABLE meta ADD COLUMN {name} TEXT NOT NULL DEFAULT '{name}'")

    return step


def _fail(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TABLE meta")
    raise RuntimeError("torn off")


def _look(path: Path, sql: str) -> object:
    connection = sqlite3.connect(path)
    found = connection.execute(sql).fetchone()
    connection.close()
    return found


def test_every_step_is_taken_in_order(first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _next(monkeypatch, _add("one"), _add("two"))
    Store(first).close()
    assert _look(first, "PRAGMA user_version") == (3,)
    assert _look(first, "SELECT * FROM meta WHERE key = 'kept'") == ("kept", "value", "one", "two")
    Store(first).close()


def test_a_step_that_fails_leaves_the_file_as_it_was(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _next(monkeypatch, _add("one"), _fail)
    with pytest.raises(RuntimeError, match="torn off"):
        Store(first)
    assert _look(first, "PRAGMA user_version") == (1,)
    assert _look(first, "SELECT * FROM meta WHERE key = 'kept'") == ("kept", "value")


def test_there_is_a_step_from_every_version_to_the_next() -> None:
    assert sorted(schema.MIGRATIONS) == list(range(1, schema.VERSION))
    assert [path.stem for path in EVERY_VERSION] == [f"v{n}" for n in range(1, schema.VERSION + 1)]


@pytest.mark.parametrize("path", EVERY_VERSION, ids=lambda path: path.stem)
def test_a_file_that_a_version_wrote_is_read(path: Path, tmp_path: Path) -> None:
    """Each was written by a daemon of its version: a turn, a crash, a message that waits."""
    database = tmp_path / "store.db"
    connection = sqlite3.connect(database)
    connection.executescript(path.read_text())
    connection.close()
    store = Store(database)
    (row,) = store.sessions()
    kept = store.session(row.session_id)
    assert kept is not None
    assert decode_spec(kept.spec).workspace == "/workspace"
    state = decode_state(kept.state)
    assert [item.text for item in state.queue] == ["waits"]
    data, last = store.read_after(row.key, 0, 1 << 30)
    events = api.SubscribeResponse.FromString(data).events
    assert [event.seq for event in events] == list(range(1, row.head_seq + 1))
    assert last == row.head_seq
    assert "".join(event.assistant_text.delta for event in events) == "hello"
    assert store.response(row.key, "send-1") is not None
    store.close()
