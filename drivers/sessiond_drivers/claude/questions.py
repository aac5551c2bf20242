"""What the agent asks people: permissions, plans, its own questions; and their answers.

A request may hold several questions. They share a group, and the answer is written when all of them are
answered. Nothing confirms an answer but the result of the tool.
"""

from __future__ import annotations

from sessiond.v1 import error_reason_pb2, session_pb2
from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import Effect, Refused, Write
from sessiond_drivers.claude import forms
from sessiond_drivers.claude.state import Ask, Part, State
from sessiond_drivers.claude.wire import (
    Record,
    control_refusal,
    control_response,
    dumps,
    loads,
    obj,
    records,
    text,
)

__all__ = ["answer", "asked", "cancelled", "drop_all", "nobody_asks", "reoffered", "settled_by_result"]

_ALLOW = "Allow"
_DENY = "Deny"
_APPROVE = "Approve"
_APPROVE_EDITS = "Approve and accept edits"
_KEEP_PLANNING = "Keep planning"
_DENIED = "The user refused permission for this."
_NOT_YET = "The user wants to go on planning."

_ACCEPT_EDITS: Record = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
_PLACES = {
    "session": "for this session",
    "localSettings": "in this workspace",
    "projectSettings": "in this project",
    "userSettings": "everywhere",
}


def asked(state: State, record: Record) -> list[Effect]:
    """Take a control request of the agent. It waits until every one of them is answered."""
    request_id, request = text(record, "request_id"), obj(record, "request")
    subtype = text(request, "subtype")
    if not request_id or request_id in state.asks:
        return []
    if subtype == "can_use_tool":
        return _can_use_tool(state, request_id, request)
    if subtype == "elicitation":
        ask, asking = forms.elicited(request_id, request)
        state.asks[request_id] = ask
        return [e for question in asking for e in state.ledger.ask(question)]
    if subtype == "request_user_dialog":
        return [Write(control_response(request_id, {"behavior": "cancelled"}))]
    if subtype == "hook_callback":
        return [Write(control_response(request_id, {"continue": True}))]
    return [Write(control_refusal(request_id, f"{subtype or 'this request'} is not supported"))]


def reoffered(state: State, response: Record) -> list[Effect]:
    """Reconcile with the requests that the agent still holds, as it told a new host."""
    held = records(response, "pending_permission_requests")
    effects: list[Effect] = []
    for record in held:
        effects += asked(state, record)
    still = {text(record, "request_id") for record in held}
    for request_id in [r for r, ask in state.asks.items() if ask.kind not in ("form", "link")]:
        if request_id not in still:
            effects += _withdraw(state, request_id, ev.WITHDRAW_REASON_RESOLVED_ELSEWHERE)
    return effects


def cancelled(state: State, record: Record) -> list[Effect]:
    """The agent no longer waits for an answer."""
    reason = ev.WITHDRAW_REASON_INTERRUPTED if state.turn.interrupting else ev.WITHDRAW_REASON_EXPIRED
    return _withdraw(state, text(record, "request_id"), reason)


def settled_by_result(state: State, tool_id: str) -> list[Effect]:
    """The tool call has its result: nobody waits for its permission any more."""
    for request_id in [r for r, ask in state.asks.items() if ask.tool_id == tool_id]:
        return _withdraw(state, request_id, ev.WITHDRAW_REASON_RESOLVED_ELSEWHERE)
    return []


def drop_all(state: State, reason: ev.WithdrawReason.ValueType) -> list[Effect]:
    """Withdraw every question; the agent gives up its requests by itself."""
    state.asks.clear()
    return [*state.ledger.withdraw_questions(reason), *nobody_asks(state)]


def nobody_asks(state: State) -> list[Effect]:
    """Say that the agent works again when nothing is left to wait for."""
    if state.ledger.questions or state.ledger.state != session_pb2.SESSION_STATE_AWAITING_INPUT:
        return []
    return state.ledger.change_state(session_pb2.SESSION_STATE_RUNNING)


