"""What it says: text once and only once, taken back when void; tools, images, sub-agents."""

from __future__ import annotations

import base64
import json

import pytest

from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import Attach, Retract
from tests.unit.claude.talk import Talk

_TEXT = {"type": "text", "text": "Hello."}


def retracts(talk: Talk) -> list[str]:
    return [effect.mark for effect in talk.effects if isinstance(effect, Retract)]


def test_streamed_text_is_not_said_again_by_the_whole_line(talk: Talk) -> None:
    talk.turn()
    talk.stream("Hel")
    talk.delta("lo.")
    talk.assistant(_TEXT)
    talk.stream("", message_id="msg2")
    talk.assistant({"type": "text", "text": " Bye."}, message_id="msg2")
    talk.end()
    assert talk.text() == "Hello. Bye."
    assert retracts(talk) == []


def test_two_blocks_of_the_same_kind_are_told_apart(talk: Talk) -> None:
    talk.turn()
    talk.stream("one")
    talk.assistant({"type": "text", "text": "one"})
    talk.delta("two", index=1)
    talk.assistant({"type": "text", "text": "two"})
    assert talk.text() == "onetwo"
    assert len({body.block_id for body in talk.bodies("assistant_text")}) == 2


def test_a_message_that_was_not_streamed_is_said_whole(talk: Talk) -> None:
    talk.turn()
    talk.assistant({"type": "thinking", "thinking": "Hm."}, _TEXT)
    assert talk.text() == "Hello."
    assert talk.bodies("reasoning")[0].delta == "Hm."


@pytest.mark.parametrize("sign", ["result", "another", "whole", "tool"])
def test_what_nothing_confirms_is_taken_back(talk: Talk, sign: str) -> None:
    talk.turn()
    talk.use("t1")
    talk.stream("kept")
    talk.assistant({"type": "text", "text": "kept"})
    talk.delta("void", index=1)
    if sign == "result":
        talk.end()
    elif sign == "another":
        talk.stream("new", message_id="msg2")
    elif sign == "whole":
        talk.assistant({"type": "text", "text": "new"}, message_id="msg2")
    else:
        talk.used("t1")
    assert retracts(talk) == ["msg/1"]
    assert talk.effects.index(Retract("msg/1")) < len(talk.effects)


def test_what_the_program_calls_abandoned_is_taken_back(talk: Talk) -> None:
    talk.turn()
    talk.stream("void")
    abandoned = {"api_message_id": "msg", "from_block_index": 0}
    talk.say(type="stream_event", event={"type": "message_stop"}, abandoned_blocks=abandoned)
    assert retracts(talk) == ["msg/0"]
    abandoned["from_block_index"] = 1
    talk.stream("kept", message_id="msg")
    talk.assistant({"type": "text", "text": "kept"})
    talk.say(type="stream_event", event={"type": "message_stop"}, abandoned_blocks=abandoned)
    assert retracts(talk) == ["msg/0"]


def test_the_input_of_a_tool_is_kept_to_the_byte(talk: Talk) -> None:
    talk.turn()
    given = '{ "z": 1.10, "a": 123456789012345678901234567890, "u": "\\u00e9" }'
    block = f'{{"type":"tool_use","id":"t1","name":"Bash","input":{given}}}'
    message = f'{{"id":"msg","model":"opus","content":[{block}]}}'
    talk.line(f'{{"type":"assistant","message":{message}}}'.encode())
    assert talk.bodies("tool_started")[0].input_json == given


def test_how_a_tool_ended(talk: Talk) -> None:
    talk.turn()
    for tool_id in ("ok", "bad", "refused", "stopped", "ruled"):
        talk.use(tool_id)
    talk.used("ok")
    talk.used("bad", "no", is_error=True)
    talk.asks("q", "refused")
    talk.answer("q", ["Deny"], "not this")
    talk.used("refused", "not this", is_error=True)
    talk.used("stopped", "The user doesn't want to proceed with this tool use. More.", is_error=True)
    meta = [{"id": "ruled", "permission_decision": {"decision": "reject"}}]
    talk.used("ruled", "a rule", is_error=True, tool_result_meta=meta)
    found = {body.tool_id: body.outcome for body in talk.bodies("tool_ended")}
    assert found == {
        "ok": ev.TOOL_OUTCOME_SUCCEEDED,
        "bad": ev.TOOL_OUTCOME_FAILED,
        "refused": ev.TOOL_OUTCOME_DENIED,
        "stopped": ev.TOOL_OUTCOME_INTERRUPTED,
        "ruled": ev.TOOL_OUTCOME_DENIED,
    }


def test_images_of_a_result_become_attachments_and_broken_ones_nothing(talk: Talk) -> None:
    talk.turn()
    talk.use("t1")
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"png").decode()}
    broken = source | {"data": "*"}
    images = [{"type": "image", "source": source}, {"type": "image", "source": broken}]
    talk.used("t1", [{"type": "text", "text": "two"}, *images])
    attached = [effect for effect in talk.effects if isinstance(effect, Attach)]
    assert attached == [Attach(b"png", "image/png", tool_id="t1")]
    assert talk.bodies("tool_ended")[0].output == "two"


