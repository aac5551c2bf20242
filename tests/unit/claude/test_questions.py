"""Questions: what is offered, what each answer writes, how they end without one."""

from __future__ import annotations

from typing import Any

import pytest

from sessiond.v1 import error_reason_pb2, session_pb2
from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import Refused
from tests.unit.claude.talk import Talk

_RULES = {
    "type": "addRules",
    "rules": [{"toolName": "Bash", "ruleContent": "touch *"}, {"toolName": "Read"}],
    "behavior": "allow",
    "destination": "localSettings",
}
_FOLDERS = {"type": "addDirectories", "directories": ["/a"], "destination": "session"}
_MODE = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
_INPUT = {"command": "touch a", "big": 2**80}


def reply(talk: Talk) -> dict[str, Any]:
    (response,) = talk.replies()
    body: dict[str, Any] = response["response"]
    return body


@pytest.fixture
def asked(talk: Talk) -> Talk:
    talk.turn()
    talk.use("t1")
    suggestions = [_RULES, _FOLDERS, _MODE, {"type": "new"}, _MODE]
    talk.asks("q1", "t1", input=_INPUT, description="Touch a", permission_suggestions=suggestions)
    return talk


def test_each_suggestion_is_an_option_of_its_own(asked: Talk) -> None:
    (question,) = asked.bodies("question_asked")
    assert (question.tool_id, question.prompt) == ("t1", "Allow Bash: Touch a?")
    assert [option.label for option in question.options] == [
        "Allow",
        "Always allow Bash(touch *), Read in this workspace",
        "Allow work in /a for this session",
        "Allow and switch to acceptEdits for this session",
        "Allow with new",
        "Allow and switch to acceptEdits for this session (2)",
        "Deny",
    ]
    kinds = [option.kind for option in question.options]
    assert kinds[0] == ev.OPTION_KIND_ALLOW_ONCE
    assert set(kinds[1:-1]) == {ev.OPTION_KIND_ALLOW_ALWAYS}
    assert kinds[-1] == ev.OPTION_KIND_REJECT_ONCE


def test_allow_gives_the_input_back(asked: Talk) -> None:
    asked.answer("q1", ["Allow"])
    assert reply(asked) == {"behavior": "allow", "updatedInput": _INPUT}


def test_always_gives_that_one_suggestion_back(asked: Talk) -> None:
    asked.answer("q1", ["Allow work in /a for this session"])
    allowed = {"behavior": "allow", "updatedInput": _INPUT, "updatedPermissions": [_FOLDERS]}
    assert reply(asked) == allowed


@pytest.mark.parametrize("note", ["", "not today"])
def test_deny_says_why(asked: Talk, note: str) -> None:
    asked.answer("q1", ["Deny"], note)
    words = note or "The user refused permission for this."
    assert reply(asked) == {"behavior": "deny", "message": words}


def test_an_answer_lets_it_run_again(asked: Talk) -> None:
    asked.answer("q1", ["Allow"])
    states = [body.state for body in asked.bodies("state_changed")]
    assert states[-2:] == [session_pb2.SESSION_STATE_AWAITING_INPUT, session_pb2.SESSION_STATE_RUNNING]


def test_an_answer_to_nothing_is_refused(asked: Talk) -> None:
    asked.answer("q1", ["Allow"])
    with pytest.raises(Refused) as caught:
        asked.driver.answer("q1", ["Allow"], "")
    assert caught.value.reason == error_reason_pb2.ERROR_REASON_QUESTION_NOT_FOUND


def test_questions_end_without_an_answer(asked: Talk) -> None:
    asked.say(type="control_cancel_request", request_id="q1")
    asked.asks("q2", "t1")
    asked.used("t1", "broke", is_error=True)
    asked.use("t2")
    asked.asks("q3", "t2")
    asked.interrupt()
    asked.say(type="control_cancel_request", request_id="q3")
    reasons = {body.question_id: body.reason for body in asked.bodies("question_withdrawn")}
    assert reasons == {
        "q1": ev.WITHDRAW_REASON_EXPIRED,
        "q2": ev.WITHDRAW_REASON_RESOLVED_ELSEWHERE,
        "q3": ev.WITHDRAW_REASON_INTERRUPTED,
    }
    assert asked.replies() == []


def test_two_can_ask_at_once(asked: Talk) -> None:
    asked.use("t2")
    asked.asks("q2", "t2", input={"b": 1})
    asked.answer("q2", ["Allow"])
    assert reply(asked)["updatedInput"] == {"b": 1}
    assert not asked.bodies("question_withdrawn")


def own(*texts: str, **fields: Any) -> dict[str, Any]:
    options = [{"label": "A", "description": "a", "preview": "-A-"}, {"label": "B"}]
    return {"questions": [{"question": t, "header": "H", "options": options, **fields} for t in texts]}


def test_its_own_questions_are_answered_together(talk: Talk) -> None:
    talk.turn()
    talk.asks("q1", "t1", tool="AskUserQuestion", input=own("One?", "Two?", "Three?", multiSelect=True))
    asked = talk.bodies("question_asked")
    assert [body.group_id for body in asked] == ["q1"] * 3
    assert [body.question_id for body in asked] == ["q1/0", "q1/1", "q1/2"]
    talk.answer("q1/1", ["A", "B"])
    talk.answer("q1/0", ["A"], "because")
    assert talk.replies() == []
    talk.answer("q1/2", ["something else"])
    given = reply(talk)["updatedInput"]
    assert given["answers"] == {"One?": "A", "Two?": "A, B", "Three?": "something else"}
    assert given["annotations"] == {"One?": {"preview": "-A-", "notes": "because"}}
    assert given["questions"] == own("One?", "Two?", "Three?", multiSelect=True)["questions"]


