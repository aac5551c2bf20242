"""sessionctl on a terminal: what a person sees and can do there."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sessiond_client import SessiondClient
from tests.support.daemon import Daemon
from tests.system.terminal import Terminal

SESSIONCTL = str(Path(sys.executable).with_name("sessionctl"))


@pytest.fixture
async def session(daemon: Daemon) -> str:
    async with SessiondClient(daemon.unix) as client:
        return (await client.create_session("echo", daemon.workspace)).session_id


async def on_terminal(daemon: Daemon, act: Callable[[Terminal], None], *arguments: str) -> None:
    """Let a person `act` on sessionctl; in a thread, because a person does not wait for our loop."""

    def run() -> None:
        with Terminal([SESSIONCTL, *arguments], daemon.env) as terminal:
            act(terminal)

    await asyncio.to_thread(run)


async def test_a_conversation_with_tools_and_questions(daemon: Daemon, session: str) -> None:
    def act(terminal: Terminal) -> None:
        terminal.wait_for("| idle |", "Ctrl-D leaves")
        terminal.type("# Heading **strong**")
        terminal.wait_for("Heading strong", "completed (done")
        terminal.type('!tool Bash {"command":"ls"} -> two files')
        terminal.wait_for('Bash {"command":"ls"}', "succeeded", "two files")
        terminal.type('!ask "Which colour?" [red|green|blue]')
        terminal.wait_for("Which colour?", "2. green - choose green", "answer>")
        terminal.type("seven")
        terminal.wait_for("type a number from 1 to 3 or a label")
        terminal.type("2")
        terminal.wait_for("Which colour? green")
        terminal.press("d")
        assert terminal.wait_for_exit() == 0

    await on_terminal(daemon, act, "attach", session)


async def test_ctrl_c_interrupts_and_leaves_the_session(daemon: Daemon, session: str) -> None:
    def act(terminal: Terminal) -> None:
        terminal.wait_for("| idle |")
        terminal.type("!sleep 60")
        terminal.wait_for("Ctrl-C interrupts")
        terminal.press("c")
        terminal.wait_for("interrupted (interrupted")
        terminal.type("still here")
        terminal.wait_for("completed (done")
        terminal.press("d")
        assert terminal.wait_for_exit() == 0

    await on_terminal(daemon, act, "attach", session)


async def test_commands_of_the_input_line(daemon: Daemon, session: str) -> None:
    def act(terminal: Terminal) -> None:
        terminal.wait_for("| idle |")
        terminal.type("/help")
        terminal.wait_for("/say TEXT")
        terminal.type("/model echo-2")
        terminal.wait_for("model echo-2", "| echo-2 |")
        terminal.type("/model no-such")
        terminal.wait_for("INVALID_FIELD")
        terminal.type("/model")
        terminal.wait_for("model needs a value")
        terminal.type("/say hello from the agent's own command")
        terminal.wait_for("hello from the agent's own command")
        terminal.type('!ask "Free?" text')
        terminal.wait_for("answer>")
        terminal.type("/interrupt")
        terminal.wait_for("interrupted (interrupted")
        terminal.press("d")
        assert terminal.wait_for_exit() == 0

    await on_terminal(daemon, act, "attach", session)


async def test_a_secret_is_typed_unseen(daemon: Daemon, session: str) -> None:
    def act(terminal: Terminal) -> None:
        terminal.wait_for("| idle |")
        terminal.type('!ask "Password?" secret')
        terminal.wait_for("answer>")
        terminal.type("opensesame")
        terminal.wait_for("Password? 10 characters")
        assert "opensesame" not in terminal.text
        terminal.press("d")
        assert terminal.wait_for_exit() == 0

    await on_terminal(daemon, act, "attach", session)


async def test_history_and_an_old_question_are_there(daemon: Daemon, session: str) -> None:
    async with SessiondClient(daemon.unix) as client:
        sent = await client.send(session, 'earlier words\n!ask "Old question?" [yes|no]')
        async for event in client.subscribe(session, sent.seq):
            if event.HasField("question_asked"):
                break

    def act(terminal: Terminal) -> None:
        seen = terminal.wait_for("Old question?", "answer>")
        assert "earlier words" not in seen
        terminal.type("yes")
        terminal.wait_for("Old question? yes", "completed (done")
        terminal.press("d")
        assert terminal.wait_for_exit() == 0

    await on_terminal(daemon, act, "attach", session, "--last", "0")


async def test_the_view_survives_a_killed_daemon_and_ends_with_its_session(
    daemon: Daemon, session: str
) -> None:
    loop = asyncio.get_running_loop()

    async def delete() -> None:
        async with SessiondClient(daemon.unix) as client:
            await client.delete_session(session)

    def act(terminal: Terminal) -> None:
        terminal.wait_for("| idle |")
        asyncio.run_coroutine_threadsafe(daemon.restart(signal.SIGKILL), loop).result(60)
        terminal.type("after the crash")
        terminal.wait_for("completed (done")
        asyncio.run_coroutine_threadsafe(delete(), loop).result(60)
        terminal.wait_for("the session was deleted")
        assert terminal.wait_for_exit() == 0

    await on_terminal(daemon, act, "attach", session)


async def test_an_answer_is_asked_for_and_so_is_one_while_waiting(daemon: Daemon, session: str) -> None:
    def waiting(terminal: Terminal) -> None:
        terminal.wait_for("1. yes - choose yes", "answer>")
        terminal.type("maybe")
        terminal.wait_for("type a number from 1 to 2")
        terminal.type("1")
        terminal.wait_for("Go on? yes")
        assert terminal.wait_for_exit() == 0

    await on_terminal(daemon, waiting, "send", session, "--wait", '!ask "Go on?" [yes|no]')

    async with SessiondClient(daemon.unix) as client:
        sent = await client.send(session, '!ask "Sure?" [yes|no]')
        events = client.subscribe(session, sent.seq)
        async for event in events:
            if event.HasField("question_asked"):
                break

        def answering(terminal: Terminal) -> None:
            terminal.wait_for("Sure?", "answer>")
            terminal.type("no")
            assert terminal.wait_for_exit() == 0

        await on_terminal(daemon, answering, "answer", session)
        async for event in events:
            if event.HasField("question_answered"):
                assert list(event.question_answered.answers) == ["no"]
                break


async def test_tail_shows_running_text_at_once(daemon: Daemon, session: str) -> None:
    def act(terminal: Terminal) -> None:
        terminal.wait_for("state      idle")
        asyncio.run_coroutine_threadsafe(send("!burst @20 2000"), loop).result(60)
        terminal.wait_for("text       #1")
        assert "turn end" not in terminal.text
        terminal.press("c")
        assert terminal.wait_for_exit() == 130

    async def send(text: str) -> None:
        async with SessiondClient(daemon.unix) as client:
            await client.send(session, text)

    loop = asyncio.get_running_loop()
    await on_terminal(daemon, act, "tail", session)


async def test_a_list_is_fitted_to_the_terminal(daemon: Daemon, session: str) -> None:
    def act(terminal: Terminal) -> None:
        seen = terminal.wait_for("ID", "STATE", "WORKSPACE")
        assert terminal.wait_for_exit() == 0
        assert session[:20] in seen
        assert "…" in seen

    await on_terminal(daemon, act, "ls")
