"""A session without I/O: inputs go in, one step of durable facts comes out.

`Core` feeds the driver, carries out its effects in order, numbers and encodes the events, keeps the
queue and folds the state. What happened since `begin` is collected into a `Product`; the actor commits
it and only then lets anybody see it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import structlog

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2, session_service_pb2
from sessiond_drivers.base import (
    Attach,
    Content,
    Driver,
    Dropped,
    Effect,
    Emit,
    ExitStatus,
    Identified,
    Launch,
    LaunchSpec,
    Message,
    Refused,
    Retract,
    Settle,
    Taken,
    Write,
)
from sessiond_server.errors import reason_name
from sessiond_server.session import causes, fold, oversize
from sessiond_server.session import state as states
from sessiond_server.session.lines import unreadable
from sessiond_server.session.product import Collected, Identity, Limits, Product
from sessiond_server.session.state import Attached, Item, State, keep_last
from sessiond_server.store import CLOSE_STDIN, LINE
from sessiond_server.store.records import record

_logger = structlog.get_logger()
_NANOS = 1_000_000_000
_MAX_MARKS = 64
_MAX_BECAME = 200

DROPPED = session_service_pb2.UNQUEUE_OUTCOME_DROPPED
ALREADY_SENT = session_service_pb2.UNQUEUE_OUTCOME_ALREADY_SENT


class Core:
    """One session's state machine. `alive` says whether it has a process (as far as anyone knows)."""

    def __init__(
        self,
        identity: Identity,
        driver: Driver,
        state: State,
        *,
        head_seq: int,
        input_id: int,
        alive: bool,
        limits: Limits,
        load: Callable[[Attached], Content],
    ) -> None:
        self.identity = identity
        self.driver = driver
        self.state = state
        self.head_seq = head_seq
        self.input_id = input_id
        self.alive = alive
        self.limits = limits
        self.dirty = False
        self._told_unreachable = False
        self._load = load
        self._now = (0, 0)
        self.cause = ("", "")
        self._first_seq = head_seq + 1
        self._made = Collected()
        self._driver_state = driver.snapshot()

    # --- steps ---

    def begin(self, now: int) -> None:
        """Start a step at `now` (nanoseconds since the epoch)."""
        self._now = divmod(now, _NANOS)
        self._first_seq = self.head_seq + 1
        self._made = Collected()

    def caused_by(self, request_id: str, actor: str) -> None:
        """Name the call that the following events come from; empty strings end that."""
        self.cause = (request_id, actor)

    def finish(self) -> Product:
        """End the step and return what it made."""
        made = self._made
        driver_state = self.driver.snapshot()
        changed = driver_state != self._driver_state
        self._driver_state = driver_state
        product = Product(
            time=self._now[0] * _NANOS + self._now[1],
            first_seq=self._first_seq,
            records=made.records,
            outbox=made.outbox,
            blobs=made.blobs,
            state=states.encode(self.state) if self.dirty else None,
            driver_state=driver_state if changed else None,
            settled=made.settled,
            stop_plan=made.stop_plan,
        )
        self.dirty = False
        return product

    def touch(self) -> None:
        """The session is another now."""
        self.state.update_time = self._now[0] * _NANOS + self._now[1]
        self.dirty = True

    def expect(self, kind: str) -> None:
        """Let the next event of `kind` bear the request_id of the call that is running."""
        causes.expect(self.state, kind, self.cause[0])
        self.dirty = True

    # --- events ---

    def emit(self, event: ev.Event) -> int:
        """Append an event and return its seq (that of its first piece when it is too big)."""
        kind = event.WhichOneof("body") or ""
        changes = kind not in fold.STREAMED
        if changes:
            self._attribute(kind, event)
        first = event.seq = self.head_seq + 1
        pieces, blobs = oversize.shrink(event, self.limits.max_event_bytes)
        self._made.blobs += blobs
        if changes:
            # What is kept is what clients see.
            fold.apply(self.state, kind, pieces[0])
            self.touch()
        for piece in pieces:
            self._append(piece)
        return first

    def _append(self, event: ev.Event) -> None:
        self.head_seq += 1
        event.seq = self.head_seq
        event.create_time.seconds, event.create_time.nanos = self._now
        self._made.records.append(record(event.SerializeToString()))

    def _attribute(self, kind: str, event: ev.Event) -> None:
        """Say which call an event comes from, where that is known."""
        request_id, actor = self.cause
        earlier = causes.request_of(self.state, kind, event, calling=any(self.cause))
        event.request_id = event.request_id or request_id or earlier
        if kind in causes.BY_CLIENTS:
            event.actor = actor

    @contextmanager
    def _on_behalf(self, item: Item) -> Iterator[None]:
        """What happens within comes from the call that made `item`, whichever is running."""
        outer, self.cause = self.cause, (item.request_id, item.actor)
        try:
            yield
        finally:
            self.cause = outer

    def raise_error(self, reason: reasons.ErrorReason.ValueType, message: str) -> None:
        """Append an ErrorRaised."""
        self.emit(ev.Event(error_raised=ev.ErrorRaised(reason=reason_name(reason), message=message)))

    def change_state(self, state: session_pb2.SessionState.ValueType) -> None:
        """Append a StateChanged unless that is the state already."""
        if self.state.state != state:
            self.emit(ev.Event(state_changed=ev.StateChanged(state=state)))

    # --- effects ---

    def apply(self, effects: Sequence[Effect]) -> None:
        """Carry out what the driver asked for, in order."""
        for effect in effects:
            if type(effect) is Emit:
                self._apply_emit(effect)
            else:
                self._APPLY[type(effect)](self, effect)

    def _apply_each(self, effects: Sequence[Effect]) -> bool:
        """Carry out what the agent's words led to; False when an effect failed, of which nothing stays.

        To raise would bring the same bytes back for ever. The rest is done: the driver counts on it.
        """
        whole = True
        for effect in effects:
            sizes, numbers = self._made.sizes(), (self.head_seq, self.input_id)
            # What streams leaves the state alone, but for its mark, which comes last.
            streamed = type(effect) is Emit and effect.event.WhichOneof("body") in fold.STREAMED
            before = None if streamed else states.copied(self.state)
            try:
                self.apply((effect,))
            except Exception:
                _logger.exception("effect_failed", session_id=self.identity.session_id)
                self._made.cut(sizes)
                self.head_seq, self.input_id = numbers
                self.state = before or self.state
                whole = False
        return whole

    def _apply_emit(self, effect: Emit) -> None:
        event = effect.event
        seq = self.emit(event)
        if effect.mark and effect.mark not in self.state.marks:
            self.state.marks[effect.mark] = seq
            keep_last(self.state.marks, _MAX_MARKS)
            self.dirty = True
        if event.HasField("state_changed"):
            self.state.said = event.state_changed.state

    def _apply_write(self, effect: Write) -> None:
        self.write(LINE, effect.line)

    def write(self, kind: int, data: bytes) -> None:
        """Put an input for the agent into the outbox."""
        self.input_id += 1
        self._made.outbox.append((self.input_id, kind, data))

    def _apply_taken(self, effect: Taken) -> None:
        item = self.find(effect.message_id)
        if item is None:
            return
        taken = ev.UserMessage(
            message_id=item.item_id,
            text=item.text,
            attachments=[a.to_proto() for a in item.attachments],
            sender=item.sender,
        )
        with self._on_behalf(item):
            self._leave(item, ev.Event(user_message=taken), ALREADY_SENT)

    def _apply_dropped(self, effect: Dropped) -> None:
        self.drop(effect.message_id)

    def _apply_settle(self, effect: Settle) -> None:
        item = self.find(effect.message_id)
        if effect.outcome == DROPPED:
            self.drop(effect.message_id)
        elif item is not None and item.taking_back:
            item.taking_back = False
            self.dirty = True
            self._made.settled.append((item.item_id, effect.outcome, self.head_seq))

    def _apply_retract(self, effect: Retract) -> None:
        since = self.state.marks.pop(effect.mark, 0)
        if since:
            self.emit(ev.Event(retracted=ev.Retracted(since_seq=since)))

    def _apply_attach(self, effect: Attach) -> None:
        attachment = session_pb2.Attachment(
            ref=hashlib.sha256(effect.data).hexdigest(),
            media_type=fold.bounded(effect.media_type),
            filename=fold.bounded(effect.filename),
            size_bytes=len(effect.data),
        )
        self._made.blobs.append((attachment, effect.data))
        added = ev.AttachmentAdded(attachment=attachment, tool_id=effect.tool_id)
        self.emit(ev.Event(parent_tool_id=effect.parent_tool_id, attachment_added=added))

    def _apply_identified(self, effect: Identified) -> None:
        native = effect.native_session_id
        # A part of an id names nothing.
        if native and fold.bounded(native) == native:
            self.state.native_session_id = native
        self.state.agent_version = fold.bounded(effect.agent_version) or self.state.agent_version
        self.dirty = True

    _APPLY: ClassVar[dict[type, Callable[..., None]]] = {
        Write: _apply_write,
        Taken: _apply_taken,
        Dropped: _apply_dropped,
        Settle: _apply_settle,
        Retract: _apply_retract,
        Attach: _apply_attach,
        Identified: _apply_identified,
    }

    # --- the agent's side ---

    def lines(self, lines: Sequence[bytes]) -> None:
        """Feed lines of stdout."""
        feed = self.driver.line
        for line in lines:
            if not line:
                continue
            try:
                whole = self._apply_each(feed(line))
            except Exception:
                # A driver never raises; if one does, its line is kept and the session goes on.
                _logger.exception("driver_failed", session_id=self.identity.session_id)
                whole = False
            if not whole:
                self.emit(unreadable(line))
            if self.state.queue:
                self.advance()

    def launch(self, resume: bool) -> Launch:
        """Ask the driver how to start the process; its opening lines go into the outbox."""
        state, spec = self.state, self.identity.spec
        launch = self.driver.launch(
            LaunchSpec(
                session_id=self.identity.session_id,
                workspace=spec.workspace,
                model=state.usable("model") or spec.model,
                permission_mode=state.usable("permission_mode") or spec.permission_mode,
                effort=state.usable("effort") or spec.effort,
                title=state.title,
                system_prompt=spec.system_prompt,
                native_session_id=state.native_session_id,
            ),
            resume,
        )
        # What this step wrote before was for a process that is gone, or never was.
        self._made.outbox.clear()
        self.alive = True
        self.dirty = True
        state.stopping = state.restarting = False
        state.said = session_pb2.SESSION_STATE_UNKNOWN
        state.marks.clear()
        self.change_state(session_pb2.SESSION_STATE_UNKNOWN)
        self.apply(launch.effects)
        return launch

    def started(self, run: int, pid: int) -> None:
        """The process runs; said once for each run."""
        if self.state.announced_run == run:
            return
        self.state.announced_run = run
        self._told_unreachable = False
        started = ev.ProcessStarted(
            pid=pid,
            native_session_id=self.state.native_session_id,
            agent_version=self.state.agent_version,
        )
        self.emit(ev.Event(process_started=started))
        self.advance()

    def adopted(self, pid: int) -> None:
        """A new daemon has the living process."""
        self.emit(ev.Event(process_adopted=ev.ProcessAdopted(pid=pid)))
        self._apply_each(self.driver.adopted())
        self.advance()

    def unreachable(self, text: str = "") -> None:
        """There is a process and nobody can say how it is; `text` is why, and is told once."""
        if text and not self._told_unreachable and not self.state.stopping:
            self._told_unreachable = True
            self.raise_error(reasons.ERROR_REASON_SESSION_UNREACHABLE, text)
        self.change_state(session_pb2.SESSION_STATE_UNKNOWN)

    def reachable(self) -> None:
        """The process answers again; it is as its driver last said."""
        self._told_unreachable = False
        self.change_state(session_pb2.SessionState.ValueType(self.state.said))
        self.advance()

    def exited(self, status: ExitStatus) -> None:
        """The process is gone: everything open is closed, what was not read waits again."""
        try:
            self._apply_each(self.driver.exited(status))
        except Exception:
            _logger.exception("driver_failed", session_id=self.identity.session_id)
        self._close_leftovers()
        exited = ev.ProcessExited(stderr_tail=status.stderr_tail)
        if status.exit_code is not None:
            exited.exit_code = status.exit_code
        if status.signal is not None:
            exited.signal = status.signal
        self.emit(ev.Event(process_exited=exited))
        for item in list(self.state.queue):
            item.handed = False
            if item.taking_back:
                self.drop(item.item_id)
        # What this step wrote before was for the process that is gone.
        self._made.outbox.clear()
        self.alive = False
        self.state.stopped, self.state.stopping = self.state.stopping, False
        self.state.pending_settings.clear()
        for kind in self.state.awaited.keys() - {"process_started"}:
            del self.state.awaited[kind]
        self.state.said = session_pb2.SESSION_STATE_EXITED
        self.change_state(session_pb2.SESSION_STATE_EXITED)

    def _close_leftovers(self) -> None:
        """Keep the promises of the contract even for a driver that forgot."""
        for question_id in fold.open_questions(self.state):
            withdrawn = ev.QuestionWithdrawn(
                question_id=question_id, reason=ev.WITHDRAW_REASON_AGENT_EXITED
            )
            self.emit(ev.Event(question_withdrawn=withdrawn))
        if self.state.turn_id:
            ended = ev.TurnEnded(
                turn_id=self.state.turn_id,
                outcome=ev.TURN_OUTCOME_FAILED,
                reason=ev.TURN_END_REASON_AGENT_EXITED,
            )
            self.emit(ev.Event(turn_ended=ended))

    def stop(self) -> None:
        """Begin to end the process gently; the actor does the rest after the commit."""
        plan = self.driver.stop()
        self.state.stopping = True
        self.dirty = True
        self.apply(plan.effects)
        if plan.close_stdin:
            self.write(CLOSE_STDIN, b"")
        self._made.stop_plan = plan

    # --- the queue ---

    def find(self, item_id: str) -> Item | None:
        """Return the waiting message or command of that id."""
        return next((item for item in self.state.queue if item.item_id == item_id), None)

    def _leave(
        self, item: Item, event: ev.Event, outcome: session_service_pb2.UnqueueOutcome.ValueType
    ) -> None:
        """Take an item out of the queue with the event that says so; calls that wait for it end."""
        self.state.queue.remove(item)
        seq = self.emit(event)
        self.state.became[item.item_id] = seq if outcome == DROPPED else 0
        keep_last(self.state.became, _MAX_BECAME)
        if item.taking_back:
            self._made.settled.append((item.item_id, outcome, seq))

    def drop(self, item_id: str) -> None:
        """Take a message or command out of the queue for good, if it is there, and say so."""
        item = self.find(item_id)
        if item is None:
            return
        if item.kind == states.MESSAGE:
            event = ev.Event(message_dropped=ev.MessageDropped(message_id=item_id))
        else:
            event = ev.Event(command_dropped=ev.CommandDropped(command_id=item_id))
        event.request_id = self.cause[0] or item.request_id
        self._leave(item, event, DROPPED)

    def advance(self) -> None:
        """Hand over what the driver can take now."""
        while self.alive and not self.state.stopping:
            item = self._next_item()
            if item is None:
                return
            with self._on_behalf(item):
                if item.kind == states.MESSAGE:
                    self._hand_message(item)
                else:
                    self._hand_command(item)

    def _next_item(self) -> Item | None:
        waiting = [item for item in self.state.queue if not item.handed]
        if not waiting:
            return None
        if self.driver.between_turns:
            return waiting[0]
        if self.state.turn_id and self.driver.capabilities.steer:
            return next((i for i in waiting if i.delivery == session_pb2.DELIVERY_STEER), None)
        return None

    def _hand_message(self, item: Item) -> None:
        item.handed = True
        self.dirty = True
        try:
            contents = tuple(self._load(attached) for attached in item.attachments)
            append = item.delivery == session_pb2.DELIVERY_APPEND
            effects = self.driver.message(Message(item.item_id, item.text, contents, append))
        except (Refused, OSError) as error:
            self.raise_error(reasons.ERROR_REASON_AGENT_FAILED, f"a message was not sent: {error}")
            self.drop(item.item_id)
            return
        self.apply(effects)

    def _hand_command(self, item: Item) -> None:
        sent = ev.CommandSent(command_id=item.item_id, text=command_text(item))
        self._leave(item, ev.Event(command_sent=sent), ALREADY_SENT)
        causes.expect_command(self.state, item.kind, item.request_id)
        try:
            if item.kind == states.COMPACT:
                effects = self.driver.compact(item.item_id, item.text)
            elif item.kind == states.CLEAR:
                effects = self.driver.clear(item.item_id)
            else:
                effects = self.driver.run_command(item.item_id, item.text)
        except Refused as refused:
            self.raise_error(refused.reason, str(refused))
            return
        self.apply(effects)


def command_text(item: Item) -> str:
    """Return a command as a person would read it."""
    if item.kind == states.RUN:
        return item.text
    return f"{item.kind} {item.text}".rstrip()
