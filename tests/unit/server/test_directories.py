"""Directories: private, locked, with sockets that nobody loses."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from sessiond_server import directories
from sessiond_server.config import ConfigError, TcpAddress, UnixAddress
from sessiond_server.directories import InUse


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_a_directory_is_made_private(folder: Path) -> None:
    directories.prepare(folder / "a" / "b")
    assert (folder / "a" / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_an_open_one_is_refused(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*chmod 700"):
        directories.prepare(folder)


def test_a_file_in_its_place_is_refused(folder: Path) -> None:
    (folder / "f").touch()
    with pytest.raises(ConfigError, match="File exists"):
        directories.prepare(folder / "f")


async def test_one_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "_LOCK_PAUSE", 0.001)
    assert directories.lock_holder(folder) is None
    async with directories.locked(folder):
        assert directories.lock_holder(folder) == str(os.getpid())
        with pytest.raises(InUse, match=rf"pid {os.getpid()}\) uses {folder}"):
            await directories.locked(folder).__aenter__()
    assert directories.lock_holder(folder) is None
    async with directories.locked(folder):
        pass


def test_a_stale_socket_is_removed_and_a_living_one_is_not(folder: Path) -> None:
    path = folder / "s"
    directories.clear_socket(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(path))
        server.listen()
        with pytest.raises(InUse, match="another program serves"):
            directories.clear_socket(path)
        assert path.exists()
    directories.clear_socket(path)
    assert not path.exists()


def test_what_is_no_socket_is_left_alone(folder: Path) -> None:
    (folder / "s").write_text("precious")
    with pytest.raises(ConfigError, match="is no socket"):
        directories.clear_socket(folder / "s")
    assert (folder / "s").read_text() == "precious"


def test_a_path_too_long_for_a_socket_says_so(folder: Path) -> None:
    with pytest.raises(ConfigError, match="shorter --runtime-dir"):
        directories.clear_socket(folder / ("x" * 108))


def test_clients_find_the_first_of_each_kind(folder: Path) -> None:
    addresses = (
        UnixAddress(Path("/run/s")),
        TcpAddress("0.0.0.0", 1),
        TcpAddress("::", 2),
        UnixAddress(Path("/run/t")),
    )
    directories.write_addresses(folder, addresses, Path("/run/token"), Path("/ca.pem"))
    assert json.loads((folder / "address.json").read_text()) == {
        "unix": "unix:/run/s",
        "tcp": "127.0.0.1:1",
        "token_file": "/run/token",
        "tls_ca": "/ca.pem",
    }
    directories.write_addresses(folder, [TcpAddress("::", 2)], Path("/t"), None)
    assert json.loads((folder / "address.json").read_text()) == {
        "tcp": "[::1]:2",
        "token_file": "/t",
    }
    assert [path.name for path in folder.iterdir()] == ["address.json"]
