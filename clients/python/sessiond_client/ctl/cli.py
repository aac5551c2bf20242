"""What the commands share: options, the connection, errors, output."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import grpc
import typer
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from rich.console import Console
from rich.text import Text

from sessiond.v1 import session_pb2
from sessiond_client import AddressError, NotFoundError, SessiondClient, SessiondError, discover

from .words import one_line, printable

__all__ = [
    "CommandError",
    "Ctl",
    "Globals",
    "JsonOption",
    "Output",
    "SessionArgument",
    "command",
    "connect",
    "is_interactive",
    "pairs",
]

# A daemon that is being restarted is back in a moment; one that does not run should be told at once.
_PATIENCE = 3.0
_BROKEN_PIPE = 141  # as the shell reports a program that died of SIGPIPE
_INTERRUPTED = 130

# What JSON need not escape, although terminals obey it and some readers take it for a line end.
_OBEYED = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

P = ParamSpec("P")

SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="Session id, or the beginning of one.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print protojson, one object a line, instead of text.")
]


class CommandError(Exception):
    """A command can't go on; `reason` in UPPER_SNAKE and the text make up its one line on stderr."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Globals:
    """The options before the command."""

    address: str | None = None
    token_file: Path | None = None
    as_json: bool = False


class Output:
    """Standard output: plain and complete in a pipe, coloured and fitted on a terminal."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

    def message(self, message: Message) -> None:
        """Print protojson on one line."""
        json = MessageToJson(message, indent=None, ensure_ascii=False)
        sys.stdout.write(_OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", json) + "\n")

    def text(self, text: Text) -> None:
        """Write exactly this, coloured on a terminal."""
        if self.console.is_terminal:
            self.console.print(text, end="")
        else:
            sys.stdout.write(text.plain)

    def line(self, line: str) -> None:
        """Print a line, safe for terminals."""
        sys.stdout.write(f"{printable(line)}\n")

    def table(self, header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
        """Print columns: aligned and cut to the width of a terminal, else divided by tabs."""
        if not self.console.is_terminal:
            for row in (header, *rows):
                self.line("\t".join(one_line(cell, 10_000) for cell in row))
            return
        from rich.table import Table

        table = Table(*header, box=None, header_style="bold", pad_edge=False)
        for row in rows:
            table.add_row(*(Text(one_line(cell), overflow="ellipsis", no_wrap=True) for cell in row))
        self.console.print(table, soft_wrap=False)

    def flush(self) -> None:
        """Hand everything over to whoever reads."""
        sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Ctl:
    """A connected command."""

    client: SessiondClient
    out: Output

    async def find(self, name: str) -> session_pb2.Session:
        """Return the session with this id, or the only one whose id begins so."""
        try:
            return await self.client.get_session(name)
        except SessiondError as error:
            if (
                not isinstance(error, NotFoundError)
                and error.code is not grpc.StatusCode.INVALID_ARGUMENT
            ):
                raise
            missing = error
        found = [s async for s in self.client.list_sessions() if name and s.session_id.startswith(name)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise missing
        some = ", ".join(s.session_id for s in found[:4])
        raise CommandError(
            "AMBIGUOUS_SESSION",
            f"{len(found)} sessions begin with {name!r} ({some}...): write more of it",
        )


@asynccontextmanager
async def connect(ctx: typer.Context, as_json: bool) -> AsyncIterator[Ctl]:
    """Connect as the options before the command say."""
    options: Globals = ctx.obj
    endpoint = discover(options.address, token_file=options.token_file)
    async with SessiondClient(endpoint, patience=_PATIENCE) as client:
        try:
            yield Ctl(client, Output(options.as_json or as_json))
        except SessiondError as error:
            if error.code is grpc.StatusCode.UNAVAILABLE and not error.reason:
                # gRPC tells first what it tried and at last what the system said.
                cause = one_line(error.message).rsplit(": ", 1)[-1]
                raise CommandError(
                    "UNAVAILABLE",
                    f"nothing answers at {endpoint}; start the daemon with `sessiond serve`, or say "
                    f"where it is with --address or SESSIOND_ADDRESS ({cause})",
                ) from error
            raise


def command(function: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a command of a coroutine function: errors become one line and an exit code."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with _reported():
            asyncio.run(function(*args, **kwargs))
            sys.stdout.flush()

    return run


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except AddressError as error:
        _fail("ADDRESS", str(error))
    except SessiondError as error:
        fields = ", ".join(violation.field for violation in error.violations)
        where = f" (field {fields})" if fields else ""
        _fail(error.reason or error.code.name, f"{error.message}{where}")
    except CommandError as error:
        _fail(error.reason, str(error))
    except BrokenPipeError:
        # What is still buffered has nowhere to go, and Python would complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_BROKEN_PIPE) from None
    except UnicodeError:
        _fail("NOT_UTF8", "an argument or the input is not valid UTF-8; files go with --attach")
    except OSError as error:
        _fail("FILE", f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


def _fail(reason: str, text: str) -> None:
    sys.stderr.write(f"sessionctl: {reason}: {one_line(text, 1000)}\n")
    raise typer.Exit(1) from None


def is_interactive() -> bool:
    """Whether a person can be asked something."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def pairs(values: list[str], option: str) -> dict[str, str]:
    """Return `KEY=VALUE` arguments as a dict; a usage error when one has no `=`."""
    found = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{value!r} is not KEY=VALUE", param_hint=option)
        found[key] = rest
    return found
