"""The echo driver without its agent: what no scenario with a real agent can bring about."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.v1 import error_reason_pb2, session_pb2
from sessiond.v1 import event_pb2 as ev
from sessiond.v1.session_service_pb2 import UnqueueOutcome
from sessiond_drivers.base import Emit, ExitStatus, Refused, Settle
from sessiond_drivers.echo import DRIVER, EchoConfig
from sessiond_drivers.echo.state import State
from tests.conformance.host import SPEC, DriverHost

HELLO = (
    b'{"kind":"hello","version":"1.0.0","session":"echo-1","model":"echo-1",'
    b'"options":{"commands":[{"id":"stats"}]}}'
)
TURN, END = b'{"kind":"turn","origin":"message"}', b'{"kind":"end","outcome":"done"}'


def ready() -> DriverHost:
    host = DriverHost(lambda: DRIVER.create(EchoConfig()))
    host.launch()
    host.line(HELLO)
    return host


def test_the_launch_line_says_what_was_asked_for() -> None:
    config = EchoConfig(
        state_dir="/s", read_log="/r", script="/p", seed=3, rate=2.5, start_delay=1, args=["--x", "y"]
    )
    driver = DRIVER.create(config)
    spec = replace(SPEC, model="m", permission_mode="p", effort="e", title="t", system_prompt="words")
    words = driver.launch(spec, resume=False).argv
    flags = dict(zip(words[4::2], words[5::2], strict=True))
    assert flags == {
        "--session": f"echo-{SPEC.session_id}", "--model": "m", "--mode": "p",
        "--effort": "e", "--title": "t", "--system-prompt": "words", "--script": "/p",
        "--state-dir": "/s", "--read-log": "/r", "--start-delay": "1", "--rate": "2.5",
        "--seed": "3", "--x": "y",
    }  # fmt: skip
    again = driver.launch(replace(SPEC, native_session_id="echo-1"), resume=True).argv
    assert again[4:6] == ("--resume", "echo-1")
    assert "--session" not in again


def test_the_program_tells_its_version() -> None:
    program = DRIVER.program(EchoConfig())
    run = subprocess.run(
        [program.executable, *program.version_args],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert program.parse_version(run.stdout) == "1.0.0"


def test_capabilities_are_all_but_those_that_make_no_sense() -> None:
    missing = {f.name for f in session_pb2.DriverCapabilities.DESCRIPTOR.fields} - {
        f.name for f, _ in DRIVER.capabilities.ListFields()
    }
    assert missing == {"fork", "side_question"}


# --- between turns, at every instant ---


def test_between_turns_is_exact() -> None:
    host = DriverHost(lambda: DRIVER.create(EchoConfig()))
    host.launch()
    assert not host.driver.between_turns
    host.line(HELLO)
    assert host.driver.between_turns
    host.send("a", "append", append=True)
    assert host.driver.between_turns
    host.send("m1", "hello")
    assert not host.driver.between_turns
    host.line(b'{"kind":"read","id":"a"}')
    assert not host.driver.between_turns
    host.line(TURN)
    host.line(b'{"kind":"read","id":"m1"}')
    host.send("m2", "steered")
    host.line(END)
    assert not host.driver.between_turns, "the agent will start a turn with m2"
    assert host.bodies("state_changed")[-1].state == session_pb2.SESSION_STATE_RUNNING
    host.line(TURN)
    host.line(b'{"kind":"read","id":"m2"}')
    host.line(END)
    assert host.driver.between_turns


@pytest.mark.parametrize("verb", ["compact", "clear", "run_command"])
@pytest.mark.parametrize("answer", ["done", "refused"])
def test_between_turns_waits_for_a_command(verb: str, answer: str) -> None:
    host = ready()
    if verb == "run_command":
        host.run_command("c1", "/stats")
    else:
        getattr(host, verb)("c1")
    assert not host.driver.between_turns
    if answer == "refused":
        host.line(b'{"kind":"refused","request":"r1","message":"no"}')
    elif verb == "clear":
        host.line(b'{"kind":"cleared","request":"r1"}')
    else:
        host.line(b'{"kind":"turn","origin":"command"}')
        host.line(b'{"kind":"end","outcome":"done","request":"r1"}')
    assert host.driver.between_turns
    host.obligations.quiet()


def test_a_setting_on_its_way_does_not_hold_a_turn_back() -> None:
    host = ready()
    host.set("model", "echo-2")
    assert host.driver.between_turns


def test_a_message_taken_back_frees_the_way() -> None:
    host = ready()
    host.send("m1", "hello")
    host.unqueue("m1")
    assert not host.driver.between_turns
    host.line(b'{"kind":"unqueued","id":"m1","outcome":"dropped"}')
    assert host.driver.between_turns


READ, BACK = b'{"kind":"read","id":"m1"}', b'{"kind":"unqueued","id":"m1","outcome":"%s"}'


@pytest.mark.parametrize(
    ("lines", "outcomes"),
    [
        ([READ], ["ALREADY_SENT", "ALREADY_SENT"]),
        ([READ, BACK % b"unknown"], ["ALREADY_SENT", "ALREADY_SENT"]),
        ([READ, BACK % b"dropped", BACK % b"unknown"], ["ALREADY_SENT", "ALREADY_SENT"]),
        ([b'{"kind":"dropped","id":"m1"}', BACK % b"read"], ["DROPPED", "DROPPED"]),
        ([BACK % b"dropped"], ["DROPPED", "DROPPED"]),
        ([BACK % b"unknown", BACK % b"unknown"], ["UNKNOWN", "DROPPED"]),
        ([BACK % b"read", READ], ["ALREADY_SENT", "ALREADY_SENT"]),
        ([], ["DROPPED", "DROPPED"]),
    ],
)
def test_a_message_asked_back_twice_is_settled_by_what_happened_to_it(
    lines: list[bytes], outcomes: list[str]
) -> None:
    host = ready()
    host.send("m1", "hello")
    host.unqueue("m1")
    host.unqueue("m1")
    for line in lines:
        host.line(line)
    host.exited()
    settled = [UnqueueOutcome.Name(e.outcome) for e in host.effects if isinstance(e, Settle)]
    assert settled == [f"UNQUEUE_OUTCOME_{outcome}" for outcome in outcomes]
    assert not host.bodies("notice")


# --- refusals ---


def test_interrupt_needs_something_to_interrupt() -> None:
    with pytest.raises(Refused) as refused:
        ready().interrupt()
    assert refused.value.reason == error_reason_pb2.ERROR_REASON_TURN_NOT_RUNNING


def test_interrupt_works_for_a_turn_that_is_only_on_its_way() -> None:
    host = ready()
    host.send("m1", "hello")
    host.interrupt()
    assert host.lines_written()[-1] == b'{"kind":"interrupt"}\n'


def test_an_answer_needs_an_open_question() -> None:
    with pytest.raises(Refused) as refused:
        ready().driver.answer("q1", ["a"], "")
    assert refused.value.reason == error_reason_pb2.ERROR_REASON_QUESTION_NOT_FOUND


@pytest.mark.parametrize("text", ["stats", "/", "/nonsense", "", "/statsx", " /stats"])
def test_only_commands_on_offer_are_accepted(text: str) -> None:
    host = ready()
    with pytest.raises(Refused, match="/stats"):
        host.driver.check_command(text)
    host.driver.check_command("/stats now")


# --- the state ---


def test_streamed_text_does_not_touch_the_snapshot() -> None:
    host = ready()
    host.line(TURN)
    host.line(b'{"kind":"tool","id":"t1","name":"x"}')
    before = host.driver.snapshot()
    for line in (
        b'{"kind":"text","delta":"a"}',
        b'{"kind":"think","delta":"a"}',
        b'{"kind":"tool_output","id":"t1","output":"a"}',
        b"no json",
    ):
        host.line(line)
        assert host.driver.snapshot() is before


def test_a_snapshot_of_a_version_with_fewer_and_other_fields_is_taken_back() -> None:
    driver = DRIVER.create(EchoConfig())
    driver.restore(msgspec.msgpack.encode({"ready": True, "a_field_of_long_ago": 1}))
    assert driver.between_turns
    assert msgspec.msgpack.decode(driver.snapshot(), type=State).ready


def test_adoption_closes_what_the_agent_does_not_know_of() -> None:
    host = ready()
    host.line(TURN)
    host.line(b'{"kind":"tool","id":"t1","name":"x"}')
    host.line(b'{"kind":"ask","id":"q1","prompt":"?"}')
    host.adopted()
    assert host.lines_written() == [b'{"kind":"status"}\n']
    before = len(host.effects)
    host.line(b'{"kind":"status","busy":true,"questions":["q1"],"model":"echo-1"}')
    assert len(host.effects) == before, "all is as it was"
    host.line(b'{"kind":"status","busy":false,"questions":[],"model":"echo-2"}')
    assert host.kinds[-5:] == [
        "question_withdrawn",
        "tool_ended",
        "turn_ended",
        "settings_changed",
        "state_changed",
    ]
    assert host.driver.between_turns


def test_an_exit_before_hello_says_why() -> None:
    host = DriverHost(lambda: DRIVER.create(EchoConfig()))
    host.launch()
    host.exited(ExitStatus(exit_code=1, stderr_tail="no such thing\n"))
    (error,) = host.bodies("error_raised")
    assert (error.reason, error.message) == ("LAUNCH_FAILED", "the agent did not start: no such thing")


# --- lines ---


def test_marks_and_parents_are_passed_on() -> None:
    host = ready()
    (effect,) = host.line(b'{"kind":"text","delta":"a","block":"b","mark":"m","parent":"t1"}')
    assert isinstance(effect, Emit)
    assert effect.mark == "m"
    assert host.events[-1] == ev.Event(
        parent_tool_id="t1", assistant_text=ev.AssistantText(delta="a", block_id="b")
    )


@pytest.mark.parametrize(
    ("line", "delta"),
    [
        (b'{"kind":"text","delta":"\\ud83d\\ude00"}', "😀"),
        (b'{"kind":"text","delta":"\\ud83d"}', "\ufffd"),
        (b'{"kind":"text","delta":"\xff"}', "\ufffd"),
        (b'{"kind":"text","delta":"a\\u0000b"}', "a\0b"),
        (b' {"delta":"a","kind":"text","more":[1,{}]}\r', "a"),
    ],
)
def test_text_is_made_valid(line: bytes, delta: str) -> None:
    host = ready()
    host.line(line)
    assert host.bodies("assistant_text")[-1].delta == delta


@given(st.text())
def test_any_text_survives(text: str) -> None:
    host = ready()
    host.line(msgspec.json.encode({"kind": "text", "delta": text}))
    assert host.bodies("assistant_text")[-1].delta == text
