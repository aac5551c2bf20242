"""A session's agent as the actor sees it: how it starts and ends, what it says, what it is sent.

Everything here happens within a step (methods that take the core) or right after its commit.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond_drivers.base import ExitStatus, Launch
from sessiond_server.session import process as processes
from sessiond_server.session.context import Context
from sessiond_server.session.core import Core
from sessiond_server.session.lines import LineBuffer
from sessiond_server.session.process import Command, Connected, Delivery, Process
from sessiond_server.session.product import Product
from sessiond_server.shim import (
    Acked,
    Exited,
    InputClosed,
    Link,
    Output,
    OutputClosed,
    Paused,
    stderr_tail,
)
from sessiond_server.store import LINE, SessionRow, Step

# One step handles about this much output: more would keep other sessions waiting.
_STEP_BYTES = 128 * 1024
_RETRY = 1.0
# Seconds for a shim that does not answer to do so, when its agent is to be ended: it may be busy.
_LAST_RESORT = 10.0
_DEAF = (
    "the agent has closed its input and reads nothing any more; messages it has not read wait for "
    "Control restart"
)

After = Callable[[], None]


class Agent:
    """The process of one session, through all its runs.

    `deliver` hands the actor what the process says and returns when that is committed; `post` runs a
    function on the core in a step of its own.
    """

    def __init__(
        self,
        row: SessionRow,
        context: Context,
        deliver: Callable[[int, Delivery], Coroutine[Any, Any, None]],
        post: Callable[[Callable[[Core], None]], object],
    ) -> None:
        self.row = row
        self.ended = asyncio.Event()
        self.launched: asyncio.Future[str] | None = None
        self._context = context
        self._deliver = deliver
        self._post = post
        self._process: Process | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._buffer = self._new_buffer()
        self._timers: list[asyncio.TimerHandle] = []
        self._acked = self._acked_stored = 0
        self._adopted = self._killing = False
        self._starting: Launch | None = None

    @property
    def directory(self) -> Path:
        """Where the shim keeps its files; named by the key, for ids are the clients' choice."""
        return self._context.sessions_dir / str(self.row.key)

    def _new_buffer(self) -> LineBuffer:
        # What is not committed may fill the shim's log: a line that would is divided before.
        return LineBuffer(self.row.raw_offset, self._context.log_cap // 2)

    @property
    def marker(self) -> str:
        """What the session's processes carry in their environment (see `shim.kill_leftovers`)."""
        return f"{self.row.session_id}/{self.row.transcript_id[:12]}"

    # --- starting ---

    def request_start(self, core: Core, resume: bool) -> None:
        """Start a process with the step that is running: what is asked from now on is asked of it."""
        self._starting = core.launch(resume)

    def forget_start(self) -> None:
        """The step that asked for a start has not happened."""
        self._starting = None

    def pending_start(self, core: Core, step: Step) -> list[After]:
        """Put the start of a process into this step: the intent is durable before the act."""
        if core.state.restarting and not core.alive:
            self.request_start(core, resume=True)
        if self._starting is None:
            return []
        launch, self._starting = self._starting, None
        step.alive, step.run, step.raw_offset = True, self.row.run + 1, 0
        # Inputs of the process that ended are void.
        step.clear_outbox = True
        env = self._context.environment() | dict(launch.env) | core.identity.spec.environment
        command = Command(launch.argv, env, core.identity.spec.workspace)
        return [lambda: self.supervise(command)]

    def supervise(self, command: Command | None) -> None:
        """Start `command`, or find the process of this run again when None."""
        self.ended.clear()
        if command is not None:
            self._killing = False
        self._acked = self._acked_stored = 0
        self._adopted = command is not None
        self._buffer = self._new_buffer()
        self._process = self._new_process()
        self._process.start(command, self.row.session_id, self._finishing)

    def _new_process(self) -> Process:
        return Process(
            self.directory,
            self.row.run,
            position=lambda: self._buffer.received,
            deliver=functools.partial(self._deliver, self.row.run),
            log_cap=self._context.log_cap,
            marker=self.marker,
        )

    @property
    def unfinished(self) -> bool:
        """Whether the last run has ended and a daemon did not live to clear it away."""
        return not self.row.alive and self._finishing is None and self._new_process().unfinished

    def finish_late(self, stopped: bool) -> None:
        """Clear the last run away, and what it left running if it was `stopped`."""
        self._finishing = asyncio.create_task(self._new_process().finish_late(kill=stopped))

    # --- what it says ---

    def take(self, core: Core, step: Step, delivery: Delivery) -> tuple[Delivery, list[After]]:
        """Use up (a part of) what was delivered; return the rest of it, and what follows the commit."""
        if not isinstance(delivery, list):
            return [], self._take_notice(core, step, delivery)
        after: list[After] = []
        budget = _STEP_BYTES
        rest = list(delivery)
        while rest and budget > 0:
            item = rest.pop(0)
            if isinstance(item, Output):
                data = item.data[:budget]
                core.lines(self._buffer.feed(item.offset, data))
                budget -= len(data)
                if len(data) < len(item.data):
                    rest.insert(0, Output(item.offset + len(data), item.data[len(data) :]))
            elif isinstance(item, Acked):
                self._acked = max(self._acked, item.input_id)
            elif isinstance(item, Exited):
                tail = stderr_tail(self.directory, self.row.run)
                return [], after + self._exited(core, step, item, tail)
            elif isinstance(item, Paused) and item.disk:
                core.raise_error(reasons.ERROR_REASON_STORAGE_FULL, f"the agent waits: {item.reason}")
            elif isinstance(item, OutputClosed):
                core.unreachable()
            elif isinstance(item, InputClosed) and not core.state.stopping:
                core.unreachable(_DEAF)
        step.raw_offset = self._buffer.offset
        return rest, after

    def _take_notice(self, core: Core, step: Step, notice: processes.Notice) -> list[After]:
        if isinstance(notice, Connected):
            return self._connected(core, notice.link)
        if isinstance(notice, processes.Unreachable):
            self._link = None
            core.unreachable(notice.text)
            if notice.text and core.state.stopping:
                run = self.row.run
                return [lambda: self._call_later(_LAST_RESORT, lambda: self._force_end(run))]
            return []
        if isinstance(notice, processes.LaunchError):
            text = notice.text
            if self.launched is None:
                core.raise_error(reasons.ERROR_REASON_LAUNCH_FAILED, text)
            return [*self._exited(core, step, None, ""), lambda: self._report_launch(text)]
        if not notice.started and core.state.announced_run != self.row.run and not core.state.stopping:
            # The start was promised and not carried out: a new run does that.
            self.request_start(core, bool(core.state.native_session_id))
            return []
        if notice.exited is None and not core.state.stopping:
            core.raise_error(
                reasons.ERROR_REASON_AGENT_LOST,
                "the agent's process was lost with its shim; Control restart resumes the conversation",
            )
        lost = "its process was lost while it started"
        exited = self._exited(core, step, notice.exited, notice.stderr_tail)
        return [*exited, lambda: self._report_launch(lost)]

    def _connected(self, core: Core, link: Link) -> list[After]:
        if core.state.announced_run != self.row.run:
            core.started(self.row.run, link.hello.agent_pid)
        else:
            core.reachable()
            if not self._adopted:
                core.adopted(link.hello.agent_pid)
        return [lambda: self._attached(core, link)]

    def _attached(self, core: Core, link: Link) -> None:
        self._adopted = True
        for input_id, kind, data in self._context.store.outbox(self.row.key):
            _send_input(link, input_id, kind, data)
        self._link = link
        self._report_launch("")
        if self._killing:
            link.kill()
        elif core.state.stopping:
            plan = core.driver.stop()
            self._end(plan.signal, plan.grace)
        elif core.state.said == session_pb2.SESSION_STATE_UNKNOWN:
            run = self.row.run
            self._call_later(self._context.launch_timeout, lambda: self._look_whether_ready(run))

    def _look_whether_ready(self, run: int) -> None:
        self._post(lambda core: self._check_ready(core, run))

    def _check_ready(self, core: Core, run: int) -> None:
        """Nothing waits for ever: a process that never became ready is ended."""
        waiting = core.state.said == session_pb2.SESSION_STATE_UNKNOWN
        if core.alive and self.row.run == run and waiting and not core.state.stopping:
            seconds = self._context.launch_timeout
            core.raise_error(
                reasons.ERROR_REASON_LAUNCH_FAILED, f"the agent was not ready within {seconds:g} s"
            )
            core.stop()

    def _report_launch(self, text: str) -> None:
        if self.launched is not None and not self.launched.done():
            self.launched.set_result(text)

    def _exited(self, core: Core, step: Step, exited: Exited | None, tail: str) -> list[After]:
        stopped = core.state.stopping
        core.lines(self._buffer.finish())
        core.exited(
            ExitStatus(
                exit_code=exited.exit_code if exited else None,
                signal=exited.signal if exited else None,
                stderr_tail=tail,
            )
        )
        step.alive = False
        step.clear_outbox = True
        step.raw_offset = self._buffer.offset
        return [lambda: self._forget(stopped)]

    def _forget(self, stopped: bool) -> None:
        self._cancel_timers()
        self._link = None
        process, self._process = self._process, None
        if process is not None:
            self._finishing = asyncio.create_task(process.finish(kill=stopped))
        self.ended.set()

    # --- what it is sent ---

    def fill(self, step: Step) -> None:
        """Drop from the outbox what the shim has acknowledged."""
        if self._acked > self._acked_stored and not step.clear_outbox:
            step.acked = self._acked

    def committed(self, step: Step, product: Product) -> None:
        """Send what the step wrote, now that it is durable."""
        self._acked_stored = max(self._acked_stored, step.acked)
        if self._link is not None and step.alive is None:
            for input_id, kind, data in step.outbox:
                _send_input(self._link, input_id, kind, data)
            if step.raw_offset is not None:
                self._link.committed(step.raw_offset)
        if product.stop_plan is not None:
            self._end(product.stop_plan.signal, product.stop_plan.grace)

    # --- ending ---

    def _end(self, signum: int, grace: float) -> None:
        """End the process: its signal now, the whole group after the grace."""
        link, run = self._link, self.row.run
        if link is None:
            return  # done when the shim answers again, or is found not to: `stopping` is in the state
        if signum:
            link.signal(signum)
        self._call_later(grace, lambda: self._kill_run(run))

    def _kill_run(self, run: int) -> None:
        if self._link is not None and self.row.run == run:
            self._link.kill()

    def _force_end(self, run: int) -> None:
        """End the process without its shim, which did not answer all this time."""
        if self._process is not None and self._link is None and self.row.run == run:
            self._process.kill()

    def kill(self) -> None:
        """Kill the process with all its descendants, as soon as its shim answers."""
        self._killing = True
        if self._link is not None:
            self._link.kill()

    async def detach(self) -> None:
        """Let go of the process; it lives on."""
        self._cancel_timers()
        if self._process is not None:
            await self._process.detach()
        if self._finishing is not None:
            # Bounded by itself; a shim that is not told would linger for a minute.
            await asyncio.wait((self._finishing,))

    async def read_again(self) -> None:
        """What was read was not committed: read it again from there, a little later."""
        process = self._process
        if process is None:
            return
        await process.detach()
        self._link = None
        self._buffer = self._new_buffer()
        self._call_later(_RETRY, lambda: self._retry(process))

    def _retry(self, process: Process) -> None:
        # Asked for more than once, it is done once.
        if process is self._process and not process.supervised:
            process.start(None, self.row.session_id)

    def _call_later(self, delay: float, action: After) -> None:
        now = asyncio.get_running_loop().time()
        self._timers = [timer for timer in self._timers if timer.when() > now]
        self._timers.append(asyncio.get_running_loop().call_later(delay, action))

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


def _send_input(link: Link, input_id: int, kind: int, data: bytes) -> None:
    if kind == LINE:
        link.send_input(input_id, data)
    else:
        link.close_stdin(input_id)
