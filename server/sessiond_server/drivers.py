"""The drivers of this installation, found through the entry points `sessiond.drivers`.

A package that is installed beside the daemon adds a driver by naming a `DriverType`. One that can't be
loaded is shown as unavailable and hurts nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeAlias

import msgspec
import structlog

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond_drivers.base import Driver, DriverConfig, DriverType, Program
from sessiond_server import children
from sessiond_server.config import ConfigError
from sessiond_server.errors import DomainError

__all__ = ["GROUP", "Availability", "Drivers"]

GROUP = "sessiond.drivers"
_PROBE_TIMEOUT = 5.0
_PROBE_AGE = 30.0
_PROBE_OUTPUT = 64 * 1024

_logger = structlog.get_logger(__name__)

# A driver of any configuration: the registry is the one place that doesn't know which.
_AnyType: TypeAlias = DriverType[Any]


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a driver's program can be started here.

    `executable` is its path and `version` what it printed; when not available, `reason` says what to
    install or set.
    """

    available: bool
    executable: str = ""
    version: str = ""
    reason: str = ""


@dataclass(slots=True)
class _Entry:
    name: str
    kind: _AnyType | None = None
    config: DriverConfig = field(default_factory=DriverConfig)
    broken: str = ""
    probed: Availability | None = None
    probed_at: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Drivers:
    """All drivers, by name, each with its configuration."""

    def __init__(self, entries: Iterable[_Entry], clock: Callable[[], float] = time.monotonic) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._clock = clock

    @classmethod
    def load(
        cls,
        tables: Mapping[str, Mapping[str, Any]],
        found: Iterable[EntryPoint] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Drivers:
        """Load every driver that is installed, with its table of the configuration.

        `found` replaces the installed entry points. Raises ConfigError for a table that names no driver
        or holds what the driver does not accept.
        """
        entries: dict[str, _Entry] = {}
        for point in entry_points(group=GROUP) if found is None else found:
            if point.name in entries:
                _logger.warning("driver_name_twice", driver=point.name, value=point.value)
                continue
            entries[point.name] = _load(point)
        for name, table in tables.items():
            if name not in entries:
                known = ", ".join(sorted(entries)) or "none"
                raise ConfigError(f"drivers.{name}: there is no such driver (installed: {known})")
            _configure(entries[name], table)
        return cls(entries.values(), clock)

    def names(self) -> list[str]:
        """Return the names of all drivers, sorted; those that could not be loaded too."""
        return sorted(self._entries)

    def loaded(self, name: str) -> bool:
        """Whether the driver's package could be loaded."""
        return self._entry(name).kind is not None

    def create(self, name: str) -> Driver:
        """Make the translator of one session. Raises DomainError DRIVER_UNKNOWN or _UNAVAILABLE."""
        entry = self._entry(name)
        driver: Driver = self._kind(entry).create(entry.config)
        return driver

    def capabilities(self, name: str) -> session_pb2.DriverCapabilities:
        """Return what a new session of this driver can expect; nothing when it could not be loaded."""
        kind = self._entry(name).kind
        return kind.capabilities if kind else session_pb2.DriverCapabilities()

    def display_name(self, name: str) -> str:
        """Return the driver's name for people."""
        kind = self._entry(name).kind
        return kind.display_name if kind else name

    async def require(self, name: str) -> Availability:
        """Return the probe of a driver that can start an agent; raises DomainError when it can't."""
        self._kind(self._entry(name))
        probed = await self.probe(name)
        if not probed.available:
            raise DomainError(
                reasons.ERROR_REASON_DRIVER_UNAVAILABLE,
                f"driver {name} is not available: {probed.reason}",
                metadata={"driver": name},
            )
        return probed

    async def probe(self, name: str) -> Availability:
        """Look for the driver's program and ask its version; at most once in 30 s, at most for 5 s."""
        entry = self._entry(name)
        if entry.kind is None:
            return Availability(False, reason=entry.broken)
        async with entry.lock:
            age = self._clock() - entry.probed_at
            if entry.probed is None or age > _PROBE_AGE:
                program = entry.kind.program(entry.config)
                entry.probed = await _probe(program, entry.config.env)
                entry.probed_at = self._clock()
            return entry.probed

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise DomainError(
                reasons.ERROR_REASON_DRIVER_UNKNOWN,
                f"there is no driver {name!r} (installed: {', '.join(self.names())})",
                field="driver",
                metadata={"driver": name},
            )
        return entry

    def _kind(self, entry: _Entry) -> _AnyType:
        if entry.kind is None:
            raise DomainError(
                reasons.ERROR_REASON_DRIVER_UNAVAILABLE,
                f"driver {entry.name} is not available: {entry.broken}",
                metadata={"driver": entry.name},
            )
        return entry.kind


def _load(point: EntryPoint) -> _Entry:
    try:
        kind = point.load()
        if not isinstance(kind, DriverType):
            raise TypeError(f"{point.value} is no DriverType")
        if kind.name != point.name:
            raise ValueError(f"{point.value} calls itself {kind.name!r}")
        return _Entry(point.name, kind, kind.config_type())
    except Exception as error:
        _logger.exception("driver_not_loaded", driver=point.name, value=point.value)
        return _Entry(point.name, broken=f"its package could not be loaded: {error}")


def _configure(entry: _Entry, table: Mapping[str, Any]) -> None:
    if entry.kind is None:
        return
    try:
        entry.config = msgspec.convert(table, entry.kind.config_type)
    except msgspec.ValidationError as error:
        raise ConfigError(f"drivers.{entry.name}: {error}") from error


async def _probe(program: Program, env: Mapping[str, str]) -> Availability:
    executable = shutil.which(program.executable, path=env.get("PATH"))
    if executable is None:
        return Availability(False, reason=f"{program.executable} was not found: {program.install_hint}")
    try:
        output = await _run([executable, *program.version_args], env)
    except TimeoutError:
        reason = f"{executable} did not tell its version within {_PROBE_TIMEOUT:g} s"
        return Availability(False, executable, reason=reason)
    except OSError as error:
        reason = f"{executable} could not be started: {error.strerror}: {program.install_hint}"
        return Availability(False, executable, reason=reason)
    version = program.parse_version(output)
    if not version:
        reason = f"{executable} is not the program it should be: {program.install_hint}"
        return Availability(False, executable, reason=reason)
    return Availability(True, executable, version)


async def _run(argv: list[str], env: Mapping[str, str]) -> str:
    """Return what the program prints, its beginning; raises TimeoutError after 5 s and OSError.

    A child that it leaves in the background may keep the pipe: the program's own end is waited for.
    """
    children.watch()
    output = bytearray()
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    loop = asyncio.get_running_loop()
    loop.add_reader(reading, _take, reading, output)
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=DEVNULL,
                stdout=writing,
                stderr=STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
            )
        finally:
            os.close(writing)
        await _wait(process)
        _take(reading, output)
    finally:
        loop.remove_reader(reading)
        os.close(reading)
    return output.decode("utf-8", "replace")


def _take(pipe: int, output: bytearray) -> None:
    """Keep the first 64 KiB; the rest is read and let go, so that nothing blocks."""
    with contextlib.suppress(BlockingIOError):
        while block := os.read(pipe, _PROBE_OUTPUT):
            output += block[: _PROBE_OUTPUT - len(output)]
        asyncio.get_running_loop().remove_reader(pipe)


async def _wait(process: Process) -> None:
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            await process.wait()
    finally:
        if process.returncode is None:
            # The whole group: version commands are often scripts that start the real thing.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
