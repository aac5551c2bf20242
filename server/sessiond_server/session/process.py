"""The server's hold on one session's process: start it, find it again, carry what it says.

A supervising task connects to the shim and hands what arrives to the actor, one delivery at a time: the
next is read only when the last was taken, so a busy actor lets the shim's log grow, not its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from sessiond_server import shim
from sessiond_server.shim import Exited, Link, Output, Received

_logger = structlog.get_logger()
_READ_BYTES = 256 * 1024
_MAX_BACKOFF = 10.0
_FINISH_TIMEOUT = 5.0
# A shim that was asked and says nothing for this long is frozen, or its disk is.
_PING_INTERVAL, _SILENCE = 5.0, 15.0


@dataclass(frozen=True, slots=True)
class Command:
    """What to start: argument vector, whole environment, working directory."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str


@dataclass(frozen=True, slots=True)
class LaunchError:
    """The process could not be started; `text` is for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Connected:
    """The shim answers; the inputs it has not got are to be sent again."""

    link: Link


@dataclass(frozen=True, slots=True)
class Unreachable:
    """There is a process, and its shim does not answer; `text` says why, if it is more than a moment."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """There is no process any more; `exited` is None when nobody saw how it ended.

    Without `started` there never was one: a daemon died between the intent and the act.
    """

    exited: Exited | None
    stderr_tail: str
    started: bool


Notice = LaunchError | Connected | Unreachable | Gone
Delivery = list[Received] | Notice


class Process:
    """One run of a session's agent. `deliver` returns when the actor has taken what it was given.

    `marker` stands in the environment of the agent and its descendants, so that those which outlive
    their shim are found; unlike a session's id it is no one else's, in no other daemon.
    """

    def __init__(
        self,
        directory: Path,
        run: int,
        *,
        position: Callable[[], int],
        deliver: Callable[[Delivery], Coroutine[Any, Any, None]],
        log_cap: int,
        marker: str,
    ) -> None:
        self.directory = directory
        self.run = run
        self.link: Link | None = None
        self._position = position
        self._deliver = deliver
        self._log_cap = log_cap
        self._marker = marker
        self._task: asyncio.Task[None] | None = None
        self._killing: asyncio.Task[None] | None = None

    def start(
        self, command: Command | None, session_id: str, after: asyncio.Task[None] | None = None
    ) -> None:
        """Begin to supervise: start `command`, or find the process of this run again when None.

        Nothing is started before `after`, the end of the run before this one.
        """
        name = f"process-{session_id}-{self.run}"
        self._task = asyncio.create_task(self._keep_on(command, session_id, after), name=name)

    @property
    def supervised(self) -> bool:
        """Whether it was started, or found, and not let go of since."""
        return self._task is not None

    def kill(self) -> None:
        """Kill the shim, which does not answer, and all that came from it; `Gone` is what follows."""
        if self._killing is None or self._killing.done():
            self._killing = asyncio.create_task(shim.kill_runs(self.directory))

    async def detach(self) -> None:
        """Let go of the process; it lives on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
        await self._drop_link()

    async def finish(self, *, kill: bool) -> None:
        """The run has ended and that is recorded: let its shim go, and forget its files.

        With `kill`, what the agent left running is ended first.

        Ends when the shim is gone (it holds the session's lock till then), within a bound.
        """
        if self.link is not None:
            if kill:
                self.link.kill()
            self.link.collected()
            await self._drop_link()
        gone = await shim.wait_gone(self.directory, _FINISH_TIMEOUT)
        if kill:
            # Also what former runs left, which this shim knows nothing of.
            await shim.kill_leftovers(self._marker)
        if gone:
            # Last, as the files tell the next daemon what this one did not live to do. In this very
            # moment a start that a dead daemon had begun may get there; it is dealt with.
            with contextlib.suppress(ValueError):
                shim.discard(self.directory, self.run)

    @property
    def unfinished(self) -> bool:
        """Whether something of this run is still there, or a shim that nobody ever heard of."""
        return shim.is_kept(self.directory, self.run) or shim.is_alive(self.directory)

    async def finish_late(self, *, kill: bool) -> None:
        """Do what `finish` does, for a daemon that did not live to do it.

        An agent that still runs there was started by one that did not live to see it: it is ended.
        """
        # Neither when it is gone by now, nor when it is frozen.
        with contextlib.suppress(shim.ShimGone, shim.ShimUnreachable):
            self.link = await Link.connect(self.directory, self.run)
        if self.link is None or not self.link.hello.exited:
            await self._drop_link()
            if shim.is_alive(self.directory):
                await shim.kill_runs(self.directory)
        await self.finish(kill=kill)

    async def _drop_link(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            await link.close()

    async def _keep_on(
        self, command: Command | None, session_id: str, after: asyncio.Task[None] | None
    ) -> None:
        """Supervise; what nobody thought of is told, and tried again: no session is left without."""
        while True:
            try:
                return await self._supervise(command, session_id, after)
            except Exception:
                _logger.exception("supervision_failed", session_id=session_id)
            command, after = None, None
            await self._drop_link()
            await self._deliver(Unreachable())
            await asyncio.sleep(_MAX_BACKOFF)

    async def _supervise(
        self, command: Command | None, session_id: str, after: asyncio.Task[None] | None
    ) -> None:
        if after is not None:
            await asyncio.wait((after,))
        if command is not None and not await self._launch(command):
            return
        backoff = 0.1
        while True:
            try:
                link = await self._attach()
            except shim.ShimGone:
                await self._collect()
                return
            except (shim.ShimUnreachable, shim.LinkLost) as error:
                _logger.warning("shim_unreachable", session_id=session_id, error=str(error))
                lasting = isinstance(error, shim.ShimUnreachable)
                await self._deliver(Unreachable(str(error) if lasting else ""))
            else:
                self.link = link
                await self._deliver(Connected(link))
                backoff = 0.1
                if await self._carry(link):
                    return
                await self._drop_link()
            await asyncio.sleep(backoff * random.uniform(0.5, 1.5))
            backoff = min(backoff * 2, _MAX_BACKOFF)

    async def _attach(self) -> Link:
        link = await Link.connect(self.directory, self.run)
        try:
            await link.attach(self._position())
        except ValueError as error:
            # The store was restored from a backup, or the log lost its end: nothing fits any more.
            _logger.warning("output_lost", directory=str(self.directory), reason=str(error))
            await link.close()
            await shim.kill_runs(self.directory)
            raise shim.ShimGone("its output does not fit what is stored") from None
        return link

    async def _clear_way(self) -> None:
        """End the shim of the run before, if a daemon that died did not get to it."""
        if self.run == 1 or not shim.is_alive(self.directory):
            return
        former = Process(
            self.directory,
            self.run - 1,
            position=self._position,
            deliver=self._deliver,
            log_cap=self._log_cap,
            marker=self._marker,
        )
        await former.finish_late(kill=True)

    async def _launch(self, command: Command) -> bool:
        try:
            try:
                await self._start(command)
            except shim.AlreadyRunning:
                # What a daemon that died had just started was not there yet when this one looked.
                await self._start(command)
        except shim.LaunchFailed as error:
            # It may have come up all the same: too late, or its launcher did not get to say so.
            if shim.is_alive(self.directory):
                await shim.kill_runs(self.directory)
            await self._deliver(LaunchError(str(error)))
            return False
        return True

    async def _start(self, command: Command) -> None:
        await self._clear_way()
        await shim.launch(
            self.directory,
            self.run,
            session_id=self._marker,
            argv=command.argv,
            env=command.env,
            cwd=command.cwd,
            log_cap=self._log_cap,
        )

    async def _carry(self, link: Link) -> bool:
        """Hand on what the shim says; True when the process has ended and everything was said."""
        try:
            while True:
                received = await self._receive(link)
                await self._deliver(received)
                # Not always the last: an answer to what was just sent may come behind it.
                if any(isinstance(item, Exited) for item in received):
                    return True
        except shim.LinkLost:
            return False
        except shim.ShimUnreachable as error:
            await self._deliver(Unreachable(str(error)))
            return False

    async def _receive(self, link: Link) -> list[Received]:
        """Wait for what the shim says, and make sure that it could say something."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PING_INTERVAL):
                    return await link.receive()
            if time.monotonic() - link.heard > _SILENCE:
                raise shim.ShimUnreachable("the shim is silent")
            link.ping()

    async def _collect(self) -> None:
        """Read what a shim that is gone left behind."""
        while True:
            offset = self._position()
            try:
                data = shim.read_rest(self.directory, self.run, offset, _READ_BYTES)
            except ValueError as error:
                # A power cut took the end of the log, or the store was restored from a backup.
                _logger.warning("output_lost", directory=str(self.directory), reason=str(error))
                break
            if not data:
                break
            await self._deliver([Output(offset, data)])
        exited = shim.read_exit(self.directory, self.run)
        if exited is None:
            # The agent died with its shim, but not what it had started.
            await shim.kill_leftovers(self._marker)
        started = shim.was_started(self.directory, self.run)
        await self._deliver(Gone(exited, shim.stderr_tail(self.directory, self.run), started))
