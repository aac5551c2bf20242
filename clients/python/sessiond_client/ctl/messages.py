"""Messages: send, edit, move, unqueue."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sessiond.v1 import session_pb2, session_service_pb2

from .cli import CommandError, Ctl, JsonOption, SessionArgument, command, connect
from .questions import ask_or_tell
from .watch import TurnWatch, follow_message
from .words import word

__all__ = ["register"]

_MessageArgument = Annotated[
    str, typer.Argument(metavar="MESSAGE_ID", help="A waiting message, as `send` or `show` name it.")
]
_TextArgument = Annotated[
    list[str], typer.Argument(metavar="TEXT...", help="The text; `-` reads it from standard input.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for function in (send, edit, move, unqueue):
        app.command()(function)


@command
async def send(
    ctx: typer.Context,
    session: SessionArgument,
    text: _TextArgument,
    steer: Annotated[
        bool, typer.Option("--steer", help="Into the running turn where the agent can. The default.")
    ] = False,
    next_turn: Annotated[
        bool, typer.Option("--next", help="When the turn has ended; can be edited until then.")
    ] = False,
    now: Annotated[bool, typer.Option("--now", help="Interrupt the turn and run this.")] = False,
    append: Annotated[bool, typer.Option("--append", help="Into the context, without a turn.")] = False,
    attach: Annotated[
        list[Path] | None,
        typer.Option("--attach", metavar="FILE", help="Attach a file; may be repeated."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Print the turn's events until it ends; fail if it did.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Send a message and print its id."""
    delivery = _delivery(steer=steer, next_turn=next_turn, now=now, append=append)
    body = _text(text)
    async with connect(ctx, as_json) as ctl:
        session_id = (await ctl.find(session)).session_id
        refs = [(await ctl.client.upload_attachment(session_id, file)).ref for file in attach or []]
        sent = await ctl.client.send(session_id, body, attachment_refs=refs, delivery=delivery)
        if wait:
            await _wait(ctl, session_id, sent, append)
        elif ctl.out.as_json:
            ctl.out.message(sent)
        else:
            ctl.out.line(sent.message_id)


def _delivery(
    *, steer: bool, next_turn: bool, now: bool, append: bool
) -> session_pb2.Delivery.ValueType:
    chosen = [
        delivery
        for wanted, delivery in (
            (steer, session_pb2.DELIVERY_STEER),
            (next_turn, session_pb2.DELIVERY_NEXT_TURN),
            (now, session_pb2.DELIVERY_NOW),
            (append, session_pb2.DELIVERY_APPEND),
        )
        if wanted
    ]
    if len(chosen) > 1:
        raise typer.BadParameter("choose one of --steer, --next, --now and --append")
    return chosen[0] if chosen else session_pb2.DELIVERY_UNSPECIFIED


def _text(words: list[str]) -> str:
    return sys.stdin.read() if words == ["-"] else " ".join(words)


async def _wait(
    ctl: Ctl, session_id: str, sent: session_service_pb2.SendResponse, appended: bool
) -> None:
    watch = TurnWatch(sent.message_id, appended)
    ended = await follow_message(ctl, session_id, watch, max(0, sent.seq - 1), ask_or_tell)
    if ended != "completed":
        raise CommandError("TURN_NOT_COMPLETED", ended)


@command
async def edit(
    ctx: typer.Context,
    session: SessionArgument,
    message_id: _MessageArgument,
    text: _TextArgument,
    revision: Annotated[int, typer.Option(min=0, help="Only if it still has this revision.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Replace the text of a message that still waits."""
    async with connect(ctx, as_json) as ctl:
        session_id = (await ctl.find(session)).session_id
        edited = await ctl.client.edit_message(session_id, message_id, _text(text), revision=revision)
        if ctl.out.as_json:
            ctl.out.message(edited)


@command
async def move(
    ctx: typer.Context,
    session: SessionArgument,
    message_id: _MessageArgument,
    before: Annotated[
        str,
        typer.Option(metavar="MESSAGE_ID", help="To the place before this one. Default: to the end."),
    ] = "",
    revision: Annotated[int, typer.Option(min=0, help="Only if it still has this revision.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Change the place of a message that still waits."""
    async with connect(ctx, as_json) as ctl:
        session_id = (await ctl.find(session)).session_id
        moved = await ctl.client.move_message(session_id, message_id, before, revision=revision)
        if ctl.out.as_json:
            ctl.out.message(moved)


@command
async def unqueue(
    ctx: typer.Context,
    session: SessionArgument,
    message_id: _MessageArgument,
    as_json: JsonOption = False,
) -> None:
    """Take a message back; says `dropped`, `already sent` or `unknown`."""
    async with connect(ctx, as_json) as ctl:
        session_id = (await ctl.find(session)).session_id
        response = await ctl.client.unqueue(session_id, message_id)
        if ctl.out.as_json:
            ctl.out.message(response)
        else:
            outcome = response.outcome
            ctl.out.line(word(session_service_pb2.UnqueueOutcome.Name, outcome, "UNQUEUE_OUTCOME"))
