"""When a message is read, what is written for it, and taking it back."""

from __future__ import annotations

import base64

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_drivers.base import Content, Dropped, ExitStatus, Message, Settle, Taken
from tests.conformance.host import DriverHost
from tests.unit.claude.talk import Talk

_PNG = Content(ref="00" * 32, media_type="image/png", filename="a.png", path="/f/a", data=b"png")
_CSV = Content(ref="11" * 32, media_type="text/csv", filename="b.csv", path="/f/b", data=b"1,2")


def taken(host: DriverHost) -> list[str]:
    return [effect.message_id for effect in host.effects if isinstance(effect, Taken)]


def outcomes(host: DriverHost) -> list[int]:
    return [effect.outcome for effect in host.effects if isinstance(effect, Settle)]


def echo(talk: Talk, native: str) -> None:
    talk.say(type="user", uuid=native, isReplay=True, message={"role": "user", "content": "x"})


def test_the_message_id_is_the_agents_id_in_the_first_process_only(talk: Talk) -> None:
    talk.turn("m1")
    assert talk.users()[0]["uuid"] == "m1"
    talk.exited()
    talk.ready(resume=True)
    talk.send("m1", "again")
    second = talk.users()[1]["uuid"]
    talk.begin(second)
    assert second != "m1"
    assert taken(talk) == ["m1", "m1"]


def test_a_text_with_a_slash_never_runs(talk: Talk) -> None:
    for number, text in enumerate(["/clear", "/etc/passwd is a file", " /x", "a /b"]):
        talk.message(Message(f"m{number}", text))
    contents = [user["message"]["content"] for user in talk.users()]
    assert contents == [" /clear", " /etc/passwd is a file", " /x", "a /b"]


def test_images_go_as_they_are_and_other_files_by_their_path(talk: Talk) -> None:
    talk.message(Message("m1", "/look", attachments=(_PNG, _CSV)))
    image, file, text = talk.users()[0]["message"]["content"]
    assert base64.b64decode(image["source"]["data"]) == b"png"
    assert file["text"] == "Attached file b.csv (text/csv): /f/b"
    assert text == {"type": "text", "text": " /look"}


def test_newer_programs_tell_it_and_echoes_do_not_count(talk: Talk) -> None:
    talk.turn("m1")
    talk.send("m2", "steer")
    echo(talk, "m2")
    assert taken(talk) == ["m1"]
    talk.say(type="command_lifecycle", command_uuid="m2", state="started")
    assert taken(talk) == ["m1", "m2"]
    assert talk.kinds.count("turn_started") == 1


def test_older_programs_begin_a_turn_with_the_oldest(older: Talk) -> None:
    older.send("m1", "one")
    older.send("m2", "two")
    older.begin()
    assert taken(older) == ["m1"]
    echo(older, "m1")
    echo(older, "m2")
    assert taken(older) == ["m1", "m2"]
    assert older.kinds.count("turn_started") == 1


def test_older_programs_merge_what_waits_at_the_end_of_a_turn(older: Talk) -> None:
    older.turn("m1")
    older.send("m2", "two")
    older.send("m3", "three")
    older.result()
    echo(older, "m2")
    older.begin()
    echo(older, "m3")
    assert taken(older) == ["m1", "m2", "m3"]
    assert [t.origin for t in older.bodies("turn_started")] == [ev.TURN_ORIGIN_MESSAGE] * 2


def test_a_turn_of_the_agents_own_takes_nothing(older: Talk) -> None:
    older.turn("m1")
    older.end()
    older.system("session_state_changed", state="running")
    older.system("task_notification", task_id="b", tool_use_id="gone", summary="It ended.")
    older.send("m2", "two")
    older.system("init", session_id=older.native, model="opus", permissionMode="default")
    assert taken(older) == ["m1"]
    assert older.bodies("turn_started")[1].origin == ev.TURN_ORIGIN_AGENT
    older.end()
    older.system("task_notification", task_id="c", tool_use_id="gone", summary="Killed.")
    older.idle()
    older.begin()
    assert taken(older) == ["m1", "m2"]