def test_an_answer_survives_that_the_request_is_offered_again(talk: Talk) -> None:
    talk.turn()
    given = own("One?", "Two?")
    talk.asks("q1", "t1", tool="AskUserQuestion", input=given)
    talk.answer("q1/0", ["A"])
    talk.adopted()
    request = {"subtype": "can_use_tool", "tool_name": "AskUserQuestion", "tool_use_id": "t1"}
    held = {"type": "control_request", "request_id": "q1", "request": request | {"input": given}}
    talk.respond("initialize", beside={"pending_permission_requests": [held]})
    talk.answer("q1/1", ["B"])
    assert reply(talk)["updatedInput"]["answers"] == {"One?": "A", "Two?": "B"}


def test_a_plan_is_shown_even_when_the_request_lacks_it(talk: Talk) -> None:
    talk.turn()
    talk.use("t1", "ExitPlanMode", plan="1. Do it")
    talk.asks("q1", "t1", tool="ExitPlanMode")
    (question,) = talk.bodies("question_asked")
    assert question.options[0].preview == "1. Do it"
    talk.answer("q1", ["do less"], "much less")
    assert reply(talk) == {"behavior": "deny", "message": "do less\nmuch less"}


def test_a_plan_can_be_approved_with_edits(talk: Talk) -> None:
    talk.turn()
    talk.asks("q1", "t1", tool="ExitPlanMode", input={"plan": "p"})
    talk.answer("q1", ["Approve and accept edits"])
    assert reply(talk)["updatedPermissions"] == [_MODE]


_FORM = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "ok": {"type": "boolean"},
        "c": {"type": "string", "enum": ["r", "g", "r", "Decline"]},
    },
    "required": ["n", "x", "ok", "c"],
}


def elicit(talk: Talk, **fields: Any) -> None:
    request = {"subtype": "elicitation", "mcp_server_name": "s", "message": "Who?", **fields}
    talk.say(type="control_request", request_id="e1", request=request)


def test_a_form_has_the_types_of_its_schema(talk: Talk) -> None:
    talk.turn()
    elicit(talk, mode="form", requested_schema=_FORM)
    labels = [[option.label for option in body.options] for body in talk.bodies("question_asked")]
    assert labels == [["Decline"], ["Decline"], ["Yes", "No", "Decline"], ["r", "g", "Decline"]]
    with pytest.raises(Refused, match="takes a number"):
        talk.driver.answer("e1/0", ["seven"], "")
    with pytest.raises(Refused, match="takes a number"):
        talk.driver.answer("e1/1", ["nan"], "")
    for question_id, words in {"e1/0": "7", "e1/1": "0.5", "e1/2": "No", "e1/3": "g"}.items():
        talk.answer(question_id, [words])
    content = {"n": 7, "x": 0.5, "ok": False, "c": "g"}
    assert reply(talk) == {"action": "accept", "content": content}


def test_declining_one_field_declines_the_form(talk: Talk) -> None:
    talk.turn()
    elicit(talk, mode="form", requested_schema=_FORM)
    talk.answer("e1/2", ["Decline"])
    assert reply(talk) == {"action": "decline"}
    assert len(talk.bodies("question_withdrawn")) == 3


def test_a_link_is_opened_or_not(talk: Talk) -> None:
    talk.turn()
    elicit(talk, mode="url", url="https://example.org")
    (question,) = talk.bodies("question_asked")
    assert question.prompt == "Who?\nhttps://example.org"
    talk.answer("e1", ["Accept"])
    assert reply(talk) == {"action": "accept"}


@pytest.mark.parametrize(
    ("subtype", "answer"),
    [
        ("request_user_dialog", {"behavior": "cancelled"}),
        ("hook_callback", {"continue": True}),
    ],
)
def test_what_people_need_not_see_is_answered_at_once(
    talk: Talk, subtype: str, answer: dict[str, Any]
) -> None:
    talk.say(type="control_request", request_id="x", request={"subtype": subtype})
    assert reply(talk) == answer


def test_a_request_that_nobody_knows_is_answered_with_an_error(talk: Talk) -> None:
    talk.say(type="control_request", request_id="x", request={"subtype": "brand_new"})
    (response,) = talk.replies()
    assert response["subtype"] == "error"
    assert "brand_new" in response["error"]


def test_after_an_adoption_the_open_ones_are_the_agents(asked: Talk) -> None:
    asked.use("t2")
    asked.asks("q2", "t2")
    asked.adopted()
    held = {"subtype": "can_use_tool", "tool_name": "Bash", "tool_use_id": "t2", "input": {}}
    missed = held | {"tool_use_id": "t3"}
    pending = [
        {"type": "control_request", "request_id": "q2", "request": held},
        {"type": "control_request", "request_id": "q3", "request": missed},
    ]
    asked.respond("initialize", beside={"pending_permission_requests": pending})
    assert [body.question_id for body in asked.bodies("question_asked")] == ["q1", "q2", "q3"]
    (withdrawn,) = asked.bodies("question_withdrawn")
    assert withdrawn.question_id == "q1"
    assert withdrawn.reason == ev.WITHDRAW_REASON_RESOLVED_ELSEWHERE
    asked.answer("q3", ["Allow"])
