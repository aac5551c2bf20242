"""A real `sessiond serve` as a child process, with directories of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from sessiond_server.shim import kill_runs

__all__ = ["Daemon", "wait_until_gone"]

_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 30.0
_PAUSE = 0.01
_MAIN = "from sessiond_server.main import main; main()"


class Daemon:
    """One data directory and, while started, the daemon on it.

    `folder` holds everything: `data/`, `run/`, `work/` (a workspace that is allowed), `config.toml` and
    `daemon.log`. Without one, a temporary folder is made and removed at the end. `settings` are keys of
    the configuration (`limits.max_sessions`) with their values as TOML. As a context manager it starts,
    and at the end kills the daemon and every process that its sessions left.
    """

    prelude = ""
    """Python that is run first in the daemon's process, and in no process that it starts."""

    def __init__(
        self,
        folder: Path | None = None,
        settings: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        # Short, whatever the test is called: a socket's path has room for about 100 bytes.
        self._own = Path(tempfile.mkdtemp(prefix="sessiond-")) if folder is None else None
        self.folder = folder or self._own or Path()
        self.data_dir = self.folder / "data"
        self.runtime_dir = self.folder / "run"
        self.workspace = self.folder / "work"
        self.log_file = self.folder / "daemon.log"
        self.workspace.mkdir(exist_ok=True)
        self.settings = dict(settings or {})
        self._env = dict(env or {})
        self._process: asyncio.subprocess.Process | None = None

    # --- where it is ---

    @property
    def pid(self) -> int:
        """The pid of the running daemon."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.returncode is None

    @property
    def addresses(self) -> dict[str, str]:
        """What `address.json` says: unix, tcp, token_file."""
        loaded: dict[str, str] = json.loads((self.runtime_dir / "address.json").read_text())
        return loaded

    @property
    def unix(self) -> str:
        """The gRPC target of the unix socket; it stays the same over restarts."""
        return f"unix:{self.runtime_dir / 'sessiond.sock'}"

    @property
    def tcp(self) -> str:
        """host:port; another one after each start."""
        return self.addresses["tcp"]

    @property
    def token(self) -> str:
        """What TCP clients send."""
        return (self.runtime_dir / "token").read_text().strip()

    @property
    def env(self) -> dict[str, str]:
        """An environment in which clients find this daemon, and nothing of another one."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SESSIOND_", "XDG_"))}
        return {**clean, "SESSIOND_RUNTIME_DIR": str(self.runtime_dir)}

    def log(self) -> str:
        """All that the daemon printed and logged so far, over all its starts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @contextlib.asynccontextmanager
    async def channel(self, target: str = "") -> AsyncIterator[grpc.aio.Channel]:
        """Yield a channel to `target` (default: the unix socket) that reconnects quickly."""
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 500)]
        async with grpc.aio.insecure_channel(target or self.unix, options=options) as channel:
            yield channel

    # --- its life ---

    def command(self) -> list[str]:
        """The command line that starts it."""
        settings = [f"--set={key}={value}" for key, value in self.settings.items()]
        return [
            *(sys.executable, "-c", f"{self.prelude}\n{_MAIN}", "serve"),
            f"--data-dir={self.data_dir}",
            f"--runtime-dir={self.runtime_dir}",
            f"--workspace-root={self.folder}",
            f"--listen={self.unix}",
            "--listen=127.0.0.1:0",
            *settings,
        ]

    async def start(self) -> None:
        """Start it and wait until it serves; raises RuntimeError with its log when it does not."""
        assert not self.running, "started twice"
        # Left by one that was killed; the file of this start is the sign that it serves.
        (self.runtime_dir / "address.json").unlink(missing_ok=True)
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.env, **self._env},
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                while not (self.runtime_dir / "address.json").exists():
                    if not self.running:
                        raise RuntimeError(f"the daemon ended at its start:\n{self.log()[-4000:]}")
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            await self.kill()
            raise RuntimeError(f"the daemon did not start in time:\n{self.log()[-4000:]}") from None

    async def stop(self) -> int:
        """Send SIGTERM, wait for the end, return the exit code; sessions live on."""
        return await self._end(signal.SIGTERM)

    async def kill(self) -> int:
        """Send SIGKILL and wait for the end; sessions live on."""
        return await self._end(signal.SIGKILL)

    async def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it with a signal and start it again."""
        await self._end(how)
        await self.start()

    async def _end(self, how: signal.Signals) -> int:
        assert self._process is not None, "not started"
        if self._process.returncode is None:
            self._process.send_signal(how)
        async with asyncio.timeout(_STOP_TIMEOUT):
            return await self._process.wait()

    async def close(self) -> None:
        """Kill the daemon and every process of its sessions; remove a temporary folder."""
        if self.running:
            await self.kill()
        await wait_until_gone(self.data_dir)
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def wait_until_gone(data_dir: Path, timeout: float = 60.0) -> None:
    """Kill the shims below `data_dir` with all that came from them, and wait until they are gone."""
    async with asyncio.timeout(timeout):
        for directory in (data_dir / "sessions").glob("*"):
            await kill_runs(directory)
        while pids := _shims(data_dir):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_PAUSE)


def _shims(data_dir: Path) -> list[int]:
    """Pids whose command line names a directory below `data_dir`, a path that no one else uses."""
    mark = os.fsencode(data_dir) + b"/"
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # A zombie has no command line any more.
            if mark in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found