def test_a_long_command_of_the_foreground_wakes_nobody(older: Talk) -> None:
    older.turn("m1")
    older.use("t1")
    older.system("task_notification", task_id="b", tool_use_id="t1", summary="It ended.")
    older.used("t1")
    older.send("m2", "two")
    older.result()
    older.begin()
    assert taken(older) == ["m1", "m2"]


def test_what_waits_keeps_the_driver_from_being_between_turns(older: Talk) -> None:
    older.turn("m1")
    older.end()
    assert older.driver.between_turns
    older.send("m2", "two")
    older.idle()
    assert not older.driver.between_turns
    older.begin()
    assert not older.driver.between_turns
    older.result()
    assert older.driver.between_turns


def test_a_turn_that_is_about_to_begin_is_one(older: Talk) -> None:
    older.system("session_state_changed", state="running")
    assert not older.driver.between_turns
    older.begin()
    older.end()
    assert older.driver.between_turns


def test_sub_agents_in_the_background_keep_nobody_from_talking(talk: Talk) -> None:
    talk.turn()
    talk.use("agent", "Agent")
    talk.used("agent", "launched")
    talk.result()
    assert talk.driver.between_turns
    talk.use("t1", parent="agent")
    talk.system("session_state_changed", state="requires_action")
    talk.asks("q", "t1")
    assert talk.driver.between_turns
    talk.turn("between")
    talk.result()
    assert talk.bodies("state_changed")[-1].state == session_pb2.SESSION_STATE_AWAITING_INPUT
    talk.system("session_state_changed", state="requires_action")
    talk.answer("q", ["Allow"])
    talk.system("session_state_changed", state="running")
    assert talk.driver.between_turns
    talk.turn("m2")
    talk.end()
    assert [m.message_id for m in talk.effects if isinstance(m, Taken)] == ["m1", "between", "m2"]


def test_a_message_for_the_context_makes_no_turn(talk: Talk) -> None:
    talk.send("m1", "fact", append=True)
    assert talk.users()[0]["shouldQuery"] is False
    talk.begin("m1")
    assert taken(talk) == ["m1"]
    talk.end()
    assert not talk.bodies("turn_started")
    assert talk.driver.between_turns


def test_taking_back_has_three_answers(talk: Talk) -> None:
    talk.turn("m1")
    talk.send("m2", "two")
    talk.send("m3", "three")
    talk.unqueue("m1")
    talk.unqueue("m2")
    talk.unqueue("m2")
    talk.say(type="command_lifecycle", command_uuid="m2", state="cancelled")
    talk.respond("cancel_async_message", cancelled=True)
    talk.unqueue("m3")
    talk.respond("cancel_async_message", cancelled=False)
    assert len(talk.requests("cancel_async_message")) == 2
    already, dropped = api.UNQUEUE_OUTCOME_ALREADY_SENT, api.UNQUEUE_OUTCOME_DROPPED
    assert outcomes(talk) == [already, dropped, dropped, already]
    talk.say(type="command_lifecycle", command_uuid="m3", state="started")
    assert taken(talk) == ["m1", "m3"]


def test_a_message_that_the_program_drops_by_itself(talk: Talk) -> None:
    talk.turn("m1")
    talk.send("m2", "two")
    talk.say(type="command_lifecycle", command_uuid="m2", state="cancelled")
    assert [e.message_id for e in talk.effects if isinstance(e, Dropped)] == ["m2"]
    talk.say(type="command_lifecycle", command_uuid="m1", state="cancelled")
    assert taken(talk) == ["m1"]


def test_an_exit_settles_what_was_asked_back(talk: Talk) -> None:
    talk.turn("m1")
    talk.send("m2", "two")
    talk.send("m3", "three")
    talk.unqueue("m2")
    talk.unqueue("m3")
    talk.say(type="command_lifecycle", command_uuid="m3", state="started")
    talk.exited(ExitStatus(signal=9))
    dropped, already = api.UNQUEUE_OUTCOME_DROPPED, api.UNQUEUE_OUTCOME_ALREADY_SENT
    assert outcomes(talk) == [dropped, already]
