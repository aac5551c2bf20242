"""The daemon's directories: private, and owned by one daemon at a time.

The lock on the data directory is the only thing that keeps two daemons apart: on a unix path a second
server simply takes the socket over. So it is taken before anything is bound, opened or removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from sessiond_server.config import ConfigError, ListenAddress, TcpAddress, UnixAddress

__all__ = [
    "InUse",
    "address_file",
    "clear_socket",
    "lock_holder",
    "locked",
    "prepare",
    "write_addresses",
]

_LOCK = "sessiond.lock"
# A daemon that ends, or a doctor that looks, holds the lock for a moment.
_LOCK_TRIES, _LOCK_PAUSE = 20, 0.1
# sockaddr_un.sun_path: 108 bytes on Linux, 104 on the BSDs and macOS, the closing NUL included.
_MAX_SOCKET_PATH = 107


class InUse(Exception):
    """Another daemon holds the directory or serves on the socket."""


def prepare(directory: Path) -> None:
    """Make `directory` with mode 0700. Raises ConfigError when others may look into an existing one."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror}") from error
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{directory} belongs to another user (uid {status.st_uid})")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(
            f"{directory} is open to other users (mode {mode:04o}): chmod 700 it, or choose another"
        )


@contextlib.asynccontextmanager
async def locked(directory: Path) -> AsyncIterator[None]:
    """Hold `directory` while in the block; raises InUse, naming the holder, after 2 s."""
    # Not inherited by children (PEP 446): an agent that lives on does not hold it.
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for attempt in range(_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == _LOCK_TRIES - 1:
                    raise InUse(_in_use(directory, descriptor)) from None
                await asyncio.sleep(_LOCK_PAUSE)
        os.ftruncate(descriptor, 0)
        with contextlib.suppress(OSError):
            # Who it is, for people; the lock itself needs no room on a full disk.
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def lock_holder(directory: Path) -> str | None:
    """Return the pid, as text, of the daemon that holds `directory`; None when it is free.

    Raises OSError when the lock can't be opened.
    """
    try:
        # As the daemon would open it: what it may not, is told.
        descriptor = os.open(directory / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
    else:
        return None
    finally:
        os.close(descriptor)


def _in_use(directory: Path, descriptor: int) -> str:
    pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
    return (
        f"another sessiond (pid {pid}) uses {directory}: stop it, or give this one its own "
        "--data-dir and --runtime-dir"
    )


def clear_socket(path: Path) -> None:
    """Make room for a socket at `path`: its directory is private, and nobody serves there.

    Raises ConfigError for a path that can't be a socket's, InUse when somebody answers.
    """
    length = len(os.fsencode(path))
    if length > _MAX_SOCKET_PATH:
        raise ConfigError(
            f"listen: {path} has {length} bytes and a socket's path at most {_MAX_SOCKET_PATH}: "
            "choose a shorter --runtime-dir"
        )
    prepare(path.parent)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"listen: {path} exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        with contextlib.suppress(OSError):
            probe.connect(os.fspath(path))
            raise InUse(f"listen: another program serves on {path}")
    path.unlink()


def address_file(runtime_dir: Path) -> Path:
    """Return the file that tells clients of this user where the daemon serves."""
    return runtime_dir / "address.json"


def write_addresses(
    runtime_dir: Path, addresses: Iterable[ListenAddress], token_file: Path, tls_ca: Path | None
) -> None:
    """Write `address.json` atomically: the first unix and the first TCP address, and what TCP needs."""
    served: dict[str, str] = {}
    for address in addresses:
        if isinstance(address, UnixAddress):
            served.setdefault("unix", str(address))
        else:
            served.setdefault("tcp", str(_reachable(address)))
    served["token_file"] = str(token_file)
    if tls_ca is not None:
        served["tls_ca"] = str(tls_ca)
    target = address_file(runtime_dir)
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps(served) + "\n", encoding="utf-8")
    temporary.replace(target)


def _reachable(address: TcpAddress) -> TcpAddress:
    """Return an address that a client on this machine can dial for one that means "all"."""
    try:
        literal = ipaddress.ip_address(address.host)
    except ValueError:
        return address
    if not literal.is_unspecified:
        return address
    return TcpAddress("::1" if literal.version == 6 else "127.0.0.1", address.port)
