"""attach: a session live in the terminal, with an input line."""

from __future__ import annotations

from typing import Annotated

import typer

from sessiond_client import pending

from .cli import CommandError, SessionArgument, command, connect, is_interactive
from .live import LiveSession

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(attach)


@command
async def attach(
    ctx: typer.Context,
    session: SessionArgument,
    last: Annotated[int, typer.Option(min=0, help="Begin with the last N events.")] = 200,
) -> None:
    """Watch a session live and talk to it; Ctrl-C interrupts the turn, Ctrl-D leaves."""
    if not is_interactive():
        raise CommandError("NO_TERMINAL", "attach needs a terminal: use tail and send")
    from .attached import AttachedView

    async with connect(ctx, False) as ctl:
        found = await ctl.find(session)
        live = LiveSession(found, await pending(ctl.client, found))
        await AttachedView(ctl, live, max(0, found.head_seq - last)).run()
