"""Questions: answer, by argument or by asking the person at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from sessiond.v1 import event_pb2
from sessiond_client import SessiondError, pending

from .cli import CommandError, Ctl, JsonOption, SessionArgument, command, connect, is_interactive
from .render import question_lines
from .words import one_line

__all__ = ["ask", "ask_or_tell", "parse_answer", "register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(answer)


def parse_answer(question: event_pb2.QuestionAsked, typed: str) -> list[str]:
    """Return the answers that a person meant: numbers or labels of options, or own words.

    Several are divided by commas where several may be chosen. Raises ValueError with what to type.
    """
    text = typed.strip()
    parts = [text]
    if question.multi_select and _option(question, text) is None:
        parts = [part.strip() for part in text.split(",") if part.strip()]
    chosen = [_option(question, part) for part in parts]
    labels = [label for label in chosen if label is not None]
    if labels and len(labels) == len(chosen):
        return list(dict.fromkeys(labels))
    if question.allow_text and text:
        return [text]
    if not question.options:
        raise ValueError("type an answer")
    several = ", or several divided by commas" if question.multi_select else ""
    raise ValueError(f"type a number from 1 to {len(question.options)} or a label{several}")


def _option(question: event_pb2.QuestionAsked, text: str) -> str | None:
    labels = [option.label for option in question.options]
    if text in labels:
        return text
    same = [label for label in labels if label.casefold() == text.casefold()]
    if len(same) == 1:
        return same[0]
    if text.isdecimal() and 1 <= int(text) <= len(labels):
        return labels[int(text) - 1]
    return None


@command
async def answer(
    ctx: typer.Context,
    session: SessionArgument,
    question_id: Annotated[
        str, typer.Argument(metavar="[QUESTION_ID]", help="Which question. Default: every open one.")
    ] = "",
    answers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ANSWER]...", help="Labels or numbers of options, or own words."),
    ] = None,
    note: Annotated[str, typer.Option(help="Said along with the answer: why not, say.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Answer a question; without an answer, ask on a terminal and list the open ones elsewhere."""
    async with connect(ctx, as_json) as ctl:
        found = await ctl.find(session)
        open_questions = (await pending(ctl.client, found)).questions
        if answers:
            known = open_questions.get(question_id)
            given = _given(known, answers) if known else answers
            response = await ctl.client.answer(found.session_id, question_id, given, note=note)
            if ctl.out.as_json:
                ctl.out.message(response)
            return
        if question_id and question_id not in open_questions:
            raise CommandError("QUESTION_NOT_FOUND", f"no open question {question_id!r} in this session")
        wanted = [open_questions[question_id]] if question_id else list(open_questions.values())
        if not is_interactive() or ctl.out.as_json:
            _list(ctl, wanted)
            return
        for question in wanted:
            await ask(ctl, found.session_id, question, note)
        if not wanted:
            ctl.out.line("no open questions")


def _given(question: event_pb2.QuestionAsked, answers: Sequence[str]) -> list[str]:
    """Return arguments as answers; one that is no option is left for the daemon to judge."""
    given: list[str] = []
    for text in answers:
        label = _option(question, text)
        given.append(text if label is None else label)
    return given


def _list(ctl: Ctl, questions: Sequence[event_pb2.QuestionAsked]) -> None:
    for question in questions:
        if ctl.out.as_json:
            ctl.out.message(question)
        else:
            ctl.out.line("\n".join([question.question_id, *question_lines(question)]))


async def ask(ctl: Ctl, session_id: str, question: event_pb2.QuestionAsked, note: str = "") -> None:
    """Show a question at the terminal until it has an answer, and send that."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter

    ctl.out.line("\n".join(question_lines(question)))
    ctl.out.flush()
    prompt: PromptSession[str] = PromptSession(
        completer=WordCompleter([one_line(option.label) for option in question.options], sentence=True)
    )
    while True:
        try:
            typed = await prompt.prompt_async("answer> ", is_password=question.secret)
            answers = parse_answer(question, typed)
        except ValueError as error:
            ctl.out.line(str(error))
            continue
        except EOFError:
            raise CommandError("NOT_ANSWERED", f"{question.question_id} stays open") from None
        await ctl.client.answer(session_id, question.question_id, answers, note=note)
        return


async def ask_or_tell(ctl: Ctl, session_id: str, question: event_pb2.QuestionAsked) -> None:
    """Ask at a terminal; elsewhere tell on stderr how the question can be answered."""
    if is_interactive() and not ctl.out.as_json:
        try:
            await ask(ctl, session_id, question)
        except SessiondError as error:
            # Somebody else may have been quicker; the turn goes on either way.
            ctl.out.line(str(error))
        return
    hint = f"sessionctl answer {session_id} {question.question_id} ANSWER"
    sys.stderr.write(f"sessionctl: the agent asks: {one_line(question.prompt)} - answer with: {hint}\n")