def test_a_sub_agent_stands_below_its_tool(talk: Talk) -> None:
    talk.turn()
    talk.use("agent", "Agent")
    talk.say(type="user", parent_tool_use_id="agent", message={"content": [_TEXT]})
    talk.use("t1", parent="agent")
    talk.used("t1", parent_tool_use_id="agent")
    talk.assistant(_TEXT, message_id="sub", parent_tool_use_id="agent")
    talk.system("task_progress", tool_use_id="agent", description="Looking")
    nested = [event for event in talk.events if event.parent_tool_id == "agent"]
    assert [e.WhichOneof("body") for e in nested] == ["tool_started", "tool_ended", "assistant_text"]
    assert talk.bodies("tool_updated")[0].output == "Looking"
    assert len(talk.bodies("assistant_text")) == 1


def test_a_sub_agent_in_the_background_outlives_the_turn(talk: Talk) -> None:
    talk.turn()
    talk.use("agent", "Agent")
    talk.used("agent", "launched")
    talk.use("t1", parent="agent")
    talk.asks("q", "t1")
    talk.use("t2")
    talk.result()
    assert [body.tool_id for body in talk.bodies("tool_ended")] == ["agent", "t2"]
    assert not talk.bodies("question_withdrawn")
    talk.answer("q", ["Allow"])
    talk.used("t1", parent_tool_use_id="agent")
    talk.idle()
    assert talk.bodies("tool_ended")[-1].outcome == ev.TOOL_OUTCOME_SUCCEEDED


def test_a_sub_agent_that_is_stopped_leaves_nothing_open(talk: Talk) -> None:
    talk.turn()
    talk.use("agent", "Agent")
    talk.used("agent", "launched")
    talk.use("t1", parent="agent")
    talk.asks("q", "t1")
    talk.end()
    talk.system("task_notification", tool_use_id="agent", status="stopped", summary="Stopped.")
    assert talk.bodies("tool_ended")[-1].outcome == ev.TOOL_OUTCOME_INTERRUPTED
    assert talk.bodies("question_withdrawn")[0].question_id == "q"


def test_an_interrupt_ends_the_background_too(talk: Talk) -> None:
    talk.turn()
    talk.use("agent", "Agent")
    talk.used("agent", "launched")
    talk.use("t1", parent="agent")
    talk.interrupt()
    talk.result(subtype="error_during_execution", is_error=True, terminal_reason="aborted_tools")
    assert talk.bodies("tool_ended")[-1].tool_id == "t1"


def plan(talk: Talk) -> list[tuple[str, int]]:
    return [(item.text, item.state) for item in talk.bodies("plan_updated")[-1].items]


def test_a_list_that_is_written_whole_is_a_plan(talk: Talk) -> None:
    talk.turn()
    todos = [{"content": "a", "status": "completed"}, {"content": "b", "status": "new word"}]
    for tool_id, failed, new in (("t1", True, []), ("t2", False, todos), ("t3", False, todos)):
        talk.use(tool_id, "TodoWrite", todos=todos)
        talk.used(tool_id, is_error=failed, tool_use_result={"newTodos": new or todos[:1]})
    assert plan(talk) == [("a", ev.PLAN_ITEM_STATE_DONE), ("b", ev.PLAN_ITEM_STATE_UNSPECIFIED)]
    assert talk.kinds.count("plan_updated") == 1


def test_a_list_that_is_changed_entry_by_entry_is_a_plan(talk: Talk) -> None:
    talk.turn()
    for number, subject in (("1", "look"), ("2", "leap")):
        talk.use(f"c{number}", "TaskCreate", subject=subject)
        created = {"task": {"id": number, "subject": subject}}
        talk.used(f"c{number}", tool_use_result=created)
    pending, done = ev.PLAN_ITEM_STATE_PENDING, ev.PLAN_ITEM_STATE_DONE
    assert plan(talk) == [("look", pending), ("leap", pending)]
    talk.use("u1", "TaskUpdate", taskId="1", status="completed", subject="looked")
    changed = {"taskId": "1", "statusChange": {"from": "pending", "to": "completed"}}
    talk.used("u1", tool_use_result=changed)
    assert plan(talk) == [("looked", done), ("leap", pending)]
    talk.end()
    talk.exited()
    talk.ready(resume=True)
    talk.turn("m2")
    talk.use("u2", "TaskUpdate", taskId="2", status="deleted")
    talk.used("u2", tool_use_result={"taskId": "2", "statusChange": {"to": "deleted"}})
    assert plan(talk) == [("looked", done)]


def test_a_tool_of_another_kind_is_no_plan(talk: Talk) -> None:
    talk.turn()
    talk.use("t1", "Other")
    talk.used("t1", tool_use_result={"task": {"id": "1", "subject": "x"}})
    assert not talk.bodies("plan_updated")


def test_records_without_a_rule_are_kept_for_the_curious(talk: Talk) -> None:
    talk.system("something_new", content="It happened.", level="warning")
    (event,) = [e for e in talk.events if e.HasField("notice")]
    assert event.ignorable
    assert (event.notice.level, event.notice.text) == (ev.NOTICE_LEVEL_WARNING, "It happened.")
    assert event.notice.native_kind == "system/something_new"
    assert json.loads(event.notice.native_json)["subtype"] == "something_new"
    talk.say(type="huge", text="x" * 100_000)
    notice = talk.bodies("notice")[1]
    assert (len(notice.text), notice.native_json) == (4096, "")
