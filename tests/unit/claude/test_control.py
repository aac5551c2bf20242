"""Settings and commands: what is written, what confirms each, what a failure is."""

from __future__ import annotations

from typing import Any

import pytest

from sessiond.v1 import error_reason_pb2
from sessiond_drivers.base import Identified, Refused
from tests.unit.claude.talk import Talk

_MODELS = [
    {"value": "opus", "displayName": "Opus", "supportedEffortLevels": ["low", "high"]},
    {"value": "haiku", "supportedEffortLevels": ["low", "max"], "supportsAutoMode": True},
]
_COMMANDS = [
    {"name": "compact", "argumentHint": "[words]", "description": "Shorten"},
    {"name": "clear"},
    {"name": "usage", "aliases": ["cost"]},
]


@pytest.fixture
def offered() -> Talk:
    talk = Talk()
    talk.ready(models=_MODELS, commands=_COMMANDS, current_permission_mode="default")
    return talk


def changes(talk: Talk) -> list[dict[str, str]]:
    found = talk.bodies("settings_changed")
    return [{field.name: value for field, value in body.ListFields()} for body in found]


def errors(talk: Talk) -> list[tuple[str, str]]:
    return [(body.reason, body.message) for body in talk.bodies("error_raised")]


def test_what_can_be_picked(offered: Talk) -> None:
    (report,) = offered.bodies("options_reported")
    assert [choice.id for choice in report.models] == ["opus", "haiku"]
    assert [choice.id for choice in report.efforts] == ["low", "high", "max"]
    modes = [choice.id for choice in report.permission_modes]
    assert modes == ["default", "acceptEdits", "plan", "dontAsk", "auto"]
    assert [choice.id for choice in report.commands] == ["/compact", "/clear", "/usage"]
    assert report.commands[0].label == "/compact [words]"


def test_a_model_that_is_named_in_the_answer(offered: Talk) -> None:
    offered.set("model", "haiku")
    offered.respond("set_model", model="claude-haiku-5")
    assert changes(offered)[1:] == [{"model": "claude-haiku-5"}]


def test_a_model_that_only_the_settings_tell(offered: Talk) -> None:
    offered.set("model", "haiku")
    offered.respond("set_model")
    offered.respond("get_settings", applied={"model": "claude-haiku-5", "effort": None})
    assert changes(offered)[1:] == [{"model": "claude-haiku-5"}]


def test_a_model_that_only_the_next_turn_tells(offered: Talk) -> None:
    offered.set("model", "haiku")
    offered.respond("set_model")
    offered.respond("get_settings", failed="unknown request")
    offered.begin(model="claude-haiku-5", permissionMode="default")
    assert {"model": "claude-haiku-5"} in changes(offered)
    assert errors(offered) == []


def test_the_default_model_is_asked_for_by_no_name(offered: Talk) -> None:
    offered.set("model", "")
    assert "model" not in offered.requests("set_model")[0]["request"]
    offered.respond("set_model", model="m")


def test_effort_is_what_the_settings_say(offered: Talk) -> None:
    offered.set("effort", "high")
    offered.respond("apply_flag_settings")
    offered.respond("get_settings", applied={"model": "", "effort": "high"})
    offered.set("effort", "max")
    offered.respond("apply_flag_settings")
    offered.respond("get_settings", applied={"model": "", "effort": "high"})
    assert changes(offered)[1:] == [{"effort": "high"}]
    assert errors(offered)[0][0] == "SETTING_REFUSED"
    offered.set("effort", "")
    assert offered.requests("apply_flag_settings")[-1]["request"]["settings"] == {"effortLevel": None}


def test_what_nobody_asked_for_is_not_taken_for_an_answer(offered: Talk) -> None:
    offered.set("model", "haiku")
    offered.begin(model="opus", permissionMode="default")
    assert all("model" not in change for change in changes(offered))
    offered.respond("set_model", model="claude-haiku-5")
    assert changes(offered)[-1] == {"model": "claude-haiku-5"}


def test_modes_are_confirmed_or_refused(offered: Talk) -> None:
    offered.set("permission_mode", "plan")
    offered.respond("set_permission_mode", mode="plan")
    offered.system("status", status=None, permissionMode="plan")
    offered.set("permission_mode", "default")
    offered.respond("set_permission_mode", failed="not now")
    assert changes(offered)[1:] == [{"permission_mode": "plan"}]
    assert errors(offered) == [("SETTING_REFUSED", "not now")]
    with pytest.raises(Refused, match="acceptEdits"):
        offered.driver.set_permission_mode("nonsense")
    with pytest.raises(Refused):
        offered.driver.set_permission_mode("bypassPermissions")


