"""What is open in a session, shared by drivers: the turn, its tools and its questions.

Each call returns the effects that keep the obligations: every ToolStarted gets one ToolEnded, every
QuestionAsked one QuestionAnswered or QuestionWithdrawn, every TurnStarted one TurnEnded.
"""

from __future__ import annotations

import msgspec
from google.protobuf.duration_pb2 import Duration

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond_drivers.base import Effect, Emit

_MILLISECOND = 1_000_000


class Ledger(msgspec.Struct):
    """Open turn, tools and questions of one process; part of a driver's snapshot.

    `tools` maps an open tool id to its parent tool id ("" at the top). `questions` holds the ids of open
    questions in the order asked.
    """

    turn_id: str = ""
    turns: int = 0
    state: int = session_pb2.SESSION_STATE_UNSPECIFIED
    tools: dict[str, str] = {}
    questions: list[str] = []

    def start_turn(self, origin: ev.TurnOrigin.ValueType) -> list[Effect]:
        """Open a turn unless one is open, and say running."""
        effects: list[Effect] = []
        if not self.turn_id:
            self.turns += 1
            self.turn_id = f"turn-{self.turns}"
            started = ev.TurnStarted(turn_id=self.turn_id, origin=origin)
            effects.append(Emit(ev.Event(turn_started=started)))
        return effects + self.change_state(session_pb2.SESSION_STATE_RUNNING)

    def end_turn(
        self,
        outcome: ev.TurnOutcome.ValueType,
        reason: ev.TurnEndReason.ValueType,
        message: str = "",
        duration_ms: int | None = None,
        steps: int = 0,
        withdraw: ev.WithdrawReason.ValueType = ev.WITHDRAW_REASON_INTERRUPTED,
    ) -> list[Effect]:
        """Close what is open and the turn itself; nothing when no turn is open."""
        effects = self.withdraw_questions(withdraw) + self.end_tools()
        if self.turn_id:
            ended = ev.TurnEnded(
                turn_id=self.turn_id, outcome=outcome, reason=reason, message=message, steps=steps
            )
            if duration_ms is not None:
                seconds, rest = divmod(duration_ms, 1000)
                ended.duration.CopyFrom(Duration(seconds=seconds, nanos=rest * _MILLISECOND))
            effects.append(Emit(ev.Event(turn_ended=ended)))
            self.turn_id = ""
        return effects

    def start_tool(
        self, tool_id: str, tool: str, input_json: str, parent: str = "", title: str = ""
    ) -> list[Effect]:
        """Open a tool call; nothing when it is open already."""
        if tool_id in self.tools:
            return []
        self.tools[tool_id] = parent
        started = ev.ToolStarted(tool_id=tool_id, tool=tool, input_json=input_json, title=title)
        return [Emit(ev.Event(parent_tool_id=parent, tool_started=started))]

    def end_tool(self, tool_id: str, output: str, outcome: ev.ToolOutcome.ValueType) -> list[Effect]:
        """Close a tool call; nothing when it is not open."""
        if tool_id not in self.tools:
            return []
        parent = self.tools.pop(tool_id)
        ended = ev.ToolEnded(tool_id=tool_id, output=output, outcome=outcome)
        return [Emit(ev.Event(parent_tool_id=parent, tool_ended=ended))]

    def end_tools(self) -> list[Effect]:
        """Close every open tool call as interrupted, innermost first."""
        effects: list[Effect] = []
        for tool_id in reversed(list(self.tools)):
            effects += self.end_tool(tool_id, "", ev.TOOL_OUTCOME_INTERRUPTED)
        return effects

    def ask(self, question: ev.QuestionAsked, parent: str = "") -> list[Effect]:
        """Open a question and say that input is awaited; nothing when it is open already."""
        if question.question_id in self.questions:
            return []
        self.questions.append(question.question_id)
        asked = Emit(ev.Event(parent_tool_id=parent, question_asked=question))
        return [asked, *self.change_state(session_pb2.SESSION_STATE_AWAITING_INPUT)]

    def answered(self, question_id: str) -> list[Effect]:
        """Close a question that the host reported answered; running again after the last one."""
        if question_id in self.questions:
            self.questions.remove(question_id)
        if self.questions or not self.turn_id:
            return []
        return self.change_state(session_pb2.SESSION_STATE_RUNNING)

    def withdraw_question(self, question_id: str, reason: ev.WithdrawReason.ValueType) -> list[Effect]:
        """Close a question without an answer; nothing when it is not open."""
        if question_id not in self.questions:
            return []
        self.questions.remove(question_id)
        withdrawn = ev.QuestionWithdrawn(question_id=question_id, reason=reason)
        return [Emit(ev.Event(question_withdrawn=withdrawn))]

    def withdraw_questions(self, reason: ev.WithdrawReason.ValueType) -> list[Effect]:
        """Close every open question without an answer."""
        effects: list[Effect] = []
        for question_id in list(self.questions):
            effects += self.withdraw_question(question_id, reason)
        return effects

    def change_state(self, state: session_pb2.SessionState.ValueType) -> list[Effect]:
        """Say the state when it is another than the last one said."""
        if state == self.state:
            return []
        self.state = state
        return [Emit(ev.Event(state_changed=ev.StateChanged(state=state)))]
