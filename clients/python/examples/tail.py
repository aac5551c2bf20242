"""Follow one session: one line of JSON per event, across cuts and restarts of the daemon.

python tail.py [--address ADDR] [--token-file FILE] [--tls-ca FILE]
               [--session ID | --new --driver NAME --workspace DIR] [--after N] [--send TEXT] [--count N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from sessiond.v1 import event_pb2
from sessiond_client import AddressError, SessiondClient, SessiondError, Tls, discover

_BROKEN_PIPE = 141  # as the shell reports a program that died of SIGPIPE


def at_least(least: int) -> Callable[[str], int]:
    """Return what reads a whole number that may not be less."""

    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


def options() -> argparse.Namespace:
    """Read the command line; exits with 2 when it makes no sense."""
    parser = argparse.ArgumentParser(prog="tail", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--address", help="unix:///path, host:port or https://host:port")
    parser.add_argument("--token-file", metavar="FILE")
    parser.add_argument("--tls-ca", metavar="FILE", type=Path)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--session", metavar="ID")
    which.add_argument("--new", action="store_true", help="create a session")
    parser.add_argument("--driver", default="echo")
    parser.add_argument("--workspace", default=os.getcwd(), metavar="DIR")
    parser.add_argument(
        "--after", type=at_least(0), default=0, metavar="N", help="events after this seq"
    )
    parser.add_argument("--send", metavar="TEXT", help="send a message first")
    parser.add_argument("--count", type=at_least(1), metavar="N", help="stop after so many events")
    return parser.parse_args()


def say(**line: Any) -> None:
    """Print one line of JSON, at once."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def event_line(event: event_pb2.Event) -> dict[str, str]:
    """Return what is printed of an event; a body of a later contract is `unknown`."""
    kind = event.WhichOneof("body")
    line = {"seq": str(event.seq), "kind": kind or "unknown"}
    body = getattr(event, kind) if kind else None
    text = getattr(body, "text", None) or getattr(body, "delta", None)
    if isinstance(text, str):
        line["text"] = text
    return line


async def follow(client: SessiondClient, wanted: argparse.Namespace) -> str:
    """Print events until there were enough, or the session is gone; return which."""
    session_id = wanted.session
    if wanted.new:
        session_id = (await client.create_session(wanted.driver, wanted.workspace)).session_id
    if wanted.send is not None:
        await client.send(session_id, wanted.send)
    printed = 0
    async with client.subscribe(session_id, wanted.after) as subscription:
        async for event in subscription:
            say(**event_line(event))
            printed += 1
            if printed == wanted.count:
                return "DONE"
    return "OK"


async def run(wanted: argparse.Namespace) -> int:
    """Follow until the end, an error, or a signal; return the exit code."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        async with AsyncExitStack() as stack:
            try:
                tls = Tls(ca_file=wanted.tls_ca) if wanted.tls_ca else None
                endpoint = discover(wanted.address, token_file=wanted.token_file, tls=tls)
                hasty = await stack.enter_async_context(SessiondClient(endpoint, patience=0.0))
            except AddressError as error:
                sys.stderr.write(f"tail: {error}\n")
                return 2
            # A daemon that is not there is told at once, rather than waited for.
            await hasty.server_info()
            await hasty.close()
            async with SessiondClient(endpoint, patience=5.0) as client:
                say(end=await follow(client, wanted))
    except asyncio.CancelledError:
        say(end="CANCELLED")
    except SessiondError as error:
        details = {"code": error.code.name, "reason": error.reason, "message": error.message}
        say(end=error.code.name, error={**details, "metadata": dict(error.metadata)})
        return 1
    return 0


def main() -> int:
    """Run; return the exit code."""
    try:
        return asyncio.run(run(options()))
    except BrokenPipeError:
        # Whoever read has seen enough. What is still buffered has nowhere to go, and Python would
        # complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


if __name__ == "__main__":
    sys.exit(main())
