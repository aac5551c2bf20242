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
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import structlog
from google.protobuf.message import Message

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_drivers.base import Driver
from sessiond_server.errors import DomainError
from sessiond_server.session import state as states
from sessiond_server.session import view
from sessiond_server.session.agent import After, Agent
from sessiond_server.session.context import Context
from sessiond_server.session.core import Core
from sessiond_server.session.inbox import Answers, Call, Delivered
from sessiond_server.session.process import Delivery
from sessiond_server.session.product import Identity, Product
from sessiond_server.store import Response, SessionRow, Step, StorageFull
from sessiond_server.tail import Tail

_logger = structlog.get_logger(__name__)
_MAX_CALLS = 256
_SETTLE_TIMEOUT = 10.0
_RETRY_AFTER = 1.0

R = TypeVar("R", bound=Message)


class Session:
    """One session: its row, its tail, and (once it is used) its core and agent."""

    def __init__(self, row: SessionRow, driver: Callable[[], Driver], context: Context) -> None:
        self.row = row
        self.tail = Tail(row.head_seq)
        self.ephemeral = False
        self._make_driver = driver
        self._context = context
        self._core: Core | None = None
        self._agent = Agent(row, context, self._deliver, self._post)
        self._calls: deque[Call] = deque()
        self._delivered: deque[Delivered] = deque()
        self._settling: dict[str, list[Call]] = {}
        self._answers = Answers(context.store, row.key)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed: Callable[[], DomainError] | None = None
        self._full = False
        self._last_event = 0

    # --- what others see: only what is committed ---

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.row.session_id

    @property
    def lives(self) -> bool:
        """Whether it has a process, or is about to have one, also by the step that is running."""
        starting = self._core is not None and self._core.alive
        return starting or bool(self.row.alive) or not self.row.run

    @property
    def directory(self) -> Path:
        """Where the shim keeps its files."""
        return self._agent.directory

    @property
    def marker(self) -> str:
        """What its processes carry in their environment."""
        return self._agent.marker

    def summary(self) -> session_pb2.Session:
        """Return the session as of its last committed event."""
        session = session_pb2.Session.FromString(self.row.summary)
        session.session_id = self.row.session_id
        session.head_seq = self.row.head_seq
        session.transcript_id = self.row.transcript_id
        # Streamed events change nothing else, and the stored summary stays as it is.
        updated = max(self._last_event, session.update_time.ToNanoseconds())
        session.update_time.FromNanoseconds(updated)
        return session

    def read(self, after_seq: int, most: int) -> tuple[bytes, int]:
        """Return joined records after `after_seq` and the seq of the last one."""
        found = self.tail.read(after_seq, most)
        # Not beyond the head: what the writer has just committed is published only after this step.
        return found or self._context.store.read_after(self.row.key, after_seq, most, self.row.head_seq)

    def page(self, before_seq: int, count: int, most: int) -> bytes:
        """Return the last `count` records before `before_seq`, ascending; fewer to stay under `most`."""
        return self._context.store.read_before(self.row.key, before_seq, count, most)

    def summary_of(self, core: Core) -> session_pb2.Session:
        """Return the session as it will be when the running step is committed."""
        return view.summary(core)

    # --- life ---

    @property
    def unsettled(self) -> bool:
        """Whether it has a process, or one that ended and is not cleared away."""
        return bool(self.row.alive) or self._agent.unfinished

    def open(self) -> None:
        """Load the state and start the actor; find the process again if there is one."""
        if self._task is not None:
            return
        core = self._restore()
        self._task = asyncio.create_task(self._run(), name=f"session-{self.session_id}")
        if self.row.alive:
            self._agent.supervise(None)
        elif self._agent.unfinished:
            self._agent.finish_late(core.state.stopped)

    async def launch(self, resume: bool) -> None:
        """Start the process for the first time.

        Raises DomainError LAUNCH_FAILED with the reason in words, or STORAGE_FULL; the caller removes
        the session.
        """
        self.open()
        launched = self._agent.launched = asyncio.get_running_loop().create_future()
        try:
            await self._post(lambda core: self._agent.request_start(core, resume))
            text = await asyncio.wait_for(launched, self._context.launch_timeout)
        except TimeoutError:
            if self._full:
                raise _storage_full() from None
            text = "its shim did not answer"
        finally:
            self._agent.launched = None
        if text:
            raise DomainError(reasons.ERROR_REASON_LAUNCH_FAILED, f"the agent did not start: {text}")

    async def close(self, *, deleting: bool = False) -> None:
        """Let go: the process lives on, the actor ends, nobody is served any more.

        `deleting` is what callers are told; else the server goes.
        """
        self._closed = _deleting if deleting else _draining
        # Before the process is let go: a step could start another one meanwhile.
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._agent.detach()
        for call in [*self._calls, *(c for calls in self._settling.values() for c in calls)]:
            call.fail(self._closed())
        self._calls.clear()
        self._settling.clear()

    def reopen(self) -> None:
        """Take `close` back: the session stays after all, and its subscribers with it."""
        self._closed = self._task = None
        self._delivered.clear()
        try:
            self.open()
        except Exception:
            # Its driver may not be installed any more.
            _logger.exception("session_not_opened", session_id=self.session_id)
        # What was committed while the actor ended, nobody was told.
        self.tail.catch_up(self.row.head_seq)

    async def kill(self, timeout: float) -> bool:
        """End the process at once, with all its descendants; False when it did not end in time."""
        if not self.row.alive:
            return True
        try:
            self.open()
        except Exception:
            # Its driver may not be installed any more.
            _logger.exception("session_not_opened", session_id=self.session_id)
            return False
        self._post(_give_up)
        self._agent.kill()
        try:
            await asyncio.wait_for(self._agent.ended.wait(), timeout)
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
        if self._closed is not None:
            raise self._closed()
        self.open()
        content = request.SerializeToString(deterministic=True)
        name = request.DESCRIPTOR.name.encode()
        call = Call(
            run=run,
            response_type=response_type,
            future=asyncio.get_running_loop().create_future(),
            request_id=request_id,
            digest=hashlib.sha256(name + b"\0" + content).digest(),
            actor=actor,
            waits_for=waits_for,
        )
        self._calls.append(call)
        self._wake.set()
        try:
            response = await asyncio.wait_for(call.future, _SETTLE_TIMEOUT if waits_for else None)
        except TimeoutError:
            raise _unsettled() from None
        finally:
            self._forget(call)
        assert isinstance(response, response_type)
        return response

    def _forget(self, call: Call) -> None:
        waiting = self._settling.get(call.waits_for, [])
        if call in waiting:
            waiting.remove(call)
        if not waiting:
            self._settling.pop(call.waits_for, None)

    def restart(self, core: Core) -> Message:
        """Start the process again: now, or as soon as the one that runs has ended."""
        seq = core.head_seq
        core.expect("process_started")
        if core.alive:
            core.expect("process_exited")
            core.state.restarting = True
            core.dirty = True
            if not core.state.stopping:
                core.stop()
        else:
            self._agent.request_start(core, resume=True)
        return api.ControlResponse(seq=seq)

    def _post(self, run: Callable[[Core], None]) -> asyncio.Future[Message]:
        """Run something on the core in a step that nobody has to wait for."""

        def with_response(core: Core) -> Message:
            run(core)
            return api.ControlResponse()

        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_log_failure)
        self._calls.append(Call(with_response, api.ControlResponse, future))
        self._wake.set()
        return future

    async def _deliver(self, run: int, delivery: Delivery) -> None:
        delivered = Delivered(run, delivery, asyncio.get_running_loop().create_future())
        self._delivered.append(delivered)
        self._wake.set()
        await delivered.taken

    # --- the step ---

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._calls or self._delivered:
                try:
                    await self._step()
                except Exception as error:
                    _logger.exception("session_lost", session_id=self.session_id)
                    await self._lose(error)

    async def _step(self) -> None:
        core = self._core or self._restore()
        core.begin(self._context.clock())
        step = Step(self.row.key, core.head_seq + 1)
        calls = [self._calls.popleft() for _ in range(min(len(self._calls), _MAX_CALLS))]
        delivered = self._delivered[0] if self._delivered else None
        rest: Delivery = []
        after: list[After] = []
        committed = False
        try:
            answered = self._take_calls(core, step, calls)
            if delivered is not None and delivered.run == self.row.run:
                rest, after = self._agent.take(core, step, delivered.delivery)
            after += self._agent.pending_start(core, step)
            product = core.finish()
            self._fill(step, core, product)
            await self._commit(step, product)
            committed = True
            self._publish(step, product)
            for action in after:
                action()
        except asyncio.CancelledError:
            for call in calls:
                call.fail((self._closed or _draining)())
            raise
        except Exception as error:
            if isinstance(error, StorageFull):
                _logger.warning("storage_full", session_id=self.session_id)
            else:
                _logger.exception("step_failed", session_id=self.session_id)
            await self._undo(error, calls, read_again=committed or delivered is not None)
            return
        for call, response in answered:
            call.answer(response)
        self._settle(product)
        if delivered is not None:
            delivered.delivery = rest
            if not rest:
                self._delivered.popleft()
                delivered.done()

    def _take_calls(self, core: Core, step: Step, calls: list[Call]) -> list[tuple[Call, Message]]:
        answered: list[tuple[Call, Message]] = []
        for call in calls:
            if call.future.done():
                continue
            try:
                response = self._answers.earlier(call, step) or self._run_call(core, step, call)
            except DomainError as error:
                call.fail(error)
                continue
            if response is None:
                self._settling.setdefault(call.waits_for, []).append(call)
            else:
                answered.append((call, response))
        return answered

    @staticmethod
    def _run_call(core: Core, step: Step, call: Call) -> Message | None:
        core.caused_by(call.request_id, call.actor)
        try:
            response = call.run(core)
        finally:
            core.caused_by("", "")
        if response is not None and call.request_id:
            kept = Response(call.request_id, call.digest, response.SerializeToString())
            step.responses.append(kept)
        return response

    def _fill(self, step: Step, core: Core, product: Product) -> None:
        step.first_seq = product.first_seq
        step.records = product.records
        step.outbox = product.outbox
        step.state = product.state
        step.driver_state = product.driver_state
        step.attachments = [attachment for attachment, _ in product.blobs]
        self._agent.fill(step)
        if product.outbox:
            step.input_id = core.input_id
        if product.state is not None or product.driver_state is not None:
            step.summary = view.summary(core).SerializeToString()

    async def _commit(self, step: Step, product: Product) -> None:
        for attachment, data in product.blobs:
            self._context.contents.put(data, attachment.media_type, attachment.filename)
        moved = step.raw_offset is not None and step.raw_offset != self.row.raw_offset
        # What the agent has got is not kept any longer: it may be a secret.
        if product.empty and not (step.responses or moved or step.acked) and step.alive is None:
            return
        await self._context.store.commit(step)

    def _publish(self, step: Step, product: Product) -> None:
        self._full = False
        row = self.row
        row.head_seq = step.head_seq
        row.run = row.run if step.run is None else step.run
        row.alive = row.alive if step.alive is None else int(step.alive)
        row.raw_offset = row.raw_offset if step.raw_offset is None else step.raw_offset
        row.input_id = row.input_id if step.input_id is None else step.input_id
        row.summary = row.summary if step.summary is None else step.summary
        self._answers.committed(step)
        if step.records:
            self._last_event = product.time
            self.tail.append(step.chunks(), row.head_seq)
        self._agent.committed(step, product)

    def _settle(self, product: Product) -> None:
        """Answer those who wait for a message's fate, through a step that keeps the answer."""
        for item_id, outcome, seq in product.settled:
            response = api.UnqueueResponse(outcome=outcome, seq=seq)
            for call in self._settling.pop(item_id, []):
                self._calls.append(replace(call, run=_returning(response), waits_for=""))
                self._wake.set()

    async def _lose(self, error: Exception) -> None:
        """What is stored can't be read: nobody is kept waiting, and what comes next tries anew."""
        self._core = None
        while self._calls:
            self._calls.popleft().fail(error)
        self._delivered.clear()
        await self._agent.read_again()

    async def _undo(self, error: Exception, calls: list[Call], *, read_again: bool) -> None:
        """Back to what is stored, most often that before the step; output is read again later."""
        self._full = isinstance(error, StorageFull | OSError)
        shown = _storage_full() if self._full else error
        for call in calls:
            call.fail(shown)
        self._agent.forget_start()
        self._restore()
        if read_again:
            self._delivered.clear()
            await self._agent.read_again()

    def _restore(self) -> Core:
        """Make the core from what is stored."""
        stored = self._context.store.session(self.session_id)
        if stored is None:
            raise DomainError(reasons.ERROR_REASON_SESSION_NOT_FOUND, "the session was deleted")
        spec = states.decode_spec(stored.spec)
        driver = self._make_driver()
        if stored.driver_state:
            driver.restore(stored.driver_state)
        core = self._core = Core(
            Identity(stored.session_id, stored.transcript_id, stored.driver, spec),
            driver,
            states.decode_state(stored.state),
            head_seq=stored.head_seq,
            input_id=stored.input_id,
            alive=bool(stored.alive),
            limits=self._context.limits,
            load=lambda attached: self._context.contents.content(attached.to_proto()),
        )
        stored.state = stored.driver_state = b""
        # A session is shown from its first moment on, before its first step.
        stored.summary = stored.summary or view.summary(core).SerializeToString()
        self.row = self._agent.row = stored
        self.tail.catch_up(stored.head_seq)
        self.ephemeral = spec.ephemeral
        return core


