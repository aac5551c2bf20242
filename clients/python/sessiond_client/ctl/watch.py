"""Watching: tail, and following one message until its turn ends."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from sessiond.v1 import event_pb2, session_pb2
from sessiond_client import SessiondError

from .cli import Ctl, JsonOption, Output, SessionArgument, command, connect
from .layout import Gutter
from .render import render
from .words import one_line, word

__all__ = ["EventPrinter", "TurnWatch", "follow_message", "note_loss", "register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(tail)


class EventPrinter:
    """Prints events: protojson, or lines with seq and kind."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._gutter = Gutter()

    def event(self, event: event_pb2.Event) -> None:
        """Print one event."""
        if self._out.as_json:
            self._out.message(event)
        else:
            self._out.text(self._gutter.feed(event.seq, render(event)))

    def finish(self) -> None:
        """Close the last line."""
        if not self._out.as_json:
            self._out.text(self._gutter.finish())
        self._out.flush()


def note_loss(error: SessiondError) -> None:
    """Tell on stderr that the connection is being made again."""
    sys.stderr.write(f"sessionctl: connection lost, trying again: {one_line(str(error))}\n")


@command
async def tail(
    ctx: typer.Context,
    session: SessionArgument,
    after: Annotated[int, typer.Option(min=0, help="Begin after this seq; 0 is the beginning.")] = 0,
    last: Annotated[int | None, typer.Option(min=0, help="Begin with the last N events.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more at the end of what there is.")
    ] = True,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many events.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a session's events: history, then live, across restarts of the daemon."""
    async with connect(ctx, as_json) as ctl:
        found = await ctl.find(session)
        start = after if last is None else max(after, found.head_seq - last)
        printer = EventPrinter(ctl.out)
        left = sys.maxsize if count is None else count
        subscription = ctl.client.subscribe(found.session_id, start, on_lost=note_loss)
        try:
            async for response in subscription.batches():
                for event in response.events[:left]:
                    printer.event(event)
                left -= len(response.events)
                if left <= 0 or (subscription.caught_up and not follow):
                    break
                ctl.out.flush()
        finally:
            subscription.close()
            printer.finish()


class TurnWatch:
    """Follows one message through the events: from its queue to the end of the turn that read it.

    `feed` takes the events in order and returns whether the event belongs to that turn. `ended` says how
    it went: empty while it runs, `completed`, or what happened instead.
    """

    def __init__(self, message_id: str, appended: bool) -> None:
        self._message_id = message_id
        self._appended = appended
        self._reading = False
        self.ended = ""

    def feed(self, event: event_pb2.Event) -> bool:
        """Take the next event."""
        match event.WhichOneof("body"):
            case "user_message" if event.user_message.message_id == self._message_id:
                self._reading = True
                if self._appended:
                    self.ended = "completed"
            case "message_dropped" if event.message_dropped.message_id == self._message_id:
                self.ended = "the message was dropped before the agent read it"
            case "turn_ended" if self._reading:
                self.ended = word(event_pb2.TurnOutcome.Name, event.turn_ended.outcome, "TURN_OUTCOME")
            case "state_changed" if event.state_changed.state == session_pb2.SESSION_STATE_EXITED:
                self.ended = "the agent's process ended"
        return self._reading


Ask = Callable[[Ctl, str, event_pb2.QuestionAsked], Awaitable[None]]


async def follow_message(ctl: Ctl, session_id: str, watch: TurnWatch, after_seq: int, ask: Ask) -> str:
    """Print the events of the turn that reads a message, and return how it ended.

    `ask` is called with each question of that turn.
    """
    printer = EventPrinter(ctl.out)
    subscription = ctl.client.subscribe(session_id, after_seq, on_lost=note_loss)
    try:
        async for event in subscription:
            if watch.feed(event):
                printer.event(event)
                ctl.out.flush()
            if watch.ended:
                return watch.ended
            if event.HasField("question_asked"):
                await ask(ctl, session_id, event.question_asked)
    finally:
        subscription.close()
        printer.finish()
    return "the session was deleted"
