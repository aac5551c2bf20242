"""The obligations of a driver, checked effect by effect.

`Obligations` is told each input that a host gives a driver and each effect that the driver returns; it
raises `Broken` as soon as a promise of `sessiond_drivers.base.Driver` does not hold. It has no idea of
any dialect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from google.protobuf.message import Message as ProtoMessage

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2, session_service_pb2
from sessiond_drivers.base import (
    Attach,
    Dropped,
    Effect,
    Emit,
    Identified,
    Retract,
    Settle,
    Taken,
    Write,
)

__all__ = ["Broken", "Obligations"]

# What only the host may say.
_HOSTS_OWN = frozenset({
    "user_message", "message_queued", "message_edited", "message_moved", "message_dropped",
    "attachment_added", "retracted", "question_answered", "command_queued", "command_sent",
    "command_dropped", "process_started", "process_adopted", "process_exited",
})  # fmt: skip
_ENVELOPE_OF_HOST = ("seq", "create_time", "request_id", "actor")
_DRIVERS_STATES = frozenset({
    session_pb2.SESSION_STATE_IDLE,
    session_pb2.SESSION_STATE_RUNNING,
    session_pb2.SESSION_STATE_AWAITING_INPUT,
    session_pb2.SESSION_STATE_COMPACTING,
})  # fmt: skip
_SETTINGS = ("model", "permission_mode", "effort", "title")


class Broken(AssertionError):
    """A driver did not keep a promise."""


def _require(held: bool, promise: str) -> None:
    if not held:
        raise Broken(promise)


class Obligations:
    """One session's ledger, kept from outside."""

    def __init__(self) -> None:
        self.handed: set[str] = set()
        self.appended: set[str] = set()
        self.resolved: dict[str, str] = {}
        self.unqueues: Counter[str] = Counter()
        self.turn_id = ""
        self.turns: set[str] = set()
        self.tools: set[str] = set()
        self.parents: dict[str, str] = {}
        self.questions: dict[str, ev.QuestionAsked] = {}
        self.settings: list[str] = []
        self.clears: list[str] = []
        self.state = session_pb2.SESSION_STATE_UNSPECIFIED

    # --- what the host tells the driver ---

    def launched(self) -> None:
        """A process starts; nothing of a former one may be open."""
        self._all_closed("at launch")
        self.state = session_pb2.SESSION_STATE_UNSPECIFIED

    def handed_over(self, message_id: str, append: bool) -> None:
        """A message goes to the driver."""
        self.handed.add(message_id)
        self.resolved.pop(message_id, None)
        if append:
            self.appended.add(message_id)

    def asked_back(self, message_id: str) -> None:
        """`unqueue` is called."""
        self.unqueues[message_id] += 1

    def answered(self, question_id: str) -> None:
        """`answer` is called for an open question."""
        _require(question_id in self.questions, f"question {question_id} is not open")
        del self.questions[question_id]

    def asked_setting(self, name: str) -> None:
        """A settings verb is called; `name` is a field of SettingsChanged."""
        assert name in _SETTINGS
        self.settings.append(name)

    def asked_clear(self, command_id: str) -> None:
        """`clear` is called."""
        self.clears.append(command_id)

    # --- what the driver does ---

    def after(self, effects: Iterable[Effect], between_turns: bool) -> None:
        """Check what one input made, and what the driver says of itself after it."""
        for effect in effects:
            self._effect(effect)
        if self.turn_id:
            _require(not between_turns, "a turn is open, so the driver is not between turns")
        if self.handed - self.appended:
            _require(not between_turns, "a message is on its way that will start a turn")
        if self.state == session_pb2.SESSION_STATE_AWAITING_INPUT:
            _require(bool(self.questions), "awaiting_input needs an open question")
        if self.state == session_pb2.SESSION_STATE_IDLE:
            _require(not self.turn_id, "idle while a turn is open")

    def exiting(self) -> None:
        """The process is gone; what the driver said of its state is void, the host says the next."""
        self.state = session_pb2.SESSION_STATE_UNSPECIFIED

    def exited(self) -> None:
        """The process is gone and the driver has been told: nothing may be open any more."""
        self._all_closed("after the exit")
        self.handed.clear()
        self.appended.clear()

    def quiet(self) -> None:
        """The agent has answered everything it was asked: nothing may be left in silence."""
        _require(
            not self.settings, f"settings asked for and never confirmed nor refused: {self.settings}"
        )
        _require(not self.clears, f"clears that never ended: {self.clears}")
        _require(not self.unqueues, f"unqueues that were never settled: {dict(self.unqueues)}")

    def _all_closed(self, when: str) -> None:
        _require(not self.turn_id, f"turn {self.turn_id} is still open {when}")
        _require(not self.tools, f"tools are still open {when}: {self.tools}")
        _require(not self.questions, f"questions are still open {when}: {list(self.questions)}")
        self.quiet()

    def _effect(self, effect: Effect) -> None:
        match effect:
            case Emit():
                self._event(effect.event)
            case Write():
                _require(effect.line.endswith(b"\n"), "a written line ends with a line feed")
                _require(effect.line.count(b"\n") == 1, "one Write is one line")
            case Taken():
                self._resolve(effect.message_id, "taken")
            case Dropped():
                self._resolve(effect.message_id, "dropped")
            case Settle():
                self._settle(effect)
            case Attach():
                _require(effect.media_type != "", "an attachment has a media type")
                self._valid(effect.filename, effect.tool_id, effect.parent_tool_id, effect.media_type)
            case Identified():
                self._valid(effect.native_session_id, effect.agent_version)
            case Retract():
                self._valid(effect.mark)

    def _valid(self, *texts: str) -> None:
        for text in texts:
            text.encode()

    def _resolve(self, message_id: str, how: str) -> None:
        _require(message_id in self.handed, f"message {message_id} is {how} but was not handed over")
        self.handed.remove(message_id)
        self.appended.discard(message_id)
        self.resolved[message_id] = how

    def _settle(self, effect: Settle) -> None:
        message_id = effect.message_id
        _require(self.unqueues[message_id] > 0, f"unqueue of {message_id} is settled, but nobody asked")
        self.unqueues -= Counter([message_id])
        _require(
            effect.outcome != session_service_pb2.UNQUEUE_OUTCOME_UNSPECIFIED, "an outcome is specified"
        )
        if effect.outcome == session_service_pb2.UNQUEUE_OUTCOME_DROPPED:
            taken = self.resolved.get(message_id) == "taken"
            _require(not taken, f"message {message_id} was taken, so it can't be dropped")
            if message_id in self.handed:
                self._resolve(message_id, "dropped")

    # --- events ---

    def _event(self, event: ev.Event) -> None:
        data = event.SerializeToString()
        _require(ev.Event.FromString(data) == event or _has_nan(event), "an event survives its encoding")
        for name in _ENVELOPE_OF_HOST:
            is_set = (
                event.HasField("create_time") if name == "create_time" else bool(getattr(event, name))
            )
            _require(not is_set, f"the envelope's {name} is the host's")
        kind = event.WhichOneof("body")
        _require(kind is not None, "an event has a body")
        assert kind is not None
        _require(kind not in _HOSTS_OWN, f"{kind} is the host's to say")
        if kind == "tool_started":
            self.parents[event.tool_started.tool_id] = event.parent_tool_id
        if kind == "question_asked":
            self.parents[f"question {event.question_asked.question_id}"] = event.parent_tool_id
        check = getattr(self, f"_on_{kind}", None)
        if check is not None:
            check(getattr(event, kind))

    def _on_turn_started(self, body: ev.TurnStarted) -> None:
        _require(not self.turn_id, f"{body.turn_id} started while {self.turn_id} was open")
        _require(body.turn_id not in self.turns, f"turn id {body.turn_id} was used before")
        _require(body.origin != ev.TURN_ORIGIN_UNSPECIFIED, "a turn has an origin")
        self.turn_id = body.turn_id
        self.turns.add(body.turn_id)

    def _on_turn_ended(self, body: ev.TurnEnded) -> None:
        _require(body.turn_id == self.turn_id != "", f"{body.turn_id} ended; open is {self.turn_id!r}")
        tools = {tool_id for tool_id in self.tools if not self._in_background(tool_id)}
        _require(not tools, f"tools are open at the end of the turn: {tools}")
        asking = [q for q in self.questions if not self._asked_in_background(q)]
        _require(not asking, f"questions are open at the end of the turn: {asking}")
        _require(body.outcome != ev.TURN_OUTCOME_UNSPECIFIED, "a turn's end has an outcome")
        _require(body.reason != ev.TURN_END_REASON_UNSPECIFIED, "a turn's end has a reason")
        self.turn_id = ""

    def _in_background(self, tool_id: str) -> bool:
        """Whether a call is a sub-agent's that works on: the call that started it has ended."""
        seen: set[str] = set()
        while (parent := self.parents.get(tool_id, "")) and parent not in seen:
            if parent not in self.tools:
                return True
            seen.add(parent)
            tool_id = parent
        return False

    def _asked_in_background(self, question_id: str) -> bool:
        """Whether a question is of such a call, or of the sub-agent itself."""
        tool_id = self.questions[question_id].tool_id
        return self._in_background(tool_id) or self._in_background(f"question {question_id}")

    def _on_tool_started(self, body: ev.ToolStarted) -> None:
        _require(bool(body.tool_id), "a tool call has an id")
        _require(body.tool_id not in self.tools, f"tool call {body.tool_id} started twice")
        self.tools.add(body.tool_id)

    def _on_tool_updated(self, body: ev.ToolUpdated) -> None:
        _require(body.tool_id in self.tools, f"tool call {body.tool_id} is updated but not open")

    def _on_tool_ended(self, body: ev.ToolEnded) -> None:
        _require(body.tool_id in self.tools, f"tool call {body.tool_id} ended but was not open")
        _require(body.outcome != ev.TOOL_OUTCOME_UNSPECIFIED, "a tool call's end has an outcome")
        self.tools.remove(body.tool_id)

    def _on_question_asked(self, body: ev.QuestionAsked) -> None:
        _require(bool(body.question_id), "a question has an id")
        _require(body.question_id not in self.questions, f"question {body.question_id} asked twice")
        self.questions[body.question_id] = body

    def _on_question_withdrawn(self, body: ev.QuestionWithdrawn) -> None:
        _require(body.question_id in self.questions, f"question {body.question_id} is not open")
        _require(body.reason != ev.WITHDRAW_REASON_UNSPECIFIED, "a withdrawal has a reason")
        del self.questions[body.question_id]

    def _on_state_changed(self, body: ev.StateChanged) -> None:
        _require(body.state in _DRIVERS_STATES, f"state {body.state} is the host's to say")
        _require(body.state != self.state, f"state {body.state} is said twice in a row")
        self.state = body.state

    def _on_settings_changed(self, body: ev.SettingsChanged) -> None:
        changed = {field.name for field, _ in body.ListFields()}
        _require(bool(changed), "SettingsChanged names what changed")
        for name in changed:
            if name in self.settings:
                self.settings.remove(name)

    def _on_error_raised(self, body: ev.ErrorRaised) -> None:
        _require(body.reason.isupper(), f"an error's reason is UPPER_SNAKE, not {body.reason!r}")
        if self.clears and body.reason == "COMMAND_FAILED":
            self.clears.pop(0)
        elif self.settings and body.reason == "SETTING_REFUSED":
            self.settings.pop(0)

    def _on_cleared(self, _: ev.Cleared) -> None:
        if self.clears:
            self.clears.pop(0)

    def _on_usage_reported(self, body: ev.UsageReported) -> None:
        _require(not body.HasField("total"), "the session's total is the host's to reckon")

    def _on_notice(self, body: ev.Notice) -> None:
        _require(body.level != ev.NOTICE_LEVEL_UNSPECIFIED, "a notice has a level")


def _has_nan(message: ProtoMessage) -> bool:
    """Return whether a number in it is not equal to itself."""
    return "nan" in str(message)
