"""A session's actor: inputs in, one step, one transaction, and only then anybody sees it.

Calls and what the process says wait in an inbox. A step takes what is there (bounded), feeds the core,
commits the product, and afterwards wakes subscribers, hands the outbox to the shim and answers callers.
When the commit fails nothing has happened: the core is restored from what is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import structlog
from google.protobuf.message import Message

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_drivers.base import Driver, ExitStatus
from sessiond_server.errors import DomainError
from sessiond_server.session import process as processes
from sessiond_server.session import state as states
from sessiond_server.session import view
from sessiond_server.session.context import Context, request_id_reused
from sessiond_server.session.core import Core, Identity, Product
from sessiond_server.session.lines import LineBuffer
from sessiond_server.session.process import Command, Connected, Delivery, Process
from sessiond_server.session.state import Spec
from sessiond_server.shim import Acked, Exited, Link, Output, OutputClosed, Paused, stderr_tail
from sessiond_server.store import LINE, Response, SessionRow, Step, StorageFull
from sessiond_server.tail import Tail

_logger = structlog.get_logger()
# One step handles about this much output: more would keep other sessions waiting.
_STEP_BYTES = 128 * 1024
_MAX_CALLS = 256
_RECENT_RESPONSES = 256
_SETTLE_TIMEOUT = 10.0
_RETRY = 1.0

R = TypeVar("R", bound=Message)


@dataclass(slots=True)
class _Call:
    run: Callable[[Core], Message | None]
    response_type: type[Message]
    request_id: str
    digest: bytes
    actor: str
    waits_for: str
    future: asyncio.Future[Message]


@dataclass(slots=True)
class _Delivered:
    delivery: Delivery
    taken: asyncio.Future[None] = field(repr=False)


class Session:
    """One session: its row, its tail, and (once it is used) its core and process."""

    def __init__(self, row: SessionRow, driver: Callable[[], Driver], context: Context) -> None:
        self.row = row
        self.tail = Tail(row.head_seq)
        self.ephemeral = False
        self._make_driver = driver
        self._context = context
        self._core: Core | None = None
        self._process: Process | None = None
        self._link: Link | None = None
        self._buffer = LineBuffer(row.raw_offset)
        self._calls: deque[_Call] = deque()
        self._delivered: deque[_Delivered] = deque()
        self._settling: dict[str, list[_Call]] = {}
        self._recent: dict[str, Response] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._acked = self._acked_stored = 0
        self._closing = self._killing = self._adopted = False
        self._starting: bool | None = None
        self._ended = asyncio.Event()
        self._launched: asyncio.Future[str] | None = None

    # --- what others see: only what is committed ---

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.row.session_id

    @property
    def directory(self) -> Path:
        """Where the shim keeps its files; named by the key, for ids are the clients' choice."""
        return self._context.sessions_dir / str(self.row.key)

    def summary(self) -> session_pb2.Session:
        """Return the session as of its last committed event."""
        session = session_pb2.Session.FromString(self.row.summary)
        session.head_seq = self.row.head_seq
        session.transcript_id = self.row.transcript_id
        return session

    def read(self, after_seq: int, most: int) -> tuple[bytes, int]:
        """Return joined records after `after_seq` and the seq of the last one."""
        found = self.tail.read(after_seq, most)
        return found or self._context.store.read_after(self.row.key, after_seq, most)

    def page(self, before_seq: int, count: int, most: int) -> bytes:
        """Return the last `count` records before `before_seq`, ascending; fewer to stay under `most`."""
        return self._context.store.read_before(self.row.key, before_seq, count, most)

    def summary_of(self, core: Core) -> session_pb2.Session:
        """Return the session as it will be when the running step is committed."""
        return view.summary(core)

    # --- life ---

    def open(self) -> None:
        """Load the state and start the actor; find the process again if there is one."""
        if self._task is not None:
            return
        self._restore()
        self._task = asyncio.create_task(self._run(), name=f"session-{self.session_id}")
        if self.row.alive:
            self._supervise(None)

    async def launch(self, resume: bool) -> None:
        """Start the process for the first time.

        Raises DomainError LAUNCH_FAILED with the reason in words; the caller removes the session.
        """
        self.open()
        self._launched = asyncio.get_running_loop().create_future()
        await self.call(
            api.ControlRequest(), lambda core: self._start(core, resume), api.ControlResponse
        )
        text = await self._launched
        self._launched = None
        if text:
            raise DomainError(reasons.ERROR_REASON_LAUNCH_FAILED, f"the agent did not start: {text}")

    async def close(self) -> None:
        """Let go: the process lives on, the actor ends, nobody is served any more."""
        self._closing = True
        for timer in self._timers:
            timer.cancel()
        if self._process is not None:
            await self._process.detach()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        for call in [*self._calls, *(c for calls in self._settling.values() for c in calls)]:
            if not call.future.done():
                call.future.set_exception(_closed())
        self._calls.clear()
        self._settling.clear()

    async def kill(self, timeout: float) -> bool:
        """End the process at once, with all its descendants; False when it did not end in time."""
        self.open()
        if not self.row.alive:
            return True
        self._killing = True
        self._post(_give_up)
        if self._link is not None:
            self._link.kill()
        try:
            await asyncio.wait_for(self._ended.wait(), timeout)
        except TimeoutError:
            return False
        return True

    # --- calls ---

    async def call(
        self,
        request: Message,
        run: Callable[[Core], Message | None],
        response_type: type[R],
        *,
        request_id: str = "",
        actor: str = "",
        waits_for: str = "",
    ) -> R:
        """Run `run` on the core within a step and return what it returned, once that is durable.

        `run` may return None when `waits_for` names the message whose fate is the answer. With a
        `request_id` the answer of an earlier equal call is returned instead; REQUEST_ID_REUSED when that
        one had other content. Raises what `run` raises, and STORAGE_FULL.
        """
        if self._closing:
            raise _closed()
        self.open()
        content = request.SerializeToString(deterministic=True)
        name = request.DESCRIPTOR.name.encode()
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        digest = hashlib.sha256(name + b"\0" + content).digest()
        call = _Call(run, response_type, request_id, digest, actor, waits_for, future)
        self._calls.append(call)
        self._wake.set()
        if not waits_for:
            response = await future
        else:
            response = await self._settled(call)
        assert isinstance(response, response_type)
        return response

    async def _settled(self, call: _Call) -> Message:
        try:
            return await asyncio.wait_for(call.future, _SETTLE_TIMEOUT)
        except TimeoutError:
            return api.UnqueueResponse(outcome=api.UNQUEUE_OUTCOME_UNKNOWN, seq=self.row.head_seq)

    def restart(self, core: Core) -> Message:
        """Start the process again: now, or as soon as the one that runs has ended."""
        if core.alive:
            core.state.restarting = True
            core.dirty = True
            if not core.state.stopping:
                core.stop()
        else:
            self._start(core, resume=True)
        return api.ControlResponse(seq=core.head_seq)

    # --- the loop ---

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._calls or self._delivered:
                await self._step()

    async def _step(self) -> None:
        core = self._core
        assert core is not None
        core.begin(self._context.clock())
        step = Step(self.row.key, core.head_seq + 1)
        calls = [self._calls.popleft() for _ in range(min(len(self._calls), _MAX_CALLS))]
        delivered = self._delivered[0] if self._delivered else None
        answered: list[tuple[_Call, Message]] = []
        after: list[Callable[[], None]] = []
        try:
            self._take_calls(core, step, calls, answered)
            if delivered is not None:
                after += self._take_delivery(core, step, delivered)
            after += self._pending_start(core, step)
            product = core.finish()
            self._fill(step, core, product)
            await self._commit(step, product)
        except Exception as error:
            _logger.exception("step_failed", session_id=self.session_id)
            await self._undo(error, calls, delivered)
            return
        self._publish(step, product)
        for action in after:
            action()
        for call, response in answered:
            if not call.future.done():
                call.future.set_result(response)
        self._settle(product)
        if delivered is not None and not delivered.delivery:
            self._delivered.popleft()
            if not delivered.taken.done():
                delivered.taken.set_result(None)

    def _take_calls(
        self, core: Core, step: Step, calls: list[_Call], answered: list[tuple[_Call, Message]]
    ) -> None:
        fresh: dict[str, Response] = {}
        for call in calls:
            if call.future.done():
                continue
            try:
                response = self._earlier(call, fresh)
                if response is None:
                    core.caused_by(call.request_id, call.actor)
                    response = call.run(core)
                    if response is not None and call.request_id:
                        kept = Response(call.request_id, call.digest, response.SerializeToString())
                        fresh[call.request_id] = kept
                        step.responses.append(kept)
            except DomainError as error:
                call.future.set_exception(error)
                continue
            finally:
                core.caused_by("", "")
            if response is None:
                self._settling.setdefault(call.waits_for, []).append(call)
            else:
                answered.append((call, response))

    def _earlier(self, call: _Call, fresh: dict[str, Response]) -> Message | None:
        """Return what an equal call got before."""
        if not call.request_id:
            return None
        known = (
            fresh.get(call.request_id)
            or self._recent.get(call.request_id)
            or self._context.store.response(self.row.key, call.request_id)
        )
        if known is None:
            return None
        if known.digest != call.digest:
            raise request_id_reused(call.request_id)
        return call.response_type.FromString(known.response)

    # --- what the process says ---

    async def _deliver(self, delivery: Delivery) -> None:
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._delivered.append(_Delivered(delivery, taken))
        self._wake.set()
        await taken

    def _take_delivery(self, core: Core, step: Step, delivered: _Delivered) -> list[Callable[[], None]]:
        delivery = delivered.delivery
        if not isinstance(delivery, list):
            after = self._take_notice(core, step, delivery)
            delivered.delivery = []
            return after
        after = []
        budget = _STEP_BYTES
        while delivery and budget > 0:
            item = delivery[0]
            if isinstance(item, Output):
                data = item.data[:budget]
                core.lines(self._buffer.feed(item.offset, data))
                budget -= len(data)
                if len(data) < len(item.data):
                    delivery[0] = Output(item.offset + len(data), item.data[len(data) :])
                    break
            elif isinstance(item, Acked):
                self._acked = max(self._acked, item.input_id)
            elif isinstance(item, Exited):
                tail = stderr_tail(self.directory, self.row.run)
                after += self._exited(core, step, item, tail)
            elif isinstance(item, Paused):
                core.raise_error(reasons.ERROR_REASON_STORAGE_FULL, f"the agent waits: {item.reason}")
            elif isinstance(item, OutputClosed):
                core.unreachable()
            delivery.pop(0)
        step.raw_offset = self._buffer.offset if step.raw_offset is None else step.raw_offset
        return after

    def _take_notice(self, core: Core, step: Step, notice: processes.Notice) -> list[Callable[[], None]]:
        if isinstance(notice, Connected):
            return self._connected(core, notice.link)
        if isinstance(notice, processes.Unreachable):
            self._link = None
            core.unreachable()
            return []
        if isinstance(notice, processes.LaunchError):
            if self._launched is None:
                core.raise_error(reasons.ERROR_REASON_LAUNCH_FAILED, notice.text)
            return [
                *self._exited(core, step, None, ""),
                lambda: self._report_launch(notice.text),
            ]
        if notice.exited is None:
            core.raise_error(
                reasons.ERROR_REASON_AGENT_LOST,
                "the agent's process was lost with its shim; Control restart resumes the conversation",
            )
        return self._exited(core, step, notice.exited, notice.stderr_tail)

    def _connected(self, core: Core, link: Link) -> list[Callable[[], None]]:
        if core.state.announced_run != self.row.run:
            core.started(self.row.run, link.hello.agent_pid)
        else:
            core.reachable()
            if not self._adopted:
                core.adopted(link.hello.agent_pid)
        self._adopted = True
        return [lambda: self._attach(core, link)]

    def _attach(self, core: Core, link: Link) -> None:
        for input_id, kind, data in self._context.store.outbox(self.row.key):
            self._send_input(link, input_id, kind, data)
        self._link = link
        self._report_launch("")
        if self._killing:
            link.kill()
        elif core.state.stopping:
            plan = core.driver.stop()
            self._end(plan.signal, plan.grace)
        elif core.state.said == session_pb2.SESSION_STATE_UNKNOWN:
            run = self.row.run
            self._call_later(self._context.launch_timeout, lambda: self._check_ready(run))

    def _report_launch(self, text: str) -> None:
        if self._launched is not None and not self._launched.done():
            self._launched.set_result(text)

    def _exited(
        self, core: Core, step: Step, exited: Exited | None, tail: str
    ) -> list[Callable[[], None]]:
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
        return [self._forget_process]

    def _forget_process(self) -> None:
        self._cancel_timers()
        self._link = None
        process, self._process = self._process, None
        if process is not None:
            process.discard()
        self._ended.set()

    # --- starting and ending the process ---

    def _start(self, core: Core, resume: bool) -> Message:
        self._starting = resume
        core.alive = True
        return api.ControlResponse(seq=core.head_seq)

    def _pending_start(self, core: Core, step: Step) -> list[Callable[[], None]]:
        """Put the start of a process into this step: the intent is durable before the act."""
        if core.state.restarting and not core.alive:
            self._starting = True
        if self._starting is None or (step.alive is None and self.row.alive):
            return []
        resume, self._starting = self._starting, None
        # Lines written to the process that ended are void; their rows go with it.
        launch = core.launch(resume)
        step.alive, step.run, step.raw_offset = True, self.row.run + 1, 0
        step.clear_outbox = True
        env = self._context.environment() | dict(launch.env) | core.identity.spec.environment
        command = Command(launch.argv, env, core.identity.spec.workspace)
        return [lambda: self._supervise(command)]

    def _supervise(self, command: Command | None) -> None:
        self._ended.clear()
        self._acked = self._acked_stored = 0
        self._adopted = command is not None
        self._buffer = LineBuffer(self.row.raw_offset)
        self._process = Process(
            self.directory,
            self.row.run,
            position=lambda: self._buffer.received,
            deliver=self._deliver,
            log_cap=self._context.log_cap,
        )
        self._process.start(command, self.session_id)

    def _call_later(self, delay: float, action: Callable[[], None]) -> None:
        self._timers = [t for t in self._timers if not t.cancelled()]
        self._timers.append(asyncio.get_running_loop().call_later(delay, action))

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _end(self, signum: int, grace: float) -> None:
        """End the process: its signal now, the whole group after the grace."""
        link = self._link
        if link is None:
            return  # done when the shim answers again: `stopping` is part of the state
        if signum:
            link.signal(signum)
        run = self.row.run
        self._call_later(grace, lambda: self._kill_run(run))

    def _kill_run(self, run: int) -> None:
        if self._link is not None and self.row.run == run:
            self._link.kill()

    def _check_ready(self, run: int) -> None:
        """Nothing waits for ever: a process that never became ready is ended."""
        core = self._core
        if core is None or self.row.run != run or not self.row.alive:
            return
        if core.state.said == session_pb2.SESSION_STATE_UNKNOWN:
            self._post(self._not_ready)

    def _not_ready(self, core: Core) -> Message:
        seconds = self._context.launch_timeout
        core.raise_error(
            reasons.ERROR_REASON_LAUNCH_FAILED, f"the agent was not ready within {seconds:.0f} s"
        )
        core.stop()
        return api.ControlResponse()

    def _post(self, run: Callable[[Core], Message]) -> None:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._calls.append(_Call(run, api.ControlResponse, "", b"", "", "", future))
        self._wake.set()

    # --- commit ---

    def _fill(self, step: Step, core: Core, product: Product) -> None:
        step.first_seq = product.first_seq
        step.records = product.records
        step.outbox = product.outbox
        step.state = product.state
        step.driver_state = product.driver_state
        step.attachments = [attachment for attachment, _ in product.blobs]
        if self._acked > self._acked_stored and not step.clear_outbox:
            step.acked = self._acked
        if product.outbox:
            step.input_id = core.input_id
        if product.state is not None or product.driver_state is not None:
            step.summary = view.summary(core).SerializeToString()

    async def _commit(self, step: Step, product: Product) -> None:
        for attachment, data in product.blobs:
            self._context.contents.put(data, attachment.media_type, attachment.filename)
        moved = step.raw_offset is not None and step.raw_offset != self.row.raw_offset
        if product.empty and not step.responses and not moved and step.alive is None:
            return
        await self._context.store.commit(step)

    def _publish(self, step: Step, product: Product) -> None:
        row = self.row
        row.head_seq = step.head_seq
        row.run = row.run if step.run is None else step.run
        row.alive = row.alive if step.alive is None else int(step.alive)
        row.raw_offset = row.raw_offset if step.raw_offset is None else step.raw_offset
        row.input_id = row.input_id if step.input_id is None else step.input_id
        row.summary = row.summary if step.summary is None else step.summary
        self._acked_stored = max(self._acked_stored, step.acked)
        for response in step.responses:
            self._recent[response.request_id] = response
        while len(self._recent) > _RECENT_RESPONSES:
            del self._recent[next(iter(self._recent))]
        if step.records:
            self.tail.append(step.chunks(), row.head_seq)
        if self._link is not None and step.alive is None:
            for input_id, kind, data in step.outbox:
                self._send_input(self._link, input_id, kind, data)
            if step.raw_offset is not None:
                self._link.committed(step.raw_offset)
        if product.stop_plan is not None:
            self._end(product.stop_plan.signal, product.stop_plan.grace)

    @staticmethod
    def _send_input(link: Link, input_id: int, kind: int, data: bytes) -> None:
        if kind == LINE:
            link.send_input(input_id, data)
        else:
            link.close_stdin(input_id)

    def _settle(self, product: Product) -> None:
        """Answer those who wait for a message's fate, through a step that keeps the answer."""
        for item_id, outcome, seq in product.settled:
            response = api.UnqueueResponse(outcome=outcome, seq=seq)
            for call in self._settling.pop(item_id, []):
                self._calls.append(replace(call, run=_returning(response), waits_for=""))
                self._wake.set()

    async def _undo(self, error: Exception, calls: list[_Call], delivered: _Delivered | None) -> None:
        """Nothing of the step has happened: back to what is stored; output is read again later."""
        shown = error
        if isinstance(error, (StorageFull, OSError)):
            shown = DomainError(
                reasons.ERROR_REASON_STORAGE_FULL,
                "the disk of the data directory is full; nothing was recorded",
                retry_after=_RETRY,
            )
        for call in calls:
            if not call.future.done():
                call.future.set_exception(shown)
        self._restore()
        self._starting = None
        process = self._process
        if delivered is None or process is None:
            return
        await process.detach()
        self._delivered.clear()
        self._link = None
        self._buffer = LineBuffer(self.row.raw_offset)
        self._call_later(_RETRY, lambda: self._retry(process))

    def _retry(self, process: Process) -> None:
        if process is self._process and not self._closing:
            process.start(None, self.session_id)

    def _restore(self) -> None:
        """Make the core from what is stored."""
        stored = self._context.store.session(self.session_id)
        if stored is None:
            raise DomainError(reasons.ERROR_REASON_SESSION_NOT_FOUND, "the session was deleted")
        self.row = stored
        spec: Spec = states.decode_spec(stored.spec)
        self.ephemeral = spec.ephemeral
        driver = self._make_driver()
        if stored.driver_state:
            driver.restore(stored.driver_state)
        self._core = Core(
            Identity(stored.session_id, stored.transcript_id, stored.driver, spec),
            driver,
            states.decode_state(stored.state) if stored.state else states.State(),
            head_seq=stored.head_seq,
            input_id=stored.input_id,
            alive=bool(stored.alive),
            limits=self._context.limits,
            load=lambda attached: self._context.contents.content(attached.to_proto()),
        )
        stored.state = stored.driver_state = b""


def _returning(response: Message) -> Callable[[Core], Message]:
    return lambda core: response


def _give_up(core: Core) -> Message:
    """The process is about to be killed and is not to come back."""
    core.state.stopping, core.state.restarting = True, False
    core.dirty = True
    return api.ControlResponse()


def _closed() -> DomainError:
    return DomainError(
        reasons.ERROR_REASON_SERVER_DRAINING, "the session is being closed", retry_after=1.0
    )
