"""A driver whose agent is the test: every line that it could say is said when the test wants it.

Lines: `ready`, `take ID`, `end`, `ask ID LABEL...`, `text WORDS`, `drop ID`, `settle ID OUTCOME`,
`start` (a turn by itself), `confirm NAME VALUE`.
"""

from __future__ import annotations

import msgspec

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_drivers.base import (
    Driver,
    Dropped,
    Effect,
    Emit,
    ExitStatus,
    Launch,
    LaunchSpec,
    Message,
    Settle,
    StopPlan,
    Taken,
    Write,
)
from sessiond_drivers.ledger import Ledger


class _Memory(msgspec.Struct):
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    ready: bool = False
    busy: bool = False
    unread: list[str] = []


class ScriptedDriver(Driver):
    """Records what it was asked in `asked`. A forgetful one closes nothing when its process ends."""

    def __init__(self, *, steer: bool = True, forgetful: bool = False) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._steer = steer
        self._forgetful = forgetful
        self._memory = _Memory()

    @property
    def capabilities(self) -> session_pb2.DriverCapabilities:
        return session_pb2.DriverCapabilities(
            steer=self._steer,
            append=True,
            unqueue_after_handover=True,
            interrupt=True,
            set_model=True,
            compact=True,
            clear=True,
            raw_commands=True,
        )

    @property
    def between_turns(self) -> bool:
        return self._memory.ready and not self._memory.busy

    @property
    def unread(self) -> list[str]:
        """Messages handed over that the agent has not read, in order."""
        return self._memory.unread

    def launch(self, spec: LaunchSpec, resume: bool) -> Launch:
        self.launched_with = spec
        self._memory = _Memory()
        return Launch(("agent",), effects=(Write(b"hello\n"),))

    def line(self, line: bytes) -> list[Effect]:
        words = line.decode().split()
        memory, ledger = self._memory, self._memory.ledger
        match words:
            case ["ready"]:
                memory.ready = True
                return ledger.change_state(session_pb2.SESSION_STATE_IDLE)
            case ["start"]:
                memory.busy = True
                return ledger.start_turn(ev.TURN_ORIGIN_AGENT)
            case ["take", message_id]:
                memory.unread.remove(message_id)
                memory.busy = True
                return [*ledger.start_turn(ev.TURN_ORIGIN_MESSAGE), Taken(message_id)]
            case ["append", message_id]:
                memory.unread.remove(message_id)
                return [Taken(message_id)]
            case ["drop", message_id]:
                memory.unread.remove(message_id)
                return [Dropped(message_id)]
            case ["settle", message_id, outcome]:
                if outcome == "dropped":
                    memory.unread.remove(message_id)
                name = f"UNQUEUE_OUTCOME_{outcome.upper()}"
                return [Settle(message_id, api.UnqueueOutcome.Value(name))]
            case ["ask", question_id, *labels]:
                options = [ev.QuestionOption(label=label) for label in labels]
                return ledger.ask(ev.QuestionAsked(question_id=question_id, options=options))
            case ["text", *rest]:
                return [Emit(ev.Event(assistant_text=ev.AssistantText(delta=" ".join(rest))))]
            case ["end"]:
                memory.busy = bool(memory.unread)
                done = ledger.end_turn(ev.TURN_OUTCOME_COMPLETED, ev.TURN_END_REASON_DONE)
                return [*done, *ledger.change_state(session_pb2.SESSION_STATE_IDLE)]
        raise ValueError(f"the agent said something unheard of: {line!r}")

    def exited(self, status: ExitStatus) -> list[Effect]:
        self._memory.ready = False
        self._memory.unread.clear()
        if self._forgetful:
            return []
        return self._memory.ledger.end_turn(
            ev.TURN_OUTCOME_FAILED,
            ev.TURN_END_REASON_AGENT_EXITED,
            withdraw=ev.WITHDRAW_REASON_AGENT_EXITED,
        )

    def adopted(self) -> list[Effect]:
        return []

    def message(self, message: Message) -> list[Effect]:
        self.asked.append(("message", message.message_id, message.text))
        self._memory.unread.append(message.message_id)
        if not message.append:
            self._memory.busy = True
        return [Write(b"message\n")]

    def unqueue(self, message_id: str) -> list[Effect]:
        self.asked.append(("unqueue", message_id))
        return [Write(b"unqueue\n")]

    def answer(self, question_id: str, answers: list[str], note: str) -> list[Effect]:
        self.asked.append(("answer", question_id, *answers))
        return [Write(b"answer\n"), *self._memory.ledger.answered(question_id)]

    def interrupt(self) -> list[Effect]:
        self.asked.append(("interrupt",))
        withdrawn = self._memory.ledger.withdraw_questions(ev.WITHDRAW_REASON_INTERRUPTED)
        return [*withdrawn, Write(b"interrupt\n")]

    def set_model(self, model: str) -> list[Effect]:
        self.asked.append(("set_model", model))
        return [Emit(ev.Event(settings_changed=ev.SettingsChanged(model=model)))]

    def compact(self, command_id: str, instructions: str) -> list[Effect]:
        self._memory.busy = True
        self.asked.append(("compact", command_id))
        return self._memory.ledger.start_turn(ev.TURN_ORIGIN_COMMAND)

    def clear(self, command_id: str) -> list[Effect]:
        self.asked.append(("clear", command_id))
        return [Emit(ev.Event(cleared=ev.Cleared()))]

    def stop(self) -> StopPlan:
        return StopPlan(close_stdin=True)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self._memory)

    def restore(self, snapshot: bytes) -> None:
        self._memory = msgspec.msgpack.decode(snapshot, type=_Memory)
