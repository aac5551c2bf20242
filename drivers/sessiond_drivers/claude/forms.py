"""Elicitation: a form or a link that a tool server wants filled in or opened.

Each field of a form is a question of its own in one group; picking "Decline" in any of them declines the
whole, and "Leave out" a field that is not required. What a form sends back has the types of its schema.
"""

from __future__ import annotations

import math
from typing import Any

from sessiond.v1 import error_reason_pb2
from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import Refused
from sessiond_drivers.claude.state import Ask, Part
from sessiond_drivers.claude.wire import Record, dumps, loads, obj, strings, text

__all__ = ["check", "declines", "elicited", "response"]

_ACCEPT = "Accept"
_DECLINE = "Decline"
_LEAVE_OUT = "Leave out"
_OWN = (_DECLINE, _LEAVE_OUT)
_YES, _NO = "Yes", "No"


def elicited(request_id: str, request: Record) -> tuple[Ask, list[ev.QuestionAsked]]:
    """Return what to remember of a request and the questions that it asks."""
    server, message = text(request, "mcp_server_name"), text(request, "message")
    form = obj(request, "requested_schema")
    fields = {n: f for n, f in obj(form, "properties").items() if n}
    if text(request, "mode") == "url" or not fields:
        link = text(request, "url")
        prompt = "\n".join(filter(None, (message, link)))
        asking = ev.QuestionAsked(
            question_id=request_id,
            header=server,
            prompt=prompt,
            options=[_option(_ACCEPT), _declining()],
        )
        return Ask("link", [Part(request_id, "")]), [asking]
    ask = Ask("form", [])
    questions: list[ev.QuestionAsked] = []
    for number, (name, schema) in enumerate(fields.items()):
        schema = schema if isinstance(schema, dict) else {}
        part = Part(f"{request_id}/{number}", name, schema=dumps(schema))
        options = [_option(label) for label in _labels(schema)]
        optional = [] if name in strings(form, "required") else [_option(_LEAVE_OUT)]
        title = text(schema, "title") or name
        lines = (message, text(schema, "description") or title)
        ask.parts.append(part)
        questions.append(
            ev.QuestionAsked(
                question_id=part.question_id,
                header=title,
                prompt="\n".join(filter(None, lines)),
                options=[*options, *optional, _declining()],
                allow_text=not options,
                group_id=request_id,
            )
        )
    return ask, questions


def check(part: Part, answers: list[str]) -> None:
    """Raise Refused when an answer does not fit its field."""
    if answers and answers[0] not in _OWN:
        _value(part, answers[0])


def declines(ask: Ask, answers: list[str]) -> bool:
    """Whether these answers end the whole request."""
    return ask.kind in ("form", "link") and _DECLINE in answers


def response(ask: Ask) -> Record:
    """Return the reply to the tool server, once every question is answered or one declined."""
    if any(_DECLINE in part.answers for part in ask.parts):
        return {"action": "decline"}
    if ask.kind == "link":
        return {"action": "accept"}
    given = [(part, part.answers[0]) for part in ask.parts if part.answers]
    filled = {part.name: _value(part, words) for part, words in given if words != _LEAVE_OUT}
    return {"action": "accept", "content": filled}


def _labels(schema: Record) -> list[str]:
    if text(schema, "type") == "boolean":
        return [_YES, _NO]
    return [label for label in dict.fromkeys(strings(schema, "enum")) if label not in _OWN]


def _value(part: Part, answer: str) -> Any:
    kind = text(loads(part.schema), "type")
    if kind == "boolean":
        return answer == _YES
    try:
        if kind == "integer":
            return int(answer)
        if kind == "number":
            return _finite(answer)
    except ValueError:
        raise Refused(
            error_reason_pb2.ERROR_REASON_INVALID_FIELD,
            f"{part.name} takes a number, not {answer!r}",
            "answers",
        ) from None
    return answer


def _finite(answer: str) -> float:
    number = float(answer)
    if not math.isfinite(number):
        raise ValueError(answer)
    return number


def _option(label: str) -> ev.QuestionOption:
    return ev.QuestionOption(label=label)


def _declining() -> ev.QuestionOption:
    return ev.QuestionOption(label=_DECLINE, kind=ev.OPTION_KIND_REJECT_ONCE)
