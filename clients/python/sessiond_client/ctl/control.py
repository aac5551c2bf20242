"""Control: what can be asked of a session besides messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Annotated

import typer

from sessiond.v1 import session_service_pb2
from sessiond_client import SessiondClient

from .cli import JsonOption, SessionArgument, command, connect

__all__ = ["ACTIONS", "Action", "perform", "register"]


class Action(StrEnum):
    """The actions, as they are typed."""

    INTERRUPT = "interrupt"
    MODEL = "model"
    MODE = "mode"
    EFFORT = "effort"
    TITLE = "title"
    COMPACT = "compact"
    CLEAR = "clear"
    RUN = "run"
    STOP = "stop"
    RESTART = "restart"


_Perform = Callable[[SessiondClient, str, str], Awaitable[session_service_pb2.ControlResponse]]
ACTIONS: Mapping[Action, _Perform] = {
    Action.INTERRUPT: lambda client, session, _: client.interrupt(session),
    Action.MODEL: lambda client, session, value: client.set_model(session, value),
    Action.MODE: lambda client, session, value: client.set_permission_mode(session, value),
    Action.EFFORT: lambda client, session, value: client.set_effort(session, value),
    Action.TITLE: lambda client, session, value: client.set_title(session, value),
    Action.COMPACT: lambda client, session, value: client.compact(session, value),
    Action.CLEAR: lambda client, session, _: client.clear(session),
    Action.RUN: lambda client, session, value: client.run_command(session, value),
    Action.STOP: lambda client, session, _: client.stop(session),
    Action.RESTART: lambda client, session, _: client.restart(session),
}
_NEED_VALUE = {Action.MODEL, Action.MODE, Action.TITLE, Action.RUN}
_NO_VALUE = {Action.INTERRUPT, Action.CLEAR, Action.STOP, Action.RESTART}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(control)


def perform(
    client: SessiondClient, session_id: str, action: Action, value: str
) -> Awaitable[session_service_pb2.ControlResponse]:
    """Ask for an action. Raises ValueError when its value is missing or too much."""
    if action in _NEED_VALUE and not value:
        raise ValueError(f"{action} needs a value")
    if action in _NO_VALUE and value:
        raise ValueError(f"{action} takes no value")
    return ACTIONS[action](client, session_id, value)


@command
async def control(
    ctx: typer.Context,
    session: SessionArgument,
    action: Annotated[
        Action,
        typer.Argument(
            help="interrupt | model X | mode X | effort [X] | title X | compact [INSTRUCTIONS] | "
            "clear | run /COMMAND | stop | restart",
        ),
    ],
    value: Annotated[
        list[str] | None, typer.Argument(metavar="[VALUE]...", help="What the action needs.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Interrupt a session, change its settings, or run a command; the outcome is an event."""
    async with connect(ctx, as_json) as ctl:
        session_id = (await ctl.find(session)).session_id
        try:
            asked = perform(ctl.client, session_id, action, " ".join(value or []))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        response = await asked
        if ctl.out.as_json:
            ctl.out.message(response)
        elif response.queued:
            ctl.out.line(f"waits for the turn to end ({response.command_id})")
