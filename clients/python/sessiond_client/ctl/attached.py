"""The live view that `attach` opens. Apart from it because its libraries take long to import."""

from __future__ import annotations

import asyncio

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout
from rich.console import Console, RenderableType
from rich.text import Text

from sessiond.v1 import event_pb2
from sessiond_client import SessiondError, Subscription

from .cli import Ctl
from .control import Action, perform
from .conversation import Conversation
from .live import LiveSession
from .questions import parse_answer
from .render import question_lines, render
from .words import one_line

__all__ = ["AttachedView"]

_PARTIAL_LINES = 8
_HELP = """\
Enter sends a message, Esc Enter begins a new line, Ctrl-C interrupts, Ctrl-D leaves.
While a question is open, what you type answers it: a number, a label, or own words where allowed.
/interrupt  /model X  /mode X  /effort [X]  /title X  /compact [INSTRUCTIONS]  /clear  /stop  /restart
/say TEXT sends a message although a question is open; any other /COMMAND goes to the agent."""


class AttachedView:
    """The view of one session: one task prints events, the other reads the input line.

    `run` returns when the person leaves or the session was deleted; raises SessiondError when watching
    can't go on. Prints through `patch_stdout`, above the input line.
    """

    def __init__(self, ctl: Ctl, live: LiveSession, after_seq: int) -> None:
        self._ctl = ctl
        self._live = live
        self._id = live.session.session_id
        self._conversation = Conversation()
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._subscription: Subscription = ctl.client.subscribe(
            self._id, after_seq, on_lost=self._note_loss
        )
        self._shown: set[str] = set()
        self._prompt: PromptSession[str] = PromptSession(
            message=self._message,
            bottom_toolbar=live.toolbar,
            key_bindings=self._keys(),
            completer=_Commands(live),
            complete_while_typing=False,
            # What was typed is shown when the agent reads it, as an event like everybody's.
            erase_when_done=True,
            is_password=Condition(lambda: live.question is not None and live.question.secret),
        )

    async def run(self) -> None:
        """Run until the person leaves or the session is deleted."""
        with patch_stdout(raw=True):
            await self._run()

    async def _run(self) -> None:
        watching = asyncio.create_task(self._watch())
        try:
            await self._type(watching)
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        if not watching.cancelled():
            watching.result()

    # --- what comes -----------------------------------------------------------------------------

    async def _watch(self) -> None:
        caught_up = False
        try:
            async for response in self._subscription.batches():
                for event in response.events:
                    self._show(event)
                if self._subscription.caught_up and not caught_up:
                    caught_up = True
                    self._show_older_questions()
                self._redraw()
            self._print(Text("the session was deleted", "bold red"))
        finally:
            self._subscription.close()
            if self._prompt.app.is_running:
                self._prompt.app.exit(exception=EOFError())

    def _show(self, event: event_pb2.Event) -> None:
        self._live.apply(event)
        if event.HasField("question_asked"):
            self._shown.add(event.question_asked.question_id)
        for renderable in self._conversation.feed(render(event)):
            self._print(renderable)

    def _show_older_questions(self) -> None:
        for question_id, question in self._live.pending.questions.items():
            if question_id not in self._shown:
                self._print(Text("\n".join(question_lines(question)), "bold yellow"))

    def _note_loss(self, error: SessiondError) -> None:
        self._live.lost = "connection lost, trying again"
        self._redraw()

    def _print(self, renderable: RenderableType) -> None:
        self._console.print(renderable)

    def _redraw(self) -> None:
        self._prompt.app.invalidate()

    # --- what is typed --------------------------------------------------------------------------

    def _message(self) -> StyleAndTextTuples:
        """Return what stands before the cursor: text that is still coming, and what Enter will do."""
        partial = self._conversation.partial.strip("\n")
        shown: StyleAndTextTuples = []
        if partial:
            shown.append(("", "\n".join(partial.split("\n")[-_PARTIAL_LINES:]) + "\n"))
        asks = self._live.question is not None
        shown.append(("bold", "answer> " if asks else "> "))
        return shown

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("c-c")
        def _(pressed: KeyPressEvent) -> None:
            if self._live.running:
                pressed.app.create_background_task(self._do("/interrupt"))
            else:
                pressed.current_buffer.reset()

        @keys.add("escape", "enter")
        def _(pressed: KeyPressEvent) -> None:
            pressed.current_buffer.insert_text("\n")

        return keys

    async def _type(self, watching: asyncio.Task[None]) -> None:
        while not watching.done():
            try:
                text = await self._prompt.prompt_async()
            except EOFError:
                return
            if text.strip():
                await self._do(text)

    async def _do(self, text: str) -> None:
        """Carry out a line; what goes wrong is shown and the view goes on."""
        try:
            await self._dispatch(text)
        except SessiondError as error:
            self._print(Text(one_line(str(error), 1000), "bold red"))
        except ValueError as error:
            self._print(Text(str(error), "yellow"))

    async def _dispatch(self, text: str) -> None:
        client, question = self._ctl.client, self._live.question
        name, _, rest = text.strip().partition(" ")
        if name == "/help":
            self._print(Text(_HELP, "dim"))
        elif name == "/say":
            await client.send(self._id, rest)
        elif name.startswith("/") and name[1:] in set(Action):
            await perform(client, self._id, Action(name[1:]), rest.strip())
        elif name.startswith("/"):
            await client.run_command(self._id, text.strip())
        elif question is not None:
            answers = parse_answer(question, text)
            await client.answer(self._id, question.question_id, answers)
        else:
            await client.send(self._id, text)


class _Commands(Completer):
    """Completes commands after a slash: this program's and those that the agent offers."""

    def __init__(self, live: LiveSession) -> None:
        self._live = live

    def get_completions(self, document: Document, _: CompleteEvent) -> list[Completion]:
        typed = document.text_before_cursor
        if not typed.startswith("/") or " " in typed:
            return []
        names = [*Action, "help", "say", *(name.removeprefix("/") for name in self._live.commands)]
        found = sorted({f"/{name}" for name in names})
        return [Completion(name, -len(typed)) for name in found if name.startswith(typed)]
