"""The doctor sees what would keep the daemon from starting, and never fails over it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sessiond_server.config import Config
from sessiond_server.directories import locked
from sessiond_server.doctor import examine
from sessiond_server.main import app
from sessiond_server.store import Store


def _later(data_dir: Path) -> None:
    Store(data_dir / "sessiond.db").close()
    with sqlite3.connect(data_dir / "sessiond.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def _no_database(data_dir: Path) -> None:
    (data_dir / "sessiond.db").write_bytes(b"no database " * 1000)


def _no_folder(data_dir: Path) -> None:
    (data_dir / "sessions").write_text("a file")


def _no_lock(data_dir: Path) -> None:
    (data_dir / "sessiond.lock").mkdir()


@pytest.mark.parametrize(
    ("spoil", "subject", "said"),
    [
        (_later, "store", "has version 99"),
        (_no_database, "store", "not a database"),
        (_no_folder, "agents", "Not a directory"),
        (_no_lock, "daemon", "sessiond.lock: Is a directory"),
    ],
)
async def test_what_the_daemon_would_stumble_over_is_told(
    spoil: Callable[[Path], None], subject: str, said: str, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    config = Config(data_dir=data_dir, runtime_dir=tmp_path / "run")
    assert not [f for f in await examine(config) if f.verdict == "wrong"]
    spoil(data_dir)
    (finding,) = [found for found in await examine(config) if found.verdict == "wrong"]
    assert finding.subject == subject
    assert said in finding.text


async def test_a_healthy_directory_in_use_is_well(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    Store(data_dir / "sessiond.db").close()
    async with locked(data_dir):
        findings = await examine(Config(data_dir=data_dir, runtime_dir=tmp_path / "run"))
    assert not [found for found in findings if found.verdict == "wrong"]


@pytest.mark.parametrize("spoil", [_no_folder, _no_lock, _no_database, _later])
@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_directory_that_is_odd_is_one_clear_line(
    command: str, spoil: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    spoil(data_dir)
    result = CliRunner().invoke(app, [command, "--data-dir", str(data_dir)])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert str(data_dir) in result.output + result.stderr


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_data_directory_that_is_a_file_is_told(command: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    result = CliRunner().invoke(app, [command, "--data-dir", str(tmp_path / "data")])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
