"""The echo agent by itself, over real pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sessiond_drivers.echo import agent as agent_package
from sessiond_drivers.echo.agent.loop import Flags
from sessiond_drivers.echo.agent.misbehave import Troublemaker
from sessiond_drivers.echo.driver import AGENT
from tests.unit.echo.conftest import RawAgent, Start


def test_it_says_hello_and_what_it_offers(start: Start) -> None:
    hello = start("--session", "s1", "--model", "echo-2", "--title", "Mine").until_kind("hello")
    assert (hello["session"], hello["model"], hello["mode"], hello["title"]) == (
        "s1",
        "echo-2",
        "ask",
        "Mine",
    )
    assert {choice["id"] for choice in hello["options"]["models"]} == {"echo-1", "echo-2", "echo-locked"}
    assert not hello["resumed"]


def test_plain_text_comes_back_word_by_word(start: Start) -> None:
    agent = start()
    agent.message("m1", "hello  wide\nworld")
    end = agent.until_kind("end")
    assert [record["delta"] for record in agent.said("text")] == ["hello", "  wide", "\nworld"]
    assert [record["kind"] for record in agent.records[1:3]] == ["turn", "read"]
    assert (end["outcome"], end["steps"]) == ("done", 1)


def test_a_doubled_mark_is_text(start: Start) -> None:
    agent = start()
    agent.message("m1", "!!crash 1\nmore\n!text and\nlast")
    assert agent.until_kind("end")["steps"] == 3
    assert agent.spoken() == "!crash 1\nmoreandlast"


def test_a_rate_is_kept(start: Start) -> None:
    agent = start()
    began = time.monotonic()
    agent.message("m1", "!text @50/s a b c d e")
    agent.until_kind("end")
    assert time.monotonic() - began >= 0.09


def test_tool_input_is_passed_on_to_the_letter(start: Start) -> None:
    agent = start()
    given = '{"b":  1, "a": 123456789012345678901234567890, "b": "\\u00e9 -> x"}'
    agent.message("m1", f"!tool bash {given} -> out put")
    agent.until_kind("end")
    (line,) = [line for line in agent.lines if b'"tool"' in line]
    assert f'"input":{given}}}'.encode() in line
    assert agent.said("tool_end")[0]["output"] == "out put"


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("!nonsense 1", "no such directive"),
        ("!sleep soon", "could not convert"),
        ("!tool bash {broken", "Expecting property name"),
        ("!ask Which?", "expected"),
        ("!end_sub", "no !sub is open"),
        ("!crash LOUDLY", "neither a code nor a signal"),
    ],
)
def test_a_bad_directive_is_told_and_the_script_goes_on(
    start: Start, script: str, complaint: str
) -> None:
    agent = start()
    agent.message("m1", f"{script}\nstill here")
    agent.until_kind("end")
    (notice,) = agent.said("notice")
    assert notice["level"] == "warning"
    assert complaint in notice["text"]
    assert agent.spoken() == "still here"


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[]",
        b'{"kind":"dance"}',
        b'{"kind":"message"}',
        b"\xff\x00",
        b'{"kind":',
        b"[" * 9999,
    ],
)
def test_a_bad_line_is_reported_and_not_fatal(start: Start, line: bytes) -> None:
    agent = start()
    agent.until_kind("hello")
    agent.tell_raw(line + b"\n")
    agent.until_kind("bad_input")
    agent.message("m1", "alive")
    agent.until_kind("end")
    assert agent.spoken() == "alive"


# --- messages during a turn ---


def test_a_message_is_folded_into_the_turn_at_the_next_boundary(start: Start) -> None:
    agent = start()
    agent.message("m1", '!ask "1" [go]\n!text second step')
    question = agent.until_kind("ask")["id"]
    agent.message("m2", "steered ")
    agent.tell("answer", id=question, answers=["go"], note="")
    agent.until_kind("end")
    kinds = [
        record.get("id") or record["kind"]
        for record in agent.records
        if record["kind"] in ("read", "turn")
    ]
    assert kinds == ["turn", "m1", "m2"]
    assert agent.spoken() == "1 go\nsteered second step"


def test_a_message_after_a_command_waits_for_it(start: Start) -> None:
    agent = start()
    agent.message("m1", '!ask "1" [go]')
    question = agent.until_kind("ask")["id"]
    agent.tell("clear", request="r1")
    agent.message("m2", "!recall")
    agent.tell("answer", id=question, answers=["go"], note="")
    agent.until_kind("end")
    agent.until_kind("cleared")
    agent.until_kind("end")
    assert agent.spoken().endswith("1: !recall\n")


def test_an_append_is_read_without_a_turn(start: Start) -> None:
    agent = start()
    agent.message("m1", "!text no", append=True)
    agent.until_kind("read")
    agent.message("m2", "!recall")
    agent.until_kind("end")
    assert len(agent.said("turn")) == 1
    assert agent.spoken() == "1: !text no\n2: !recall\n"


@pytest.mark.parametrize(
    "during", ["!random @20/s 4000", "!tool for=60 t {}", '!ask "?" [a]', "!burst @flat 90000000"]
)
def test_interrupt_works_at_once(start: Start, during: str) -> None:
    agent = start()
    agent.message("m1", during)
    agent.until(lambda record: record["kind"] in ("text", "tool", "ask"))
    began = time.monotonic()
    agent.tell("interrupt")
    assert agent.until_kind("end")["outcome"] == "interrupted"
    assert time.monotonic() - began < 5
    agent.message("m2", "next")
    agent.until_kind("end")
    assert agent.records[-2]["delta"] == "next"


def test_an_interrupt_written_with_its_message_ends_that_turn(start: Start) -> None:
    agent = start()
    message = {"kind": "message", "id": "m1", "text": "!sleep 60"}
    agent.tell_raw(json.dumps(message).encode() + b'\n{"kind":"interrupt"}\n')
    assert agent.until_kind("end")["outcome"] == "interrupted"


# --- bursts ---


def test_a_burst_is_numbered_and_complete(start: Start) -> None:
    agent = start()
    agent.message("m1", "!burst 20000\n!burst @5000 kind=think size=300 50")
    agent.until_kind("end")
    numbers = [int(record["delta"][1:]) for record in agent.said("text")]
    assert numbers == list(range(1, 20001))
    thoughts = [line for line in agent.lines if b'"think"' in line]
    assert len(thoughts) == 50
    assert {len(line) for line in thoughts} <= {298, 299, 300}


def test_a_huge_line_is_one_line(start: Start) -> None:
    agent = start()
    agent.message("m1", "!huge 3\n!huge as=tool 1")
    agent.until_kind("end")
    assert [len(record["delta"]) for record in agent.said("text")] == [3_000_000]
    assert len(agent.said("tool_end")[0]["output"]) == 1_000_000


def test_the_same_seed_makes_the_same_noise(start: Start) -> None:
    noise = []
    for session, seed in (("s1", "3"), ("s2", "3"), ("s3", "4")):
        agent = start("--session", session, "--seed", seed)
        agent.message("m1", "!garbage 5\n!random 5")
        agent.until_kind("end")
        noise.append(agent.lines[3:-1])
    assert noise[0] == noise[1] != noise[2]


# --- ends ---


def test_it_ends_with_its_stdin(start: Start) -> None:
    agent = start()
    agent.message("m1", "!sleep 60")
    agent.until_kind("read")
    assert agent.end() == (0, "")


def test_it_quits_when_told(start: Start) -> None:
    agent = start()
    agent.message("m1", '!ask "?" [a]')
    agent.until_kind("ask")
    agent.tell("quit")
    assert agent.until_kind("end")["message"] == "told to quit"
    assert agent.process.wait(20) == 0


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("!crash", 1),
        ("!crash 7", 7),
        ("!crash KILL", -signal.SIGKILL),
        ("!crash SEGV", -signal.SIGSEGV),
        ("!exit 4", 4),
    ],
)
def test_it_ends_as_told(start: Start, script: str, code: int) -> None:
    agent = start()
    agent.message("m1", f"last words\n{script}")
    agent.until(lambda record: record.get("delta") == " words")
    assert agent.process.wait(20) == code


def test_a_hanging_agent_hears_nothing_and_goes_on_when_over(start: Start) -> None:
    agent = start()
    agent.message("m1", "before\n!hang 0.2\n!text after")
    agent.until(lambda record: record.get("delta") == "before")
    agent.tell("interrupt")
    assert agent.until_kind("end")["outcome"] == "interrupted"
    assert agent.spoken() in ("before", "beforeafter")


def test_closed_stdout_is_silence_and_no_death(start: Start) -> None:
    agent = start()
    agent.message("m1", "!close_stdout\nunheard\n!stderr still here")
    with pytest.raises(EOFError):
        agent.until_kind("end")
    assert agent.process.stderr is not None
    assert agent.process.stderr.readline() == b"still here\n"
    assert agent.end()[0] == 0


def test_it_ends_when_nobody_listens(start: Start) -> None:
    agent = start()
    agent.until_kind("hello")
    assert agent.process.stdout is not None
    agent.process.stdout.close()
    agent.message("m1", "anybody?")
    assert agent.process.wait(20) == 0


def test_a_child_is_left_behind(start: Start) -> None:
    agent = start()
    agent.message("m1", "!spawn 60")
    agent.until_kind("end")
    found = re.fullmatch(r"pid (\d+)", agent.spoken())
    assert found is not None
    os.kill(int(found[1]), signal.SIGKILL)


def test_it_is_slow_to_start_when_told(start: Start) -> None:
    began = time.monotonic()
    start("--start-delay", "0.3").until_kind("hello")
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--resume", "never-was"), 1, "no conversation with the id never-was"),
        (("--resume", "../../etc/passwd"), 1, "no conversation"),
        (("--dance", "1"), 2, "unknown argument --dance; known: --session"),
        (("--seed", "x"), 2, "invalid literal"),
        (("--script", "no-such-file"), 2, "No such file"),
    ],
)
def test_bad_flags_are_one_clear_line(
    start: Start, flags: tuple[str, ...], code: int, words: str
) -> None:
    returned, errors = start(*flags).end()
    assert returned == code
    assert words in errors
    assert errors.count("\n") == 1


def test_version() -> None:
    run = subprocess.run(
        [sys.executable, str(AGENT), "--version"], capture_output=True, text=True, timeout=20
    )
    assert re.fullmatch(r"sessiond echo agent \d+\.\d+\.\d+\n", run.stdout)


# --- memory ---


def ended(agent: RawAgent) -> None:
    agent.until_kind("end")
    assert agent.end()[0] == 0


def test_a_conversation_is_resumed_with_new_ids(start: Start) -> None:
    first = start("--session", "s1")
    first.message("m1", "!tool a {}")
    first.until_kind("end")
    first.message("m2", "!crash KILL")
    first.process.wait(20)
    second = start("--resume", "s1")
    second.message("m3", "!tool b {}\n!recall")
    second.until_kind("end")
    assert second.said("hello")[0]["resumed"]
    assert second.spoken() == "1: !tool a {}\n2: !crash KILL\n3: !tool b {}\n!recall\n"
    assert (first.said("tool")[0]["id"], second.said("tool")[0]["id"]) == ("t1.1", "t2.1")


def test_a_new_conversation_of_an_old_name_remembers_nothing(start: Start) -> None:
    for _ in range(2):
        agent = start("--session", "s1")
        agent.message("m1", "!recall")
        ended(agent)
        assert agent.spoken() == "1: !recall\n"


def test_the_read_log_has_every_read_and_tells_repetitions(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "read.jsonl"
    env = {"ECHO_READ_LOG": str(log)}
    agent = start("--session", "s1", env=env)
    agent.message("m1", "one\ntwo")
    agent.message("m2", "appended", append=True)
    agent.message("m3", "é!")
    agent.until(lambda record: record.get("delta") == "é!")
    ended(agent)
    again = start("--resume", "s1", env=env)
    again.message("m3", "é!")
    again.message("m4", "new")
    again.until(lambda record: record.get("delta") == "new")
    ended(again)
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [(record["id"], record["again"]) for record in records] == [
        ("m1", False), ("m2", False), ("m3", False), ("m3", True), ("m4", False),
    ]  # fmt: skip
    assert {record["session"] for record in records} == {"s1"}
    assert records[0]["text"] == "one\ntwo"


def test_a_message_logged_before_a_crash_is_known_afterwards(start: Start, tmp_path: Path) -> None:
    """The log is written first, so that a crash between the two files doubles nothing."""
    log = tmp_path / "read.jsonl"
    env = {"ECHO_READ_LOG": str(log)}
    agent = start("--session", "s1", env=env)
    agent.message("m1", "one")
    ended(agent)
    with log.open("a") as file:
        file.write('{"session":"s1","id":"m2","again":false,"text":"x"}\n')
    again = start("--resume", "s1", env=env)
    again.message("m2", "!recall")
    again.until_kind("end")
    assert again.spoken() == "1: one\n2: !recall\n"
    logged = json.loads(log.read_text().splitlines()[-1])
    assert logged.pop("pid")
    assert logged == {"session": "s1", "id": "m2", "again": True, "text": "!recall"}


def test_nothing_is_left_in_the_workspace(start: Start, tmp_path: Path) -> None:
    agent = start()
    agent.message("m1", "hello")
    ended(agent)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


# --- scripts ---


def test_a_script_file_has_a_block_for_each_message(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("!think hm\nyou said {text}\n---\n!usage 1 2\n")
    agent = start("--script", str(script))
    for number, text in enumerate(("one", "two", "three"), 1):
        agent.message(f"m{number}", text)
        agent.until_kind("end")
    assert agent.spoken() == "you said onethree"
    assert len(agent.said("usage")) == len(agent.said("think")) == 1


def test_settings_change_or_are_refused_also_during_a_turn(start: Start) -> None:
    agent = start()
    agent.message("m1", "!sleep 60")
    agent.tell("set", request="r1", model="echo-2")
    agent.tell("set", request="r2", effort="absurd")
    agent.tell("set", request="r3", model="echo-locked")
    agent.until(lambda record: record.get("request") == "r3")
    assert agent.said("settings") == [{"kind": "settings", "model": "echo-2", "request": "r1"}]
    assert [record["request"] for record in agent.said("refused")] == ["r2", "r3"]


def test_every_directive_is_documented_and_nothing_else_is() -> None:
    readme = (AGENT.parent.parent / "README.md").read_text(encoding="utf-8")
    played = {name.removeprefix("do_") for name in dir(Troublemaker) if name.startswith("do_")}
    assert set(re.findall(r"`!([a-z_]+)", readme)) == played


def test_every_flag_is_documented() -> None:
    for flag in Flags.names:
        assert re.search(rf"--{flag}\b", agent_package.__doc__ or ""), flag
