"""How the daemon is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sessiond_client import AddressError, Endpoint, Tls, data_dir, discover, runtime_dir


@pytest.mark.parametrize(
    ("address", "target", "tls"),
    [
        ("unix:///run/s.sock", "unix:/run/s.sock", False),
        ("unix:/run/s.sock", "unix:/run/s.sock", False),
        ("unix:s.sock", "unix:s.sock", False),
        ("/run/s.sock", "unix:/run/s.sock", False),
        ("127.0.0.1:7443", "127.0.0.1:7443", False),
        ("http://localhost:7443/", "localhost:7443", False),
        ("[::1]:7443", "[::1]:7443", False),
        ("https://example.org:7443", "example.org:7443", True),
    ],
)
def test_every_spelling_of_an_address(address: str, target: str, tls: bool) -> None:
    for found in (discover(address, env={}), discover(env={"SESSIOND_ADDRESS": address})):
        assert found.target == target
        assert (found.tls is not None) == tls


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        "host:",
        ":7443",
        "host:0",
        "host:65536",
        "::1:7443",
        "unix:",
        "unix://rel",
        "a/b:1",
    ],
)
def test_nonsense_is_refused_with_what_to_write(address: str) -> None:
    with pytest.raises(AddressError, match="write "):
        discover(address, env={})


def test_an_argument_wins_over_the_environment() -> None:
    assert discover("/a.sock", env={"SESSIOND_ADDRESS": "/b.sock"}).target == "unix:/a.sock"


@pytest.mark.parametrize(
    ("env", "runtime", "data"),
    [
        ({"HOME": "/h"}, "/h/.local/share/sessiond/run", "/h/.local/share/sessiond"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/d"}, "/d/sessiond/run", "/d/sessiond"),
        ({"HOME": "/h", "SESSIOND_DATA_DIR": "/own"}, "/own/run", "/own"),
        ({"HOME": "/h", "XDG_RUNTIME_DIR": "/r"}, "/r/sessiond", "/h/.local/share/sessiond"),
        (
            {"HOME": "/h", "XDG_RUNTIME_DIR": "/r", "SESSIOND_RUNTIME_DIR": "/x", "XDG_DATA_HOME": ""},
            "/x",
            "/h/.local/share/sessiond",
        ),
    ],
)
def test_the_folders_of_a_daemon(env: dict[str, str], runtime: str, data: str) -> None:
    assert runtime_dir(env) == Path(runtime)
    assert data_dir(env) == Path(data)
    assert discover(env=env).target == f"unix:{runtime}/sessiond.sock"


def served(folder: Path, **what: str) -> dict[str, str]:
    (folder / "address.json").write_text(json.dumps(what))
    return {"SESSIOND_RUNTIME_DIR": str(folder)}


def test_what_the_daemon_wrote_is_used(folder: Path) -> None:
    env = served(folder, unix="/other/s.sock", tcp="127.0.0.1:7443")
    assert discover(env=env) == Endpoint(target="unix:/other/s.sock")


def test_a_daemon_on_tcp_alone_is_found_with_its_token_and_authority(folder: Path) -> None:
    (folder / "tok").write_text("secret\n")
    env = served(
        folder, tcp="127.0.0.1:7443", token_file=str(folder / "tok"), tls_ca=str(folder / "ca.pem")
    )
    assert discover(env=env) == Endpoint(
        target="127.0.0.1:7443", token_file=folder / "tok", tls=Tls(ca_file=folder / "ca.pem")
    )


@pytest.mark.parametrize("content", ["", "{", "[]", '{"unix": 3}', "\x00"])
def test_a_broken_address_file_is_as_good_as_none(folder: Path, content: str) -> None:
    (folder / "address.json").write_text(content)
    found = discover(env={"SESSIOND_RUNTIME_DIR": str(folder)})
    assert found.target == f"unix:{folder}/sessiond.sock"


def test_where_a_token_comes_from(folder: Path) -> None:
    (folder / "token").write_text("default")
    env = {"SESSIOND_RUNTIME_DIR": str(folder)}
    tcp = "127.0.0.1:7443"
    assert discover(tcp, env=env).token_file == folder / "token"
    assert discover(tcp, env={**env, "SESSIOND_TOKEN_FILE": str(folder)}).token_file == folder
    assert discover(tcp, env={**env, "SESSIOND_TOKEN": "t"}) == Endpoint(target=tcp, token="t")
    assert discover(tcp, token="a", env={**env, "SESSIOND_TOKEN": "t"}).token == "a"
    explicit = discover(tcp, token_file="/f", env={**env, "SESSIOND_TOKEN": "t"})
    assert explicit == Endpoint(target=tcp, token_file=Path("/f"))
    assert discover("/s.sock", env={**env, "SESSIOND_TOKEN": "t"}) == Endpoint(target="unix:/s.sock")


def test_tls_material_comes_from_the_environment() -> None:
    env = {"SESSIOND_TLS_CA": "/ca", "SESSIOND_TLS_CERT": "/cert", "SESSIOND_TLS_KEY": "/key"}
    tls = Tls(ca_file=Path("/ca"), cert_file=Path("/cert"), key_file=Path("/key"))
    assert discover("https://h:1", env=env).tls == tls
    with pytest.raises(AddressError, match="https://"):
        discover("h:1", tls=tls, env={})


def test_a_token_never_crosses_a_network_in_the_clear() -> None:
    with pytest.raises(AddressError, match=r"https://example\.org:7443"):
        discover("example.org:7443", token="secret", env={})
    assert discover("https://example.org:7443", token="secret", env={}).token == "secret"


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(discover("127.0.0.1:1", token="secret", env={}))


def test_a_socket_path_that_is_too_long_is_told() -> None:
    with pytest.raises(AddressError, match="SESSIOND_RUNTIME_DIR"):
        discover(env={"SESSIOND_RUNTIME_DIR": "/" + "x" * 100})
