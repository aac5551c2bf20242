"""How the program is started, resumed, ended, and what is said when it does not start."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import pytest

from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import ExitStatus
from tests.conformance.drivers import drivers
from tests.conformance.host import SPEC
from tests.unit.claude.talk import Talk

_FULL = replace(
    SPEC,
    model="sonnet",
    permission_mode="plan",
    effort="high",
    title="A title",
    system_prompt="Be brief.",
    native_session_id="abc",
)


def flag(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_settings_become_flags_at_every_start() -> None:
    talk = Talk()
    for _ in range(2):
        argv = talk.launch(_FULL, resume=True).argv
        assert argv[:2] == ("claude", "-p")
        assert flag(argv, "--model") == "sonnet"
        assert flag(argv, "--permission-mode") == "plan"
        assert flag(argv, "--effort") == "high"
        assert flag(argv, "--name") == "A title"
        assert flag(argv, "--append-system-prompt") == "Be brief."
        assert flag(argv, "--resume") == "abc"
        talk.exited()


def test_what_is_not_asked_for_is_left_to_the_program() -> None:
    argv = Talk().launch().argv
    for name in ("--model", "--permission-mode", "--effort", "--name", "--resume"):
        assert name not in argv
    assert "--allow-dangerously-skip-permissions" not in argv
    assert "--allow-dangerously-skip-permissions" in Talk(allow_bypass=True).launch().argv


def test_traffic_that_nobody_asked_for_is_off() -> None:
    off = Talk().launch().env
    assert off["CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS"] == "1"
    assert off["DISABLE_TELEMETRY"] == off["DISABLE_ERROR_REPORTING"] == "1"
    assert off["DISABLE_AUTOUPDATER"] == off["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    on = Talk(telemetry=True, auto_update=True, env={"X": "y"}).launch().env
    assert "DISABLE_TELEMETRY" not in on
    assert "DISABLE_AUTOUPDATER" not in on
    assert on["DISABLE_ERROR_REPORTING"] == "1"
    assert on["X"] == "y"


def test_the_version_is_read_from_the_right_program_only() -> None:
    program = drivers()["claude"].program(drivers()["claude"].config_type())
    assert program.parse_version("2.1.197 (Claude Code)\n") == "2.1.197"
    assert program.parse_version("note\n2.1.332 (Claude Code)\n") == "2.1.332"
    assert program.parse_version("Python 3.11.7\n") == ""


def test_ready_only_when_it_answered() -> None:
    talk = Talk()
    talk.launch()
    assert not talk.driver.between_turns
    talk.respond("initialize")
    assert talk.driver.between_turns
    assert talk.kinds == ["options_reported", "state_changed"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("Error: Session ID abc is already in use.", "NATIVE_SESSION_IN_USE"),
        ("No conversation found with session ID: abc", "RESUME_FAILED"),
        ("error: unknown option '--x'", "LAUNCH_FAILED"),
    ],
)
def test_a_start_that_fails_says_why_in_its_words(words: str, reason: str) -> None:
    talk = Talk()
    talk.launch(_FULL, resume=True)
    talk.exited(ExitStatus(exit_code=1, stderr_tail=f"{words}\n"))
    (error,) = talk.bodies("error_raised")
    assert (error.reason, error.message) == (reason, words)


def test_a_start_that_fails_is_told_once() -> None:
    talk = Talk()
    talk.launch(_FULL, resume=True)
    words = "No conversation found with session ID: abc"
    talk.say(type="result", subtype="error_during_execution", is_error=True, errors=[words])
    talk.exited(ExitStatus(exit_code=1, stderr_tail=words))
    assert [error.message for error in talk.bodies("error_raised")] == [words]


def test_an_end_that_was_asked_for_or_unseen_is_no_failure() -> None:
    talk = Talk()
    talk.launch()
    talk.stop()
    talk.exited(ExitStatus(exit_code=0))
    talk.launch()
    talk.exited(ExitStatus())
    assert not talk.bodies("error_raised")


def test_it_is_ended_by_an_interrupt_signal(talk: Talk) -> None:
    talk.turn()
    talk.use("t1")
    plan = talk.stop()
    assert (plan.signal, plan.close_stdin) == (signal.SIGINT, False)
    # It may end without another word.
    talk.exited(ExitStatus(exit_code=0))
    assert talk.ended().outcome == ev.TURN_OUTCOME_INTERRUPTED
    assert talk.bodies("tool_ended")[0].outcome == ev.TOOL_OUTCOME_INTERRUPTED


def test_a_conversation_that_was_never_saved_begins_anew_after_one_failure(talk: Talk) -> None:
    talk.turn()
    talk.exited(ExitStatus(signal=9))
    spec = replace(SPEC, native_session_id=talk.native)
    assert flag(talk.launch(spec, resume=True).argv, "--resume") == talk.native
    words = f"No conversation found with session ID: {talk.native}"
    talk.exited(ExitStatus(exit_code=1, stderr_tail=words))
    for _ in range(2):
        launch = talk.launch(spec, resume=True)
        assert "--resume" not in launch.argv
        talk.exited(ExitStatus(signal=9))
    assert talk.kinds.count("cleared") == 1


def test_an_id_that_only_the_client_named_stays_an_error() -> None:
    talk = Talk()
    for _ in range(2):
        assert flag(talk.launch(_FULL, resume=True).argv, "--resume") == "abc"
        words = "No conversation found with session ID: abc"
        talk.exited(ExitStatus(exit_code=1, stderr_tail=words))
    assert [error.reason for error in talk.bodies("error_raised")] == ["RESUME_FAILED"] * 2


def test_nothing_is_resumed_right_after_a_clear(talk: Talk) -> None:
    talk.turn()
    talk.end()
    talk.clear("c1")
    talk.native = "22222222-0000-4000-8000-000000000000"
    talk.begin("newest")
    talk.end()
    talk.exited()
    launch = talk.launch(replace(SPEC, native_session_id=talk.native), resume=True)
    assert "--resume" not in launch.argv
    assert talk.kinds.count("cleared") == 1


def test_requests_of_a_former_process_are_not_answered_by_the_next(talk: Talk) -> None:
    talk.set("title", "one")
    former = talk.requests("rename_session")[0]["request_id"]
    talk.exited()
    talk.ready()
    assert former not in [r["request_id"] for r in talk.requests("initialize")]
    answer = {"subtype": "success", "request_id": former, "response": {}}
    assert talk.line(json.dumps({"type": "control_response", "response": answer}).encode()) == []
