"""`sessiond doctor`: can this machine run sessions, and is anything left lying about?"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from sessiond_server import directories, shim, store
from sessiond_server.config import Config
from sessiond_server.drivers import Drivers

__all__ = ["Finding", "Verdict", "examine"]

Verdict: TypeAlias = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; `text` says what to do about it.

    A "note" is worth knowing, as a program that nobody asked for and that is not there; "wrong" makes
    the doctor's exit code 1.
    """

    verdict: Verdict
    subject: str
    text: str


async def examine(config: Config) -> list[Finding]:
    """Look at drivers, directories, locks and leftovers; changes nothing."""
    drivers = Drivers.load(config.drivers)
    findings = list(await asyncio.gather(*(_driver(config, drivers, name) for name in drivers.names())))
    if all(finding.verdict != "ok" for finding in findings):
        findings.append(Finding("wrong", "drivers", "none is available: no session can be created"))
    findings.extend(_directory("data_dir", config.data_dir))
    findings.extend(_directory("runtime_dir", config.runtime_dir))
    findings.extend(_store(config.data_dir / "sessiond.db"))
    try:
        holder = directories.lock_holder(config.data_dir)
    except OSError as error:
        findings.append(Finding("wrong", "daemon", f"{error.filename}: {error.strerror}"))
    else:
        findings.extend(_daemon(config, holder))
        findings.extend(_agents(config, holder))
    findings.extend(_leftovers())
    return findings


async def _driver(config: Config, drivers: Drivers, name: str) -> Finding:
    probed = await drivers.probe(name)
    if not probed.available:
        expected = name in config.drivers or not drivers.loaded(name)
        return Finding("wrong" if expected else "note", f"driver {name}", probed.reason)
    able = [field.name for field, value in drivers.capabilities(name).ListFields() if value]
    return Finding(
        "ok",
        f"driver {name}",
        f"{probed.version} at {probed.executable}; can {', '.join(able) or 'nothing beyond messages'}",
    )


def _directory(key: str, path: Path) -> Iterator[Finding]:
    try:
        status = path.stat()
    except FileNotFoundError:
        yield Finding("ok", key, f"{path} will be made when the daemon starts")
        return
    except OSError as error:
        yield Finding("wrong", key, f"{path}: {error.strerror}")
        return
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        yield Finding("wrong", key, f"{path} is no directory")
    elif status.st_uid != os.geteuid():
        yield Finding("wrong", key, f"{path} belongs to another user (uid {status.st_uid})")
    elif mode & 0o077:
        yield Finding("wrong", key, f"{path} is open to other users (mode {mode:04o}): chmod 700 it")
    elif not os.access(path, os.W_OK | os.X_OK):
        yield Finding("wrong", key, f"{path} can't be written to")
    else:
        free = os.statvfs(path)
        yield Finding("ok", key, f"{path}, {free.f_bavail * free.f_frsize // 2**20} MiB free")


def _store(path: Path) -> Iterator[Finding]:
    try:
        if path.exists():
            store.check_file(path)
    except (OSError, sqlite3.Error, store.StoreTooNew) as error:
        yield Finding("wrong", "store", f"{path}: {error}")


def _daemon(config: Config, holder: str | None) -> Iterator[Finding]:
    serving = directories.address_file(config.runtime_dir).exists()
    if holder is not None and holder.isdigit() and shim.is_frozen(int(holder)):
        text = f"pid {holder} is frozen and answers nobody until it gets SIGCONT: kill -CONT {holder}"
        yield Finding("wrong", "daemon", text)
    elif holder is not None and serving:
        yield Finding("ok", "daemon", f"running, pid {holder}")
    elif holder is not None:
        yield Finding("ok", "daemon", f"starting or stopping, pid {holder}")
    elif serving:
        # The next daemon replaces it; clients that trust it meanwhile get "connection refused".
        yield Finding("ok", "daemon", "not running; it was killed, the next start takes over")
    else:
        yield Finding("ok", "daemon", "not running")


def _agents(config: Config, holder: str | None) -> Iterator[Finding]:
    """Agents live on without a daemon, and that is no fault; but who looks wants to know of them."""
    try:
        found = sorted((config.data_dir / "sessions").iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding("wrong", "agents", f"{error.filename}: {error.strerror}")
        return
    alive = [directory for directory in found if shim.is_alive(directory)]
    if alive and not (config.data_dir / "sessiond.db").exists():
        text = f"{len(alive)} live on, and the store that knows them is gone; the next daemon ends them"
        yield Finding("note", "agents", text)
    elif alive and holder is None:
        text = f"{len(alive)} live on without a daemon; the next one takes them over: sessiond serve"
        yield Finding("note", "agents", text)
    elif alive:
        yield Finding("ok", "agents", f"{len(alive)} running")
    for pid in (pid for directory in alive for pid in shim.frozen_shims(directory)):
        text = f"the shim of one, pid {pid}, is frozen, and nobody reaches its agent: kill -CONT {pid}"
        yield Finding("wrong", "agents", text)


def _leftovers() -> Iterator[Finding]:
    found = shim.find_leftovers()
    for leftover in found:
        # Perhaps on purpose: an agent may have started a development server.
        command = " ".join(leftover.command.split())[:80]
        text = (
            f"pid {leftover.pid} of session {leftover.session_id}, of this daemon or another of yours, "
            f"outlived its agent: {command}; it goes when the session is stopped or deleted"
        )
        yield Finding("note", "leftover", text)
    if not found:
        yield Finding("ok", "leftovers", "no process outlived its session")