def _returning(response: Message) -> Callable[[Core], Message]:
    return lambda core: response


def _give_up(core: Core) -> None:
    """The process is about to be killed and is not to come back."""
    core.state.stopping, core.state.restarting = True, False
    core.dirty = True


def _log_failure(future: asyncio.Future[Message]) -> None:
    error = None if future.cancelled() else future.exception()
    # A session that was closed needs its steps no more; what else is refused, callers are told.
    if error is not None and not isinstance(error, DomainError):
        _logger.error("step_failed", exc_info=error)


def _unsettled() -> DomainError:
    return DomainError(
        reasons.ERROR_REASON_SESSION_UNREACHABLE,
        "the agent has not said whether it read the message; ask again",
        retry_after=_RETRY_AFTER,
    )


def _storage_full() -> DomainError:
    return DomainError(
        reasons.ERROR_REASON_STORAGE_FULL,
        "the disk of the data directory is full; nothing was recorded",
        retry_after=_RETRY_AFTER,
    )


def _draining() -> DomainError:
    return DomainError(
        reasons.ERROR_REASON_SERVER_DRAINING, "the session is being closed", retry_after=_RETRY_AFTER
    )


def _deleting() -> DomainError:
    return DomainError(reasons.ERROR_REASON_SESSION_NOT_FOUND, "the session is being deleted")
