"""Who is calling, and whether they may.

Whoever reaches the unix socket is the user that the daemon runs as: the socket's directory lets nobody
else in. Over TCP the bearer token decides, and under mutual TLS the certificate also gives the name.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import pwd
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond_server.config import ConfigError, ListenAddress, TcpAddress
from sessiond_server.errors import DomainError

__all__ = [
    "Authenticator",
    "Caller",
    "actor",
    "check_exposure",
    "load_token",
    "set_actor",
]

_SCHEME = "bearer "
_MOST_NAME = 128
_actor: ContextVar[str] = ContextVar("actor", default="")


def actor() -> str:
    """Return the name of the caller being served: what events carry as `actor`. Empty outside a call."""
    return _actor.get()


def set_actor(name: str) -> None:
    """Name the caller for the rest of this task."""
    _actor.set(name)


@dataclass(frozen=True, slots=True)
class Caller:
    """What the transport says of a caller, as gRPC gives it.

    `peer` is gRPC's peer string; `authorization` the header of that name or ""; `identity` gRPC's
    authentication context (empty without TLS).
    """

    peer: str
    authorization: str = field(default="", repr=False)
    identity: Mapping[str, Iterable[bytes]] = field(default_factory=dict)


class Authenticator:
    """Decides over callers; the token is compared in constant time."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._local_user = _user_name()

    def authenticate(self, caller: Caller) -> str:
        """Return the caller's name, or raise DomainError UNAUTHENTICATED."""
        if caller.peer.startswith("unix:"):
            return self._local_user
        given = caller.authorization
        if given[: len(_SCHEME)].lower() != _SCHEME:
            raise _unauthenticated("send the token: metadata `authorization: Bearer TOKEN`")
        if not hmac.compare_digest(given[len(_SCHEME) :].strip().encode(), self._token):
            raise _unauthenticated("the token is not this daemon's; it stands in its token file")
        for name in caller.identity.get("x509_common_name", ()):
            return name.decode("utf-8", "replace")[:_MOST_NAME] or "token"
        return "token"


def _unauthenticated(message: str) -> DomainError:
    return DomainError(reasons.ERROR_REASON_UNAUTHENTICATED, message)


def _user_name() -> str:
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        # Containers run with ids that have no name.
        return str(uid)


def load_token(path: Path) -> str:
    """Return the token in `path`; a missing file is made with a new one, whole or not at all.

    Raises ConfigError when the file can be read by others or holds nothing, or can't be made.
    """
    if not os.path.lexists(path):
        try:
            return _new_token(path)
        except FileExistsError:
            # Another daemon was first, and has told its clients.
            pass
        except OSError as error:
            raise ConfigError(f"token_file: {path}: {error.strerror}") from error
    return _read_token(path)


def _new_token(path: Path) -> str:
    token = secrets.token_urlsafe(32)
    # Without a buffer: one that can't be written would keep the file from being removed.
    prefix = f".{path.name}."
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=prefix, buffering=0) as file:
        file.write(f"{token}\n".encode())
        os.fsync(file.fileno())
        # Unlike a rename it never takes the place of a file that is there.
        os.link(file.name, path)
    return token


def _read_token(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"token_file: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"token_file: {path}: a token is printable ASCII") from error
    if mode & 0o077:
        raise ConfigError(
            f"token_file: {path} can be read by others (mode {mode & 0o777:04o}): "
            "set mode 0600, and replace the token if others may have seen it"
        )
    if not token.isprintable() or not token:
        raise ConfigError(f"token_file: {path} holds no token: remove it and a new one is made")
    return token


def check_exposure(addresses: Iterable[ListenAddress], tls: bool) -> None:
    """Raise ConfigError when one of `addresses` would show the token, or sessions, to a network."""
    for address in addresses:
        if isinstance(address, TcpAddress) and not tls and not _is_loopback(address.host):
            raise ConfigError(
                f"listen: {address} is not loopback, and without TLS the token and every session "
                "would cross the network in the clear: set tls.cert and tls.key, or listen on 127.0.0.1"
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