def answer(state: State, question_id: str, answers: list[str], note: str) -> list[Effect]:
    """Take one answer, and write the reply when the request has all of them.

    Raises Refused for a question that is not open or a value that its form does not take.
    """
    request_id, ask, part = _find(state, question_id)
    if ask.kind == "form":
        forms.check(part, answers)
    part.answered, part.answers, part.note = True, list(answers), note
    effects = state.ledger.answered(question_id) + nobody_asks(state)
    if forms.declines(ask, answers):
        effects += _withdraw_rest(state, ask)
    elif not all(p.answered for p in ask.parts):
        return effects
    del state.asks[request_id]
    reply = control_response(request_id, _response(state, ask))
    # The answer is what lets the agent go on: it is written before anything is said about it.
    return [Write(reply), *effects]


def _find(state: State, question_id: str) -> tuple[str, Ask, Part]:
    for request_id, ask in state.asks.items():
        for part in ask.parts:
            if part.question_id == question_id and not part.answered:
                return request_id, ask, part
    raise Refused(
        error_reason_pb2.ERROR_REASON_QUESTION_NOT_FOUND,
        f"no question {question_id!r} is open; see the session's newest QuestionAsked events",
        "question_id",
    )


def _withdraw(state: State, request_id: str, reason: ev.WithdrawReason.ValueType) -> list[Effect]:
    ask = state.asks.pop(request_id, None)
    parts = ask.parts if ask else []
    effects = [e for p in parts for e in state.ledger.withdraw_question(p.question_id, reason)]
    return effects + nobody_asks(state)


def _withdraw_rest(state: State, ask: Ask) -> list[Effect]:
    reason = ev.WITHDRAW_REASON_RESOLVED_ELSEWHERE
    effects = [e for p in ask.parts for e in state.ledger.withdraw_question(p.question_id, reason)]
    return effects + nobody_asks(state)


def _can_use_tool(state: State, request_id: str, request: Record) -> list[Effect]:
    tool, tool_id, given = (
        text(request, "tool_name"),
        text(request, "tool_use_id"),
        obj(request, "input"),
    )
    parent = state.ledger.tools.get(tool_id, "")
    ask = Ask("permission", [Part(request_id, tool)], tool_id, dumps(given))
    if tool == "AskUserQuestion" and records(given, "questions"):
        ask.kind = "questions"
        asking = _own_questions(request_id, ask, given)
    elif tool == "ExitPlanMode":
        ask.kind = "plan"
        asking = [_plan(request_id, text(given, "plan") or state.plans.get(tool_id, ""))]
    else:
        asking = [_permission(request_id, ask, request)]
    state.asks[request_id] = ask
    for question in asking:
        if ask.kind != "questions":
            question.tool_id = tool_id
    return [e for question in asking for e in state.ledger.ask(question, parent)]


def _permission(request_id: str, ask: Ask, request: Record) -> ev.QuestionAsked:
    tool = text(request, "display_name") or text(request, "tool_name")
    detail = text(request, "title") or text(request, "description") or text(request, "decision_reason")
    options = [ev.QuestionOption(label=_ALLOW, kind=ev.OPTION_KIND_ALLOW_ONCE)]
    for suggestion in records(request, "permission_suggestions"):
        label = _unique(_suggestion_label(suggestion), ask.choices)
        ask.choices[label] = dumps(suggestion)
        options.append(ev.QuestionOption(label=label, kind=ev.OPTION_KIND_ALLOW_ALWAYS))
    options.append(ev.QuestionOption(label=_DENY, kind=ev.OPTION_KIND_REJECT_ONCE))
    prompt = f"Allow {tool}: {detail}?" if detail else f"Allow {tool}?"
    return ev.QuestionAsked(question_id=request_id, prompt=prompt, header=tool, options=options)


