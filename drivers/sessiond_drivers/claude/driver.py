"""The translator of one session: every record to its rule, every verb to its lines."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond_drivers.base import (
    Driver,
    Effect,
    Emit,
    ExitStatus,
    Identified,
    Launch,
    LaunchSpec,
    Message,
    StopPlan,
    Write,
)
from sessiond_drivers.claude import (
    commands,
    messages,
    notices,
    questions,
    settings,
    stream,
    tools,
    turns,
    usage,
)
from sessiond_drivers.claude.config import ClaudeConfig
from sessiond_drivers.claude.launch import BYPASS, STOP, launch
from sessiond_drivers.claude.state import State
from sessiond_drivers.claude.wire import Record, control_request, obj, records, text
from sessiond_drivers.jsonl import decode, text_of
from sessiond_drivers.ledger import Ledger

__all__ = ["CAPABILITIES", "ClaudeDriver"]

CAPABILITIES = session_pb2.DriverCapabilities(
    steer=True,
    append=True,
    unqueue_after_handover=True,
    interrupt=True,
    set_model=True,
    set_permission_mode=True,
    set_effort=True,
    compact=True,
    clear=True,
    native_title=True,
    raw_commands=True,
    images=True,
    resume=True,
    usage=True,
)

_SYNTHETIC = "<synthetic>"
# Estimates, ticks and lists whose news come by other lines.
_SILENT = frozenset({"thinking_tokens", "task_updated", "background_tasks_changed"})

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(State).decode


class ClaudeDriver(Driver):
    """Claude Code in headless stream-json mode; see `sessiond_drivers.base.Driver`."""

    def __init__(self, config: ClaudeConfig) -> None:
        self._config = config
        self._state = State()

    @property
    def capabilities(self) -> session_pb2.DriverCapabilities:
        """All versions can do the same."""
        return CAPABILITIES

    @property
    def between_turns(self) -> bool:
        """Ready, no turn at work or about to begin, and nothing written that it has not read."""
        state = self._state
        at_work = state.busy or state.ledger.turn_id or state.turn.appending
        return state.ready and not at_work and not state.waiting and state.command is None

    def launch(self, spec: LaunchSpec, resume: bool) -> Launch:
        """Start a process; ids of turns and requests go on, and so does the cost."""
        former = self._state
        lost = spec.native_session_id != "" and spec.native_session_id == former.unsaved
        self._state = state = State(
            process=former.process + 1,
            requests=former.requests,
            native_session_id="" if lost else spec.native_session_id,
            named=former.named,
            unsaved=former.unsaved,
            asked=former.asked and not lost,
            todo={} if lost else former.todo,
            bypass=spec.permission_mode == BYPASS,
            ledger=Ledger(turns=former.ledger.turns),
        )
        state.usage.session_cost = former.usage.session_cost
        anew = commands.begun_anew(former) if lost else []
        return launch(self._config, state, spec, [*anew, *self._opening()])

    def line(self, line: bytes) -> list[Effect]:
        """Take one line of stdout."""
        record = decode(line)
        if record is None:
            return notices.no_json(text_of(line))
        kind = text(record, "type")
        if kind == "assistant":
            return self._assistant(record, line)
        rule = _RECORDS.get(kind)
        return rule(self, record) if rule else notices.unknown(record)

    def exited(self, status: ExitStatus) -> list[Effect]:
        """Close what is open, and say why when it never was ready."""
        return turns.exited(self._state, status)

    def adopted(self) -> list[Effect]:
        """Ask again what the program is and which permissions it waits for."""
        return self._opening()

    def message(self, message: Message) -> list[Effect]:
        """Write a message; into a running turn it is read at the next tool boundary."""
        return messages.hand_over(self._state, message)

    def unqueue(self, message_id: str) -> list[Effect]:
        """Ask for a message back."""
        return messages.unqueue(self._state, message_id)

    def answer(self, question_id: str, answers: list[str], note: str) -> list[Effect]:
        """Answer; raises Refused for a question that is not open."""
        return questions.answer(self._state, question_id, answers, note)

    def interrupt(self) -> list[Effect]:
        """End the turn. What waits in the program survives and is read next."""
        state = self._state
        effects = questions.drop_all(state, ev.WITHDRAW_REASON_INTERRUPTED)
        state.turn.interrupting = bool(state.ledger.turn_id or state.waiting)
        return [*effects, Write(control_request(state.request("interrupt"), "interrupt"))]

    def set_model(self, model: str) -> list[Effect]:
        """Ask for another model; it is in force from the next turn."""
        return settings.set_model(self._state, model)

    def set_permission_mode(self, permission_mode: str) -> list[Effect]:
        """Ask for another permission mode."""
        return settings.set_permission_mode(self._state, permission_mode)

    def set_effort(self, effort: str) -> list[Effect]:
        """Ask for another effort."""
        return settings.set_effort(self._state, effort)

    def set_title(self, title: str) -> list[Effect]:
        """Tell the title."""
        return settings.set_title(self._state, title)

    def compact(self, command_id: str, instructions: str) -> list[Effect]:
        """Compact the context."""
        return commands.run(self._state, command_id, f"/compact {instructions}")

    def clear(self, command_id: str) -> list[Effect]:
        """Begin a new conversation in the same process."""
        return commands.run(self._state, command_id, "/clear")

    def check_command(self, text: str) -> None:
        """Raise Refused for a command that the program does not list."""
        commands.check(self._state, text)

    def run_command(self, command_id: str, text: str) -> list[Effect]:
        """Run a command of the program's own."""
        return commands.run(self._state, command_id, text)

    def stop(self) -> StopPlan:
        """Let it end its turn and save."""
        self._state.stopping = True
        return STOP

    def snapshot(self) -> bytes:
        """All state, as MessagePack."""
        return _encode(self._state)

    def restore(self, snapshot: bytes) -> None:
        """Take back a snapshot; what an older version did not know has its default."""
        self._state = _decode(snapshot)

    def _opening(self) -> list[Effect]:
        return [Write(control_request(self._state.request("initialize"), "initialize"))]

    def _assistant(self, record: Record, line: bytes) -> list[Effect]:
        state, message = self._state, obj(record, "message")
        blocks, parent = records(message, "content"), text(record, "parent_tool_use_id")
        if text(message, "model") == _SYNTHETIC:
            words = "\n".join(part for block in blocks if (part := text(block, "text")))
            return turns.synthetic(state, record, words)
        effects: list[Effect] = []
        if not parent and text(message, "id") != state.stream.message_id:
            effects += stream.superseded(state, text(message, "id"))
            effects += usage.whole_call(state, obj(message, "usage"))
        exact = tools.inputs(line)
        for block in blocks:
            kind = text(block, "type")
            if kind in ("text", "thinking"):
                effects += stream.whole(state, record, block, parent)
            elif kind.endswith("tool_use"):
                effects += tools.start(state, block, parent, exact)
            elif kind.endswith("tool_result"):
                effects += tools.result(state, block, record)
        return effects

    def _user(self, record: Record) -> list[Effect]:
        state = self._state
        results = [
            block
            for block in records(obj(record, "message"), "content")
            if text(block, "type").endswith("tool_result")
        ]
        if not results:
            return messages.echoed(state, record) if record.get("isReplay") is True else []
        # Results come when the model's message is complete: what is open was cut off.
        cut = [] if text(record, "parent_tool_use_id") else stream.retract_unconfirmed(state)
        state.woken = False
        return [*cut, *(e for block in results for e in tools.result(state, block, record))]

    def _stream_event(self, record: Record) -> list[Effect]:
        return stream.stream_event(self._state, record)

    def _result(self, record: Record) -> list[Effect]:
        return turns.result(self._state, record)

    def _lifecycle(self, record: Record) -> list[Effect]:
        return messages.lifecycle(self._state, record)

    def _control_request(self, record: Record) -> list[Effect]:
        return questions.asked(self._state, record)

    def _cancel_request(self, record: Record) -> list[Effect]:
        return questions.cancelled(self._state, record)

    def _conversation_reset(self, record: Record) -> list[Effect]:
        return commands.cleared(self._state)

    def _rate_limit(self, record: Record) -> list[Effect]:
        return notices.limit(self._state, record)

    def _tick(self, record: Record) -> list[Effect]:
        return []

    def _system(self, record: Record) -> list[Effect]:
        subtype = text(record, "subtype")
        if rule := _SYSTEM.get(subtype):
            return rule(self._state, record)
        return [] if subtype in _SILENT else notices.unknown(record)

    def _control_response(self, record: Record) -> list[Effect]:
        response = obj(record, "response")
        # The program also echoes our own answers; those ids are not ours.
        pending = self._state.pending.pop(text(response, "request_id"), None)
        if pending is None:
            return []
        failed = text(response, "subtype") != "success"
        if pending.verb == "initialize":
            return self._initialized(response)
        if pending.verb == "interrupt":
            # Idle all along: nothing will end, so nothing may look interrupted later.
            state = self._state
            state.turn.interrupting = bool(state.ledger.turn_id) and state.turn.interrupting
            return []
        payload = obj(response, "response")
        if pending.verb == "unqueue":
            return messages.settled(self._state, pending, payload.get("cancelled") is True)
        if failed:
            asked = pending.verb != "applied" or pending.subject
            return settings.refused(pending, text(response, "error")) if asked else []
        return settings.answered(self._state, pending, payload)

    def _initialized(self, response: Record) -> list[Effect]:
        state, payload = self._state, obj(response, "response")
        effects: list[Effect] = []
        if text(response, "subtype") != "success":
            words = text(response, "error") or "the agent refused the opening request"
            raised = ev.ErrorRaised(reason="AGENT_FAILED", message=words)
            effects.append(Emit(ev.Event(error_raised=raised)))
        version = text(payload, "claude_code_version")
        if version and version != state.agent_version:
            state.agent_version = version
            effects.append(Identified(agent_version=version))
        first, state.ready = not state.ready, True
        if not first:
            return [*effects, *questions.reoffered(state, response), *_state_told(state, payload)]
        effects += settings.offered(state, self._config, payload)
        effects += settings.confirmed(state, mode=text(payload, "current_permission_mode"))
        effects += settings.ask_applied(state)
        if not state.busy and not state.ledger.turn_id:
            effects += state.ledger.change_state(session_pb2.SESSION_STATE_IDLE)
        return effects


