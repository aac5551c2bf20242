"""Callers: who passes, under which name, and what refuses to start."""

from __future__ import annotations

import getpass
import secrets
import stat
from pathlib import Path

import pytest

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond_server.auth import Authenticator, Caller, check_exposure, load_token
from sessiond_server.config import ConfigError, parse_address
from sessiond_server.errors import DomainError
from tests.support.disk import no_file_over

TCP = "ipv4:127.0.0.1:40000"


def test_unix_peers_are_the_local_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    expected = getpass.getuser()
    monkeypatch.setenv("LOGNAME", "somebody-else")
    assert Authenticator("t").authenticate(Caller("unix:")) == expected


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_token_opens_tcp(scheme: str) -> None:
    assert Authenticator("right").authenticate(Caller(TCP, f"{scheme} right")) == "token"


@pytest.mark.parametrize(
    "authorization", ["", "right", "Basic right", "Bearer", "Bearer ", "Bearer wrong", "Bearer rightt"]
)
def test_anything_else_does_not(authorization: str) -> None:
    with pytest.raises(DomainError) as caught:
        Authenticator("right").authenticate(Caller(TCP, authorization))
    assert caught.value.reason == reasons.ERROR_REASON_UNAUTHENTICATED
    assert "right" not in caught.value.message


def test_a_certificate_names_its_caller_but_needs_the_token() -> None:
    identity = {"x509_common_name": [b"phone"]}
    authenticator = Authenticator("right")
    assert authenticator.authenticate(Caller(TCP, "Bearer right", identity)) == "phone"
    with pytest.raises(DomainError):
        authenticator.authenticate(Caller(TCP, "", identity))


def test_a_token_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = load_token(path)
    assert len(token) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert load_token(path) == token
    assert load_token(tmp_path / "other") != token


def test_a_token_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    refused = pytest.raises(ConfigError, match=r"token_file: .*token: File too large")
    with no_file_over(0), refused:
        load_token(tmp_path / "token")
    # Nothing that a later start would take for a token's file.
    assert list(tmp_path.iterdir()) == []


def test_a_token_that_another_daemon_made_first_is_everybodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"

    def slowly(size: int) -> str:
        path.touch(0o600)
        path.write_text("the first\n")
        return "the second"

    monkeypatch.setattr(secrets, "token_urlsafe", slowly)
    assert load_token(path) == "the first"
    assert path.read_text() == "the first\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_token_that_others_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    load_token(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="mode 0640"):
        load_token(path)


@pytest.mark.parametrize("content", ["", " \n", "täg", "a\nb"])
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(ConfigError, match="token_file"):
        load_token(path)


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "192.168.1.2:1", "example.org:1"])
def test_the_network_needs_tls(text: str) -> None:
    with pytest.raises(ConfigError, match=r"not loopback.*tls\.cert"):
        check_exposure([parse_address(text)], tls=False)
    check_exposure([parse_address(text)], tls=True)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:1", "unix:/s"])
def test_loopback_does_not(text: str) -> None:
    check_exposure([parse_address(text)], tls=False)
