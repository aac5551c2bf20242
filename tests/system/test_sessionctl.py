"""Every command of sessionctl against a real daemon, as a program of its own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon
from tests.support.waiting import until

SESSIONCTL = str(Path(sys.executable).with_name("sessionctl"))
_SECONDS = 60.0


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> list[Any]:
        """Its output as JSON, one object a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Ctl:
    """Runs sessionctl as a user of one daemon would."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            SESSIONCTL,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.daemon.workspace,
            env=self.daemon.env,
        )

    async def try_(self, *arguments: str, stdin: str = "") -> Ran:
        """Run a command to its end, however that is."""
        process = await self.start(*arguments)
        async with asyncio.timeout(_SECONDS):
            out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        return Ran(process.returncode, out.decode(), err.decode())

    async def __call__(self, *arguments: str, stdin: str = "") -> Ran:
        """Run a command that must succeed."""
        ran = await self.try_(*arguments, stdin=stdin)
        assert ran.code == 0, f"{arguments}: {ran}"
        return ran

    async def new(self, *arguments: str) -> str:
        """Start an echo session; returns its id."""
        return (await self("new", "--driver", "echo", *arguments)).out.strip()

    async def session(self, name: str) -> dict[str, Any]:
        (shown,) = (await self("show", name, "--json")).json
        assert isinstance(shown, dict)
        return shown


@pytest.fixture
def ctl(daemon: Daemon) -> Ctl:
    return Ctl(daemon)


async def test_a_session_is_made_listed_shown_changed_and_removed(ctl: Ctl) -> None:
    first = await ctl.new(
        *("--title", "First", "--label", "team=a", "--label", "tier=1", "--model", "echo-2"),
        *("--permission-mode", "auto", "--effort", "high", "--env", "GREETING=hi"),
    )
    second = await ctl.new("--label", "team=b")
    listed = (await ctl("ls")).out.splitlines()
    assert listed[0].split("\t")[:3] == ["ID", "STATE", "DRIVER"]
    assert {line.split("\t")[0] for line in listed[1:]} == {first, second}
    only = (await ctl("--json", "ls", "--label", "team=a")).json
    assert [session["sessionId"] for session in only] == [first]
    assert (await ctl("ls", "--state", "exited", "--json")).json == []

    await ctl("send", first, "--wait", "hello")
    shown = await ctl.session(first)
    assert shown["labels"] == {"team": "a", "tier": "1"}
    assert shown["settings"] == {"model": "echo-2", "permissionMode": "auto", "effort": "high"}
    assert shown["workspace"] == str(ctl.daemon.workspace)
    text = (await ctl("show", first)).out
    assert "title:        First\n" in text
    assert "model:        echo-2\n" in text

    await ctl("update", first, "--title", "Renamed", "--label", "team=c", "--label", "tier=")
    shown = await ctl.session(first)
    assert (shown["title"], shown["labels"]) == ("Renamed", {"team": "c"})

    await ctl("rm", first, second)
    assert (await ctl("ls", "--json")).json == []


async def test_an_id_may_be_abbreviated_while_it_is_clear(ctl: Ctl) -> None:
    first, second = await ctl.new(), await ctl.new()
    common = 0
    while first[common] == second[common]:
        common += 1
    assert (await ctl.session(first[: common + 1]))["sessionId"] == first
    if common:
        ambiguous = await ctl.try_("show", first[:common])
        assert (ambiguous.code, ambiguous.out) == (1, "")
        assert ambiguous.err.startswith("sessionctl: AMBIGUOUS_SESSION: 2 sessions begin with")
    missing = await ctl.try_("show", "no-such-session")
    assert missing.code == 1
    assert missing.err.startswith("sessionctl: SESSION_NOT_FOUND: ")
    assert missing.err.count("\n") == 1


async def test_a_turn_is_printed_to_its_end(ctl: Ctl) -> None:
    session = await ctl.new()
    ran = await ctl("send", session, "--wait", 'well said\n!tool Bash {"command":"ls"} -> done')
    shown = [line[8:].split(maxsplit=1)[0] for line in ran.out.splitlines() if line[:8].strip()]
    assert shown == ["user", "text", "tool", "tool", "turn"]
    assert "text       well said\n" in ran.out
    failed = await ctl.try_("send", session, "--wait", "!fail reason=refused No")
    assert failed.code == 1
    assert failed.err == "sessionctl: TURN_NOT_COMPLETED: failed\n"
    kinds = (await ctl("send", session, "--wait", "--json", "-", stdin="from a pipe")).json
    assert "userMessage" in kinds[0]
    assert "turnEnded" in kinds[-1]
    assert kinds[0]["userMessage"]["text"] == "from a pipe"


async def test_tail_prints_history_and_live(ctl: Ctl) -> None:
    session = await ctl.new()
    await ctl("send", session, "--wait", "one two three")
    everything = (await ctl("tail", session, "--no-follow", "--json")).json
    assert [int(event["seq"]) for event in everything] == list(range(1, len(everything) + 1))
    after = (await ctl("tail", session, "--no-follow", "--json", "--after", "5", "--count", "2")).json
    assert after == everything[5:7]
    last = (await ctl("tail", session, "--no-follow", "--json", "--last", "3")).json
    assert last == everything[-3:]
    assert (await ctl("tail", session, "--no-follow", "--after", str(len(everything)))).out == ""

    following = await ctl.start("tail", session, "--after", str(len(everything)), "--json")
    assert following.stdout is not None
    sent = (await ctl("send", session, "live")).out.strip()
    async with asyncio.timeout(_SECONDS):
        event = json.loads(await following.stdout.readline())
        assert event["messageQueued"]["messageId"] == sent
        await ctl("rm", session)
        await following.communicate()
    assert following.returncode == 0


async def test_tail_goes_on_over_a_killed_daemon(ctl: Ctl) -> None:
    session = await ctl.new()
    tail = await ctl.start("tail", session, "--json")
    assert tail.stdout is not None
    assert tail.stderr is not None
    seqs = []

    async def next_event() -> dict[str, Any]:
        assert tail.stdout is not None
        event: dict[str, Any] = json.loads(await tail.stdout.readline())
        seqs.append(int(event["seq"]))
        return event

    async with asyncio.timeout(_SECONDS):
        while "settingsChanged" not in await next_event():
            pass
        await ctl.daemon.restart(signal.SIGKILL)
        await ctl("send", session, "still here")
        while "turnEnded" not in await next_event():
            pass
        tail.send_signal(signal.SIGINT)
        _, err = await tail.communicate()
    assert seqs == list(range(1, len(seqs) + 1))
    assert tail.returncode == 130
    assert err.startswith(b"sessionctl: connection lost, trying again: ")


async def test_a_closed_pipe_ends_tail_quietly(ctl: Ctl) -> None:
    session = await ctl.new()
    await ctl("send", session, "--wait", "!burst 5000")
    tail = await ctl.start("tail", session)
    assert tail.stdout is not None
    assert tail.stderr is not None
    async with asyncio.timeout(_SECONDS):
        await tail.stdout.readline()
        transport: Any = tail.stdout
        transport._transport.close()
        err = await tail.stderr.read()
        assert await tail.wait() == 141
    assert err == b""


async def test_waiting_messages_are_edited_moved_and_taken_back(ctl: Ctl) -> None:
    session = await ctl.new()
    await ctl("send", session, "!sleep 60")
    one = (await ctl("send", session, "--next", "one")).out.strip()
    (two,) = (await ctl("send", session, "--next", "--json", "two")).json
    assert two["queued"] is True
    await ctl("edit", session, one, "--revision", "1", "uno", "mas")
    stale = await ctl.try_("edit", session, one, "--revision", "1", "late")
    assert stale.err.startswith("sessionctl: STALE_REVISION: ")
    await ctl("move", session, two["messageId"], "--before", one)
    waiting = [
        line for line in (await ctl("show", session)).out.splitlines() if line.startswith("waiting")
    ]
    assert waiting == [
        f"waiting {two['messageId']} message (revision 2): two",
        f"waiting {one} message (revision 2): uno mas",
    ]
    assert (await ctl("unqueue", session, two["messageId"])).out == "dropped\n"
    assert (await ctl("unqueue", session, "nothing")).out == "unknown\n"
    now = await ctl("send", session, "--now", "--wait", "at once")
    assert "text       at once" in now.out
    assert (await ctl("send", session, "--append", "--wait", "kept in mind")).code == 0
    both = await ctl.try_("send", session, "--now", "--next", "x")
    assert (both.code, "choose one of" in both.err) == (2, True)


async def test_questions_are_listed_and_answered(ctl: Ctl) -> None:
    session = await ctl.new()
    sending = await ctl.start("send", session, "--wait", '!ask "Which one?" [red|green]')
    assert sending.stderr is not None
    async with asyncio.timeout(_SECONDS):
        hint = (await sending.stderr.readline()).decode()
    assert hint.startswith("sessionctl: the agent asks: Which one? - answer with: sessionctl answer ")
    question = hint.split()[-2]
    listed = (await ctl("answer", session)).out.splitlines()
    assert listed[0] == question
    assert listed[1].endswith("Which one?")
    assert listed[2:] == ["  1. red - choose red", "  2. green - choose green"]
    (asked,) = (await ctl("answer", session, "--json")).json
    assert asked["questionId"] == question
    wrong = await ctl.try_("answer", session, question, "blue")
    assert (wrong.code, wrong.err.count("\n")) == (1, 1)
    await ctl("answer", session, question, "2", "--note", "for the trees")
    async with asyncio.timeout(_SECONDS):
        out, _ = await sending.communicate()
    assert sending.returncode == 0
    assert "Which one? green (for the trees)" in out.decode()
    assert (await ctl("answer", session)).out == ""
    unknown = await ctl.try_("answer", session, "q99")
    assert unknown.err.startswith("sessionctl: QUESTION_NOT_FOUND: ")


async def test_every_action_of_control_has_its_event(ctl: Ctl) -> None:
    session = await ctl.new()
    await ctl("send", session, "--wait", "ready")
    head = int((await ctl.session(session))["headSeq"])
    await ctl("control", session, "model", "echo-2")
    await ctl("control", session, "mode", "plan")
    await ctl("control", session, "effort", "low")
    await ctl("control", session, "title", "My", "title")
    await ctl("control", session, "compact", "keep", "names")
    await ctl("control", session, "clear")
    await ctl("control", session, "run", "/say hello")
    await ctl("send", session, "!sleep 60")
    (queued,) = (await ctl("control", session, "clear", "--json")).json
    assert queued["queued"] is True
    waits = await ctl("control", session, "compact")
    assert waits.out.startswith("waits for the turn to end (")
    await ctl("control", session, "interrupt")
    await ctl("send", session, "--wait", "after")
    await ctl("control", session, "stop")
    tail = await ctl.start("tail", session, "--after", str(head), "--json")
    seen: list[dict[str, Any]] = []
    assert tail.stdout is not None
    async with asyncio.timeout(_SECONDS):
        while "processExited" not in (seen[-1] if seen else {}):
            seen.append(json.loads(await tail.stdout.readline()))
        await ctl("control", session, "restart")
        while "processStarted" not in seen[-1]:
            seen.append(json.loads(await tail.stdout.readline()))
        tail.send_signal(signal.SIGINT)
        await tail.communicate()
    changed = [event["settingsChanged"] for event in seen if "settingsChanged" in event]
    for expected in (
        {"model": "echo-2"},
        {"permissionMode": "plan"},
        {"effort": "low"},
        {"title": "My title"},
    ):
        assert expected in changed
    kinds = [kind for event in seen for kind in event]
    assert kinds.count("compacted") == 2
    assert kinds.count("cleared") == 2
    assert "commandOutput" in kinds
    assert "TURN_OUTCOME_INTERRUPTED" in [event.get("turnEnded", {}).get("outcome") for event in seen]


async def test_usage_errors_of_control(ctl: Ctl) -> None:
    session = await ctl.new()
    assert (await ctl.try_("control", session, "model")).code == 2
    assert (await ctl.try_("control", session, "interrupt", "now")).code == 2
    assert (await ctl.try_("control", session, "dance")).code == 2
    refused = await ctl.try_("control", session, "model", "no-such-model")
    assert refused.code == 1


async def test_attachments_go_both_ways(ctl: Ctl) -> None:
    session = await ctl.new()
    file = ctl.daemon.workspace / "notes.txt"
    file.write_bytes(b"some notes\n" * 200_000)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert (await ctl("upload", session, "notes.txt")).out.strip() == digest
    (again,) = (await ctl("upload", session, "notes.txt", "--json", "--media-type", "text/x-notes")).json
    assert again["ref"] == digest
    exists = await ctl.try_("download", session, digest)
    assert exists.err.startswith("sessionctl: FILE_EXISTS: ")
    file.unlink()
    await ctl("download", session, digest)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == digest
    await ctl("download", session, digest, "-o", "copy", "--force")
    assert (ctl.daemon.workspace / "copy").read_bytes() == file.read_bytes()
    assert (await ctl("download", session, digest, "-o", "-")).out == file.read_text()
    sent = await ctl("send", session, "--wait", "--attach", "notes.txt", "see this")
    assert f"+ notes.txt (text/plain, 2.1 MiB) {digest}" in sent.out
    missing = await ctl.try_("upload", session, "nothing.txt")
    assert (missing.code, missing.err) == (
        1,
        "sessionctl: FILE: nothing.txt: No such file or directory\n",
    )
    nowhere = await ctl.try_("download", session, digest, "-o", "nowhere/copy")
    assert nowhere.err == "sessionctl: FILE: nowhere/copy: No such file or directory\n"
    unknown = await ctl.try_("download", session, "0" * 64, "-o", "x")
    assert unknown.err.startswith("sessionctl: ATTACHMENT_NOT_FOUND: ")
    assert sorted(path.name for path in ctl.daemon.workspace.iterdir()) == ["copy", "notes.txt"]


async def test_info_names_the_drivers(ctl: Ctl) -> None:
    text = (await ctl("info")).out
    assert f"at {ctl.daemon.unix}" in text
    assert "\necho\tEcho\t" in text
    (told,) = (await ctl("--json", "info")).json
    assert "echo" in [driver["name"] for driver in told["drivers"]]


async def test_tcp_needs_the_token_which_is_found(ctl: Ctl, tmp_path: Path) -> None:
    tcp = ctl.daemon.tcp
    assert f"at {tcp}" in (await ctl("--address", tcp, "info")).out
    wrong = tmp_path / "token"
    wrong.write_text("wrong")
    refused = await ctl.try_("--address", tcp, "--token-file", str(wrong), "info")
    assert refused.code == 1
    assert refused.err.startswith("sessionctl: UNAUTHENTICATED: ")


async def test_nobody_there_is_one_line_that_says_what_to_do(ctl: Ctl) -> None:
    ran = await ctl.try_("--address", "unix:///nowhere/s.sock", "ls")
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert ran.err.startswith("sessionctl: UNAVAILABLE: nothing answers at unix:/nowhere/s.sock")
    assert "sessiond serve" in ran.err
    assert ran.err.endswith(" (No such file or directory)\n")
    nonsense = await ctl.try_("--address", "what", "ls")
    assert nonsense.err.startswith("sessionctl: ADDRESS: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("new",),
        ("send", "s"),
        ("new", "--driver", "echo", "--label", "x"),
        ("ls", "--state", "?"),
    ],
)
async def test_wrong_usage_exits_with_2(ctl: Ctl, arguments: tuple[str, ...]) -> None:
    assert (await ctl.try_(*arguments)).code == 2


async def test_text_that_is_no_utf8_is_one_clear_line(ctl: Ctl) -> None:
    session = await ctl.new()
    ran = await ctl.try_("send", session, "caf\udce9")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert ran.err.startswith("sessionctl: NOT_UTF8: ")
    assert "codec" not in ran.err


async def test_a_terminal_without_unicode_gets_numbers(ctl: Ctl) -> None:
    session = await ctl.new("--title", "caf\u00e9 \u2713")
    process = await asyncio.create_subprocess_exec(
        SESSIONCTL,
        "ls",
        stdout=asyncio.subprocess.PIPE,
        env={**ctl.daemon.env, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    async with asyncio.timeout(_SECONDS):
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert session in out.decode("ascii")
    assert "caf\\xe9 \\u2713" in out.decode("ascii")


async def test_the_version_is_printed(ctl: Ctl) -> None:
    assert (await ctl("--version")).out.startswith("sessionctl ")


async def test_attach_outside_a_terminal_says_what_to_use(ctl: Ctl) -> None:
    ran = await ctl.try_("attach", "any")
    assert (ran.code, ran.err) == (
        1,
        "sessionctl: NO_TERMINAL: attach needs a terminal: use tail and send\n",
    )


async def test_a_broken_daemon_folder_is_not_taken_for_a_daemon(ctl: Ctl) -> None:
    await ctl.daemon.kill()
    await until(lambda: not ctl.daemon.running, "the daemon is gone")
    ran = await ctl.try_("ls")
    assert ran.err.startswith("sessionctl: UNAVAILABLE: nothing answers at")