def _suggestion_label(suggestion: Record) -> str:
    place = _PLACES.get(text(suggestion, "destination"), "")
    kind = text(suggestion, "type")
    if kind == "addRules":
        rules = [
            f"{text(r, 'toolName')}({c})" if (c := text(r, "ruleContent")) else text(r, "toolName")
            for r in records(suggestion, "rules")
        ]
        words = "Always allow " + ", ".join(rules)
    elif kind == "addDirectories":
        found = suggestion.get("directories")
        names = [d for d in found if isinstance(d, str)] if isinstance(found, list) else []
        words = "Allow work in " + ", ".join(names)
    elif kind == "setMode":
        words = f"Allow and switch to {text(suggestion, 'mode')}"
    else:
        words = f"Allow with {kind or 'more'}"
    return f"{words} {place}".strip()


def _unique(label: str, taken: dict[str, str]) -> str:
    candidate, number = label, 1
    while candidate in taken or candidate in (_ALLOW, _DENY):
        number += 1
        candidate = f"{label} ({number})"
    return candidate


def _plan(request_id: str, plan: str) -> ev.QuestionAsked:
    once = ev.OPTION_KIND_ALLOW_ONCE
    return ev.QuestionAsked(
        question_id=request_id,
        header="Plan",
        prompt="Carry out this plan?",
        options=[
            ev.QuestionOption(label=_APPROVE, preview=plan, kind=once),
            ev.QuestionOption(label=_APPROVE_EDITS, preview=plan, kind=ev.OPTION_KIND_ALLOW_ALWAYS),
            ev.QuestionOption(
                label=_KEEP_PLANNING,
                description="The note, or an answer in own words, says what to change.",
                kind=ev.OPTION_KIND_REJECT_ONCE,
            ),
        ],
        allow_text=True,
    )


def _own_questions(request_id: str, ask: Ask, given: Record) -> list[ev.QuestionAsked]:
    ask.parts = []
    asking: list[ev.QuestionAsked] = []
    for number, question in enumerate(records(given, "questions")):
        part = Part(f"{request_id}/{number}", text(question, "question"))
        options: dict[str, ev.QuestionOption] = {}
        for option in records(question, "options"):
            label, preview = text(option, "label"), text(option, "preview")
            options[label] = ev.QuestionOption(
                label=label, description=text(option, "description"), preview=preview
            )
            if preview:
                part.previews[label] = preview
        ask.parts.append(part)
        asking.append(
            ev.QuestionAsked(
                question_id=part.question_id,
                prompt=part.name,
                header=text(question, "header"),
                options=list(options.values()),
                multi_select=question.get("multiSelect") is True,
                allow_text=True,
                group_id=request_id,
            )
        )
    return asking


def _response(state: State, ask: Ask) -> Record:
    if ask.kind in ("form", "link"):
        return forms.response(ask)
    given = loads(ask.input)
    if ask.kind == "questions":
        return {"behavior": "allow", "updatedInput": given | _own_answers(ask)}
    part = ask.parts[0]
    picked = part.answers[0] if part.answers else ""
    allow: Record = {"behavior": "allow", "updatedInput": given}
    if picked in (_ALLOW, _APPROVE):
        return allow
    if ask.kind == "plan" and picked == _APPROVE_EDITS:
        return allow | {"updatedPermissions": [_ACCEPT_EDITS]}
    if picked in ask.choices:
        return allow | {"updatedPermissions": [loads(ask.choices[picked])]}
    state.denied.append(ask.tool_id)
    words = part.note
    if ask.kind == "plan" and picked != _KEEP_PLANNING:
        words = "\n".join(filter(None, (picked, part.note)))
    default = _NOT_YET if ask.kind == "plan" else _DENIED
    return {"behavior": "deny", "message": words or default}


def _own_answers(ask: Ask) -> Record:
    answers: Record = {}
    annotations: Record = {}
    for part in ask.parts:
        if part.answers:
            # A list is taken too, but comes out without the space.
            answers[part.name] = ", ".join(part.answers)
        extra: Record = {}
        if len(part.answers) == 1 and part.answers[0] in part.previews:
            extra["preview"] = part.previews[part.answers[0]]
        if part.note:
            extra["notes"] = part.note
        if extra:
            annotations[part.name] = extra
    return {"answers": answers} | ({"annotations": annotations} if annotations else {})
