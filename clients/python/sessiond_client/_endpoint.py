"""Where the daemon is and what it wants to see: addresses, tokens, certificates."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from ._errors import SessiondError

__all__ = ["AddressError", "Endpoint", "Tls", "data_dir", "discover", "runtime_dir"]

# sockaddr_un.sun_path holds 108 bytes on Linux and 104 on the BSDs and macOS, the NUL included.
_MAX_SOCKET_PATH = 107


class AddressError(SessiondError, ValueError):
    """The address, token or certificate can't be used as given; the text says what to change.

    No call was made. `code` is UNAUTHENTICATED for a token, INVALID_ARGUMENT for the rest.
    """

    def __init__(self, message: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT) -> None:
        super().__init__(code, message)

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What TLS needs. All are paths of PEM files; `None` as `ca_file` means the system's roots.

    `cert_file` and `key_file` belong together: the client's own certificate for mutual TLS.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One daemon's address.

    `target` is a gRPC target: `unix:/path` or `host:port`. `token` wins over `token_file`, which is read
    again whenever it changes, so a client outlives a new token.
    """

    target: str
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    tls: Tls | None = None

    def __post_init__(self) -> None:
        if self.is_unix:
            _check_socket_path(self.target.removeprefix("unix:"))
        elif self.tls is None and not self.is_local and (self.token or self.token_file):
            raise AddressError(
                f"a token would cross the network in the clear to {self.target}: use https://{self.target}"
            )

    @property
    def is_unix(self) -> bool:
        """Whether this is a unix socket."""
        return self.target.startswith("unix:")

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine: a unix socket or a loopback address."""
        return self.is_unix or _is_loopback(_split_port(self.target)[0])

    def __str__(self) -> str:
        """Return it as SESSIOND_ADDRESS would spell it."""
        return f"https://{self.target}" if self.tls else self.target


def runtime_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with the daemon's socket, token and address.json.

    `$SESSIOND_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/sessiond`, else `run` in the data folder.
    """
    if own := env.get("SESSIOND_RUNTIME_DIR"):
        return Path(own)
    if base := env.get("XDG_RUNTIME_DIR"):
        return Path(base) / "sessiond"
    return data_dir(env) / "run"


def data_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Return `$SESSIOND_DATA_DIR`, else `$XDG_DATA_HOME/sessiond`, else `~/.local/share/sessiond`."""
    if own := env.get("SESSIOND_DATA_DIR"):
        return Path(own)
    if base := env.get("XDG_DATA_HOME"):
        return Path(base) / "sessiond"
    return Path(env.get("HOME") or Path.home()) / ".local" / "share" / "sessiond"


def discover(
    address: str | None = None,
    *,
    token: str | None = None,
    token_file: str | Path | None = None,
    tls: Tls | None = None,
    env: Mapping[str, str] = os.environ,
) -> Endpoint:
    """Find the daemon: the arguments, else the environment, else where a daemon of this user serves.

    Environment: `SESSIOND_ADDRESS` (`unix:///path`, `host:port`, `https://host:port`), `SESSIOND_TOKEN`
    or `SESSIOND_TOKEN_FILE`, `SESSIOND_TLS_CA`, `SESSIOND_TLS_CERT`, `SESSIOND_TLS_KEY`. Without an
    address: what the running daemon wrote to `address.json` in its runtime folder, else that folder's
    `sessiond.sock`. A TCP address without a token takes the runtime folder's `token` if there is one.

    Raises `AddressError` when the address makes no sense.
    """
    folder = runtime_dir(env)
    wanted = address or env.get("SESSIOND_ADDRESS")
    served = _read_served(folder)
    if not wanted:
        wanted = served.get("unix") or served.get("tcp") or f"unix:{folder / 'sessiond.sock'}"
        if "unix" not in served and served.get("tls_ca"):
            wanted = f"https://{wanted}"
    target, secure = _parse(wanted)
    if target.startswith("unix:"):
        return Endpoint(target=target)
    if secure:
        tls = tls or _tls_from_env(env, served)
    elif tls is not None:
        raise AddressError(f"{wanted!r} is not a TLS address: write https://{target}")
    token = token or (None if token_file else env.get("SESSIOND_TOKEN"))
    file = Path(token_file) if token_file else _token_file(folder, served, env)
    usable = None if token or not (file.exists() or token_file) else file
    return Endpoint(target=target, token=token or "", token_file=usable, tls=tls)


def _read_served(folder: Path) -> dict[str, str]:
    """Return what a daemon wrote when it last served; empty when there is nothing usable."""
    try:
        served = json.loads((folder / "address.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(served, dict):
        return {}
    return {key: value for key, value in served.items() if isinstance(value, str) and value}


def _token_file(folder: Path, served: Mapping[str, str], env: Mapping[str, str]) -> Path:
    return Path(env.get("SESSIOND_TOKEN_FILE") or served.get("token_file") or folder / "token")


def _tls_from_env(env: Mapping[str, str], served: Mapping[str, str]) -> Tls:
    def path(name: str) -> Path | None:
        value = env.get(name)
        return Path(value) if value else None

    authority = path("SESSIOND_TLS_CA")
    if authority is None and served.get("tls_ca"):
        authority = Path(served["tls_ca"])
    return Tls(ca_file=authority, cert_file=path("SESSIOND_TLS_CERT"), key_file=path("SESSIOND_TLS_KEY"))


def _parse(address: str) -> tuple[str, bool]:
    """Return the gRPC target and whether it is TLS."""
    if address.startswith("/"):
        return f"unix:{address}", False
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if path.startswith("//"):
            path = path.removeprefix("//")
            if not path.startswith("/"):
                raise AddressError(f"{address!r}: write unix:///absolute/path or unix:relative/path")
        return f"unix:{path}", False
    secure = address.startswith("https://")
    target = address.removeprefix("https://").removeprefix("http://").rstrip("/")
    host, port = _split_port(target)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in target:
        raise AddressError(
            f"{address!r} is not an address: write unix:///path, host:port or https://host:port"
        )
    return target, secure


def _split_port(target: str) -> tuple[str, str]:
    host, _, port = target.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "", port
    return host.strip("[]"), port


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_socket_path(path: str) -> None:
    length = len(os.fsencode(path))
    if length == 0:
        raise AddressError("the unix socket's path is empty: write unix:///path")
    if length > _MAX_SOCKET_PATH:
        raise AddressError(
            f"the unix socket's path has {length} bytes and the system allows {_MAX_SOCKET_PATH}: "
            f"set SESSIOND_RUNTIME_DIR to a shorter folder ({path})"
        )