def _state_told(state: State, payload: Record) -> list[Effect]:
    told = text(payload, "session_state")
    return turns.state_changed(state, {"state": told}) if told == "idle" else []


def _retry(state: State, record: Record) -> list[Effect]:
    return notices.retry(record)


def _denied(state: State, record: Record) -> list[Effect]:
    state.denied.append(text(record, "tool_use_id"))
    return []


def _title(state: State, record: Record) -> list[Effect]:
    return settings.title_changed(state, text(record, "title"))


_RECORDS: dict[str, Callable[[ClaudeDriver, Record], list[Effect]]] = {
    "user": ClaudeDriver._user,
    "system": ClaudeDriver._system,
    "stream_event": ClaudeDriver._stream_event,
    "result": ClaudeDriver._result,
    "command_lifecycle": ClaudeDriver._lifecycle,
    "control_request": ClaudeDriver._control_request,
    "control_response": ClaudeDriver._control_response,
    "control_cancel_request": ClaudeDriver._cancel_request,
    "conversation_reset": ClaudeDriver._conversation_reset,
    "rate_limit_event": ClaudeDriver._rate_limit,
    "tool_progress": ClaudeDriver._tick,
    "keep_alive": ClaudeDriver._tick,
}

_SYSTEM: dict[str, Callable[[State, Record], list[Effect]]] = {
    "init": turns.init,
    "status": turns.status,
    "session_state_changed": turns.state_changed,
    "compact_boundary": commands.compact_boundary,
    "api_retry": _retry,
    "model_refusal_no_fallback": notices.refusal,
    "permission_denied": _denied,
    "session_title_changed": _title,
    "task_started": notices.task_event,
    "task_progress": notices.task_event,
    "task_notification": notices.notification,
}
