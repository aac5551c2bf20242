"""What the echo driver knows of its agent: the part that a snapshot holds."""

from __future__ import annotations

import msgspec

from sessiond.v1 import error_reason_pb2, session_pb2
from sessiond.v1 import event_pb2 as ev
from sessiond.v1.session_service_pb2 import UnqueueOutcome
from sessiond_drivers.base import Effect, Emit, Settle
from sessiond_drivers.ledger import Ledger

# The agent's name of a setting -> the contract's.
SETTINGS = {"model": "model", "mode": "permission_mode", "effort": "effort", "title": "title"}
_RESTING = (session_pb2.SESSION_STATE_UNSPECIFIED, session_pb2.SESSION_STATE_IDLE)
# Requests that start a turn, or must be done before one starts.
_COMMANDS = ("compact", "clear", "command")


class Request(msgspec.Struct):
    """What was asked of the agent and not yet confirmed: a setting's name or a command's kind."""

    what: str
    command_id: str = ""


class State(msgspec.Struct):
    """Everything the next input depends on.

    `pending` maps each message handed over and not read to whether it is an append. `unqueues` holds
    the messages asked back, in order, `became` what happened to them since. `requests` are open, by the
    id the agent echoes. `resuming` says what the process was started for, until it is ready.
    """

    ready: bool = False
    resuming: bool = False
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    pending: dict[str, bool] = {}
    unqueues: list[str] = []
    became: dict[str, int] = {}
    requests: dict[str, Request] = {}
    last_request: int = 0
    commands: list[str] = []
    settings: dict[str, str] = {}

    def next_process(self, resuming: bool = False) -> State:
        """Return the state of the session's next process; its turn ids go on where this one's end."""
        return State(resuming=resuming, ledger=Ledger(turns=self.ledger.turns))

    @property
    def expects_turn(self) -> bool:
        """Whether something on its way will start a turn, or must be done before one."""
        if not all(self.pending.values()):
            return True
        return any(request.what in _COMMANDS for request in self.requests.values())

    @property
    def between_turns(self) -> bool:
        """Whether an input handed over now would start a turn of its own."""
        return self.ready and not self.ledger.turn_id and not self.expects_turn

    def say_state(self) -> list[Effect]:
        """Say the state that follows from what is open, when it is another than the last one said."""
        if self.ledger.questions:
            return self.ledger.change_state(session_pb2.SESSION_STATE_AWAITING_INPUT)
        if self.ledger.turn_id:
            return self.ledger.change_state(session_pb2.SESSION_STATE_RUNNING)
        if self.between_turns:
            return self.ledger.change_state(session_pb2.SESSION_STATE_IDLE)
        if self.ledger.state in _RESTING:
            return []
        # The next turn is on its way: it did not rest in between.
        return self.ledger.change_state(session_pb2.SESSION_STATE_RUNNING)

    def answered(self, question_id: str) -> list[Effect]:
        """Close a question and say the state after it."""
        return self.ledger.answered(question_id) + self.say_state()

    def resolve(self, message_id: str, outcome: UnqueueOutcome.ValueType) -> bool:
        """Note that a message is read or will never be; False when it does not wait."""
        if self.pending.pop(message_id, None) is None:
            return False
        if message_id in self.unqueues:
            self.became[message_id] = outcome
        return True

    def settle(self, message_id: str, outcome: UnqueueOutcome.ValueType) -> Settle:
        """Close the first call that asked this message back: what happened to it counts, if known."""
        known = self.became.get(message_id)
        self.unqueues.remove(message_id)
        if message_id not in self.unqueues:
            self.became.pop(message_id, None)
        return Settle(message_id, outcome if known is None else UnqueueOutcome.ValueType(known))

    def open_request(self, what: str, command_id: str) -> str:
        """Note a request; return the id to send along."""
        self.last_request += 1
        name = f"r{self.last_request}"
        self.requests[name] = Request(what, command_id)
        return name

    def close_request(self, name: str, *kinds: str) -> bool:
        """Close a request as done; False when no request of these kinds is open under that name."""
        request = self.requests.get(name)
        if request is None or request.what not in kinds:
            return False
        del self.requests[name]
        return True

    def failed(self, request: str, why: str) -> Emit:
        """Close a request as failed."""
        what = self.requests.pop(request).what
        reason = error_reason_pb2.ERROR_REASON_SETTING_REFUSED
        if what in _COMMANDS:
            reason = error_reason_pb2.ERROR_REASON_COMMAND_FAILED
        return error(reason, f"{what}: {why}")


def error(reason: error_reason_pb2.ErrorReason.ValueType, message: str) -> Emit:
    """Return an ErrorRaised with a reason of the contract."""
    name = error_reason_pb2.ErrorReason.Name(reason).removeprefix("ERROR_REASON_")
    return Emit(ev.Event(error_raised=ev.ErrorRaised(reason=name, message=message)))
