"""The model's list of things to do: one tool that writes it whole, two that change one entry.

A list changes when the tool has succeeded, by what its structured result says.
"""

from __future__ import annotations

from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import Effect, Emit
from sessiond_drivers.claude.state import Entry, State
from sessiond_drivers.claude.wire import Record, obj, records, text

__all__ = ["changed", "started"]

_WHOLE, _CREATE, _UPDATE = "TodoWrite", "TaskCreate", "TaskUpdate"
_STATES = {
    "pending": ev.PLAN_ITEM_STATE_PENDING,
    "in_progress": ev.PLAN_ITEM_STATE_IN_PROGRESS,
    "completed": ev.PLAN_ITEM_STATE_DONE,
}
_DELETED = "deleted"


def started(state: State, tool_id: str, tool: str, given: Record) -> None:
    """Remember a call that may change the list, with the new words of the entry, if any."""
    if tool in (_WHOLE, _CREATE, _UPDATE):
        state.planning[tool_id] = text(given, "subject")


def changed(state: State, tool_id: str, failed: bool, record: Record) -> list[Effect]:
    """Tell the list when a call has changed it."""
    words = state.planning.pop(tool_id, None)
    if words is None or failed:
        return []
    before = dict(state.todo)
    _apply(state, words, obj(record, "tool_use_result"))
    return [] if state.todo == before else [_told(state)]


def _apply(state: State, words: str, done: Record) -> None:
    if "newTodos" in done:
        entries = records(done, "newTodos")
        state.todo = {
            str(n): Entry(text(e, "content"), text(e, "status")) for n, e in enumerate(entries)
        }
    elif created := obj(done, "task"):
        state.todo[text(created, "id")] = Entry(text(created, "subject") or words, "pending")
    elif (entry_id := text(done, "taskId")) in state.todo:
        entry = state.todo[entry_id]
        status = text(obj(done, "statusChange"), "to") or entry.status
        if status == _DELETED:
            del state.todo[entry_id]
        else:
            state.todo[entry_id] = Entry(words or entry.text, status)


def _told(state: State) -> Effect:
    items = [
        ev.PlanItem(text=e.text, state=_STATES.get(e.status, ev.PLAN_ITEM_STATE_UNSPECIFIED))
        for e in state.todo.values()
    ]
    return Emit(ev.Event(plan_updated=ev.PlanUpdated(items=items)))
