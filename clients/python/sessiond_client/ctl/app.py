"""All commands, and the options before them."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from . import attach, attachments, control, messages, questions, server, sessions, watch
from .cli import Globals

__all__ = ["app"]

app = typer.Typer(
    name="sessionctl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sessionctl {version('sessiond')}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="unix:///path, host:port or https://host:port. Default: SESSIOND_ADDRESS, else the "
            "daemon of this user.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the bearer token for TCP. Default: SESSIOND_TOKEN_FILE, else the daemon's.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print protojson, one object a line, instead of text.")
    ] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Drive and watch the sessions of a sessiond daemon."""
    ctx.obj = Globals(address, token_file, as_json)


for _room in (sessions, watch, messages, questions, control, attach, attachments, server):
    _room.register(app)