def test_a_mode_that_the_agent_changes_itself_is_told(offered: Talk) -> None:
    offered.turn()
    offered.system("status", status=None, permissionMode="plan")
    assert changes(offered)[-1] == {"permission_mode": "plan"}


def test_titles(offered: Talk) -> None:
    offered.set("title", "one")
    offered.system("session_title_changed", title="one")
    offered.respond("rename_session")
    offered.set("title", "two")
    offered.respond("rename_session")
    offered.set("title", "")
    assert changes(offered)[1:] == [{"title": "one"}, {"title": "two"}, {"title": ""}]
    assert len(offered.requests("rename_session")) == 2


@pytest.mark.parametrize("name", ["model", "permission_mode", "effort", "title"])
def test_an_exit_leaves_no_setting_in_silence(offered: Talk, name: str) -> None:
    offered.set(name, "plan")
    offered.exited()
    assert errors(offered) == [("SETTING_REFUSED", "the agent exited before it agreed")]


def test_a_command_is_checked_before_it_is_written(offered: Talk) -> None:
    offered.driver.check_command("/usage")
    offered.driver.check_command("/cost now")
    for text in ("usage", "/", "/nonsense", "/compactor"):
        with pytest.raises(Refused) as caught:
            offered.driver.check_command(text)
        assert caught.value.reason == error_reason_pb2.ERROR_REASON_INVALID_FIELD


def test_the_words_of_a_command_are_its_output(offered: Talk) -> None:
    offered.run_command("c1", "/usage")
    offered.begin("newest")
    offered.assistant({"type": "text", "text": "$1"}, model="<synthetic>")
    offered.end(num_turns=0)
    (output,) = offered.bodies("command_output")
    assert (output.command_id, output.text) == ("c1", "$1")
    assert offered.text() == ""


def test_a_command_that_is_not_to_be_had_here_has_failed(offered: Talk) -> None:
    outcome = {"kind": "unavailable_headless"}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("no", {"local_command_outcome": outcome}),
        ("/usage isn't available", {}),
    ]
    for words, fields in cases:
        offered.run_command("c1", "/usage")
        offered.begin("newest")
        offered.assistant({"type": "text", "text": words}, model="<synthetic>", **fields)
        offered.end()
    assert errors(offered) == [("COMMAND_FAILED", "no"), ("COMMAND_FAILED", "/usage isn't available")]


def test_compact_has_instructions_and_fails_aloud(offered: Talk) -> None:
    offered.compact("c1", "keep it")
    assert offered.users()[0]["message"]["content"] == "/compact keep it"
    offered.begin("newest")
    offered.system("status", status="compacting")
    offered.system("status", status=None, compact_result="failed", compact_error="too short")
    offered.end()
    assert errors(offered) == [("COMMAND_FAILED", "too short")]


def test_an_automatic_compaction_that_fails_is_told(offered: Talk) -> None:
    offered.turn()
    offered.system("status", status="compacting")
    offered.system("status", status=None, compact_result="failed", compact_error="too long")
    assert errors(offered) == [("AGENT_FAILED", "too long")]


@pytest.mark.parametrize("told", [True, False])
def test_clear_is_a_new_conversation(offered: Talk, told: bool) -> None:
    offered.turn()
    offered.end()
    offered.clear("c1")
    if told:
        offered.say(type="conversation_reset", new_conversation_id="x")
    offered.begin("newest", session_id="new")
    offered.end()
    assert offered.kinds.count("cleared") == 1
    named = [effect.native_session_id for effect in offered.effects if isinstance(effect, Identified)]
    assert [name for name in named if name] == [offered.native, "new"]


def test_a_clear_that_cleared_nothing_has_failed(offered: Talk) -> None:
    offered.turn()
    offered.end()
    offered.clear("c1")
    offered.begin("newest")
    offered.assistant({"type": "text", "text": "busy"}, model="<synthetic>")
    offered.end()
    assert errors(offered) == [("COMMAND_FAILED", "busy")]


def test_a_command_dies_with_its_agent(offered: Talk) -> None:
    offered.compact("c1")
    offered.exited()
    assert errors(offered) == [("COMMAND_FAILED", "the agent exited before /compact was done")]
