"""Attachments: upload, download."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer

from .cli import CommandError, Ctl, JsonOption, SessionArgument, command, connect
from .words import size

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for function in (upload, download):
        app.command()(function)


@command
async def upload(
    ctx: typer.Context,
    session: SessionArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to store.")],
    media_type: Annotated[str, typer.Option(help="Default: what the file's name says.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Store a file with a session and print its ref."""
    async with connect(ctx, as_json) as ctl:
        session_id = (await ctl.find(session)).session_id
        attachment = await ctl.client.upload_attachment(session_id, file, media_type=media_type)
        if ctl.out.as_json:
            ctl.out.message(attachment)
        else:
            ctl.out.line(attachment.ref)


@command
async def download(
    ctx: typer.Context,
    session: SessionArgument,
    ref: Annotated[str, typer.Argument(metavar="REF", help="The attachment's ref.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to; `-` is standard output. Default: its own name."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a file that exists.")] = False,
) -> None:
    """Fetch an attachment and check its digest."""
    async with connect(ctx, False) as ctl:
        session_id = (await ctl.find(session)).session_id
        if output == Path("-"):
            async for chunk in ctl.client.download_attachment(session_id, ref):
                sys.stdout.buffer.write(chunk)
            return
        if output is None:
            attachment = await ctl.client.get_attachment(session_id, ref)
            # The name is somebody else's word: only its last part, and only if it is a name at all.
            name = Path(attachment.filename.replace("\0", "")).name
            output = Path(name if name not in {"", ".", ".."} else ref)
        if output.exists() and not force:
            raise CommandError("FILE_EXISTS", f"{output} exists: use --force or --output")
        await _save(ctl, session_id, ref, output)


async def _save(ctl: Ctl, session_id: str, ref: str, output: Path) -> None:
    with _whole_file(output) as part:
        async for chunk in ctl.client.download_attachment(session_id, ref):
            part.write(chunk)
        written = part.tell()
    sys.stderr.write(f"{output} ({size(written)})\n")


@contextmanager
def _whole_file(output: Path) -> Iterator[IO[bytes]]:
    """Write beside the place first, so that a file under its name is always whole."""
    try:
        with _part_of(output) as part:
            yield part
    except OSError as error:
        # Not the name of the part, which nobody knows.
        raise CommandError("FILE", f"{output}: {error.strerror}") from error


@contextmanager
def _part_of(output: Path) -> Iterator[IO[bytes]]:
    with tempfile.NamedTemporaryFile(dir=output.parent, prefix=".sessionctl-", delete=False) as part:
        path = Path(part.name)
        try:
            yield part
            part.flush()
            path.chmod(0o644)
            path.replace(output)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
