"""Sessions: new, ls, show, update, rm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sessiond.v1 import session_pb2
from sessiond_client import Pending, pending

from .cli import Ctl, JsonOption, SessionArgument, command, connect, pairs
from .render import question_lines
from .words import one_line, tokens, word

__all__ = ["register"]

_STATES = {
    name.removeprefix("SESSION_STATE_").lower(): number
    for name, number in session_pb2.SessionState.items()
    if number
}
_LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label; may be repeated.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for function in (new, ls, show, update, rm):
        app.command()(function)


@command
async def new(
    ctx: typer.Context,
    driver: Annotated[
        str,
        typer.Option("--driver", "-d", metavar="NAME", help="One that `sessionctl info` lists."),
    ],
    workspace: Annotated[
        Path | None,
        typer.Option("--workspace", "-w", help="The agent's folder. Default: the current one."),
    ] = None,
    title: Annotated[str, typer.Option(help="A title for people.")] = "",
    label: _LabelOption = None,
    model: Annotated[str, typer.Option(help="Model; default: the agent's.")] = "",
    permission_mode: Annotated[
        str, typer.Option(help="What the agent may do without asking; default: the agent's.")
    ] = "",
    effort: Annotated[str, typer.Option(help="Effort; default: the agent's.")] = "",
    system_prompt: Annotated[str, typer.Option(help="Added to the agent's own instructions.")] = "",
    resume: Annotated[
        str, typer.Option(metavar="NATIVE_ID", help="Continue a conversation the agent already has.")
    ] = "",
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="KEY=VALUE", help="Added to the agent's environment."),
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="End the agent when the daemon ends.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a session and print its id."""
    labels, environment = pairs(label or [], "--label"), pairs(env or [], "--env")
    async with connect(ctx, as_json) as ctl:
        session = await ctl.client.create_session(
            driver,
            (workspace or Path()).absolute(),
            title=title,
            labels=labels,
            model=model,
            permission_mode=permission_mode,
            effort=effort,
            system_prompt=system_prompt,
            native_session_id=resume,
            ephemeral=ephemeral,
            environment=environment,
            timeout=120.0,
        )
        if ctl.out.as_json:
            ctl.out.message(session)
        else:
            ctl.out.line(session.session_id)


@command
async def ls(
    ctx: typer.Context,
    label: _LabelOption = None,
    state: Annotated[
        list[str] | None, typer.Option(help=f"Only these: {', '.join(_STATES)}; may be repeated.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the sessions."""
    unknown = [name for name in state or [] if name not in _STATES]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(_STATES)}", param_hint="--state"
        )
    labels, states = pairs(label or [], "--label"), [_STATES[name] for name in state or []]
    async with connect(ctx, as_json) as ctl:
        sessions = [s async for s in ctl.client.list_sessions(labels=labels, states=states)]
        if ctl.out.as_json:
            for session in sessions:
                ctl.out.message(session)
            return
        header = ("ID", "STATE", "DRIVER", "EVENTS", "QUEUE", "ASKS", "TITLE", "WORKSPACE")
        ctl.out.table(header, (_row(session) for session in sessions))


def _row(session: session_pb2.Session) -> tuple[str, ...]:
    return (
        session.session_id,
        _state(session),
        session.driver,
        str(session.head_seq),
        str(session.queue_length),
        str(session.open_question_count),
        session.title,
        session.workspace,
    )


def _state(session: session_pb2.Session) -> str:
    return word(session_pb2.SessionState.Name, session.state, "SESSION_STATE")


@command
async def show(ctx: typer.Context, session: SessionArgument, as_json: JsonOption = False) -> None:
    """Show one session: its settings, usage, open questions and waiting messages."""
    async with connect(ctx, as_json) as ctl:
        found = await ctl.find(session)
        if ctl.out.as_json:
            ctl.out.message(found)
            return
        for name, value in _facts(found):
            ctl.out.line(f"{name + ':':<14}{one_line(value, 1000)}")
        _print_pending(ctl, await pending(ctl.client, found))


def _facts(session: session_pb2.Session) -> list[tuple[str, str]]:
    context = ""
    if session.HasField("context_tokens"):
        window = f" of {session.context_window:,}" if session.HasField("context_window") else ""
        context = f"{session.context_tokens:,}{window} tokens"
    facts = [
        ("session", session.session_id),
        ("title", session.title),
        ("state", _state(session)),
        ("driver", session.driver),
        ("workspace", session.workspace),
        ("model", session.settings.model),
        ("mode", session.settings.permission_mode),
        ("effort", session.settings.effort),
        ("labels", ", ".join(f"{key}={value}" for key, value in sorted(session.labels.items()))),
        ("events", f"{session.head_seq} (transcript {session.transcript_id})"),
        ("turn", session.turn_id),
        ("usage", tokens(session.total_tokens)),
        ("context", context),
        ("cost", f"${session.total_cost_usd:.4f}" if session.HasField("total_cost_usd") else ""),
        ("created", session.create_time.ToJsonString()),
        ("native id", session.native_session_id),
        ("can", ", ".join(_capabilities(session.capabilities))),
    ]
    return [(name, value) for name, value in facts if value]


def _capabilities(capabilities: session_pb2.DriverCapabilities) -> list[str]:
    return [field.name for field, value in capabilities.ListFields() if value]


def _print_pending(ctl: Ctl, waiting: Pending) -> None:
    for question_id, question in waiting.questions.items():
        ctl.out.line(f"question {question_id}:")
        for line in question_lines(question):
            ctl.out.line(f"  {line}")
    for item in waiting.queue:
        kind = "command" if item.is_command else f"message (revision {item.revision})"
        ctl.out.line(f"waiting {item.item_id} {kind}: {one_line(item.text)}")


@command
async def update(
    ctx: typer.Context,
    session: SessionArgument,
    title: Annotated[str | None, typer.Option(help="The new title.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Set a label; KEY= removes it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change the title or labels."""
    if title is None and not label:
        raise typer.BadParameter("nothing to change: give --title or --label")
    changes = pairs(label or [], "--label")
    async with connect(ctx, as_json) as ctl:
        found = await ctl.find(session)
        labels = {key: value for key, value in {**found.labels, **changes}.items() if value}
        updated = await ctl.client.update_session(
            found.session_id, title=title, labels=labels if changes else None
        )
        if ctl.out.as_json:
            ctl.out.message(updated)


@command
async def rm(
    ctx: typer.Context,
    sessions: Annotated[
        list[str], typer.Argument(metavar="SESSION...", help="Session ids, or beginnings of them.")
    ],
) -> None:
    """End sessions and delete them with their transcripts."""
    async with connect(ctx, False) as ctl:
        found = [(await ctl.find(session)).session_id for session in sessions]
        for session_id in found:
            await ctl.client.delete_session(session_id)
