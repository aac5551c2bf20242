"""Turns: why they end, what they cost, what is said beside them."""

from __future__ import annotations

import pytest

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond_drivers.base import ExitStatus
from tests.unit.claude.talk import Talk


def usage(cost: float, tokens: int, since: tuple[float, int] | None = None) -> dict[str, object]:
    def model(dollars: float, count: int) -> dict[str, object]:
        return {"opus": {"inputTokens": count, "costUSD": dollars, "contextWindow": 1000}}

    fields: dict[str, object] = {"total_cost_usd": cost, "modelUsage": model(cost, tokens)}
    return fields | ({"model_usage_since_last_result": model(*since)} if since else {})


def totals(talk: Talk) -> tuple[float, int]:
    reports = talk.bodies("usage_reported")
    costs = [report.total_cost_usd for report in reports if report.HasField("total_cost_usd")]
    return round(costs[-1], 6), sum(report.turn.input for report in reports)


@pytest.mark.parametrize(
    ("error", "fields", "reason"),
    [
        ("authentication_failed", {}, ev.TURN_END_REASON_UNAUTHENTICATED),
        ("rate_limit", {}, ev.TURN_END_REASON_RATE_LIMITED),
        ("billing_error", {}, ev.TURN_END_REASON_USAGE_LIMIT),
        ("max_output_tokens", {}, ev.TURN_END_REASON_OUTPUT_LIMIT),
        ("server_error", {}, ev.TURN_END_REASON_MODEL_ERROR),
        ("unknown", {"api_error_status": 403}, ev.TURN_END_REASON_UNAUTHENTICATED),
        ("unknown", {"api_error_status": 429}, ev.TURN_END_REASON_RATE_LIMITED),
        ("invalid_request", {"terminal_reason": "prompt_too_long"}, ev.TURN_END_REASON_CONTEXT_FULL),
        ("invalid_request", {"stop_reason": "refusal"}, ev.TURN_END_REASON_REFUSED),
        ("", {"subtype": "error_max_turns"}, ev.TURN_END_REASON_TURN_LIMIT),
        ("", {"subtype": "error_max_budget_usd"}, ev.TURN_END_REASON_USAGE_LIMIT),
    ],
)
def test_why_a_turn_failed(
    talk: Talk, error: str, fields: dict[str, object], reason: ev.TurnEndReason.ValueType
) -> None:
    talk.turn()
    if error:
        words = {"type": "text", "text": "API Error: no"}
        talk.assistant(words, model="<synthetic>", error=error)
    talk.end(**({"is_error": True, "result": "API Error: no"} | fields))
    assert (talk.ended().outcome, talk.ended().reason) == (ev.TURN_OUTCOME_FAILED, reason)
    assert talk.text() == ""
    assert [body.message for body in talk.bodies("error_raised")] == ["API Error: no"] * bool(error)


def test_a_turn_fails_for_reasons_of_its_own(talk: Talk) -> None:
    talk.turn("m1")
    talk.system("model_refusal_no_fallback", api_refusal_explanation="no")
    talk.end(is_error=True)
    assert talk.ended().reason == ev.TURN_END_REASON_REFUSED
    talk.turn("m2")
    talk.end(is_error=True)
    assert talk.ended().reason == ev.TURN_END_REASON_MODEL_ERROR


def test_a_limit_that_is_used_up_is_no_passing_one(talk: Talk) -> None:
    talk.turn()
    info = {"status": "rejected", "rateLimitType": "five_hour", "resetsAt": 1_800_000_000}
    talk.say(type="rate_limit_event", rate_limit_info=info | {"utilization": 1.0})
    talk.assistant({"type": "text", "text": "Limit"}, model="<synthetic>", error="rate_limit")
    talk.end(is_error=True)
    (limit,) = talk.bodies("limit_reported")
    assert (limit.kind, limit.reached, limit.used_fraction) == ("five_hour", True, 1.0)
    assert limit.reset_time.seconds == 1_800_000_000
    assert talk.ended().reason == ev.TURN_END_REASON_USAGE_LIMIT


def test_an_error_on_the_way_does_not_fail_a_turn_that_goes_on(talk: Talk) -> None:
    talk.turn()
    talk.assistant({"type": "text", "text": "Lost"}, model="<synthetic>", error="server_error")
    talk.end()
    assert talk.ended().outcome == ev.TURN_OUTCOME_COMPLETED


def test_an_interrupt_is_no_error(talk: Talk) -> None:
    talk.turn()
    talk.use("t1")
    talk.interrupt()
    talk.respond("interrupt")
    talk.used("t1", "stopped", is_error=True)
    talk.end(subtype="error_during_execution", is_error=True, terminal_reason="aborted_tools")
    assert talk.ended().outcome == ev.TURN_OUTCOME_INTERRUPTED
    assert talk.bodies("tool_ended")[0].outcome == ev.TOOL_OUTCOME_INTERRUPTED
    assert not talk.bodies("error_raised")


def test_an_interrupt_that_came_too_late_marks_nothing(talk: Talk) -> None:
    talk.turn("m1")
    talk.interrupt()
    talk.end()
    talk.respond("interrupt")
    talk.turn("m2")
    talk.use("t1")
    talk.used("t1", "broke", is_error=True)
    assert talk.bodies("tool_ended")[0].outcome == ev.TOOL_OUTCOME_FAILED


def test_an_interrupt_that_came_too_early_marks_nothing(talk: Talk) -> None:
    talk.send("m1", "hello")
    talk.interrupt()
    talk.respond("interrupt")
    talk.begin("newest")
    talk.use("t1")
    talk.used("t1", "broke", is_error=True)
    assert talk.bodies("tool_ended")[0].outcome == ev.TOOL_OUTCOME_FAILED


def test_idle_ends_a_turn_whose_result_never_came(talk: Talk) -> None:
    talk.turn()
    talk.idle()
    assert len(talk.bodies("turn_ended")) == 1
    assert talk.driver.between_turns


def test_cost_and_tokens_go_on_over_a_resume_that_begins_at_nothing(older: Talk) -> None:
    older.turn("m1")
    older.end(**usage(0.5, 100))
    older.turn("m2")
    older.end(**usage(0.75, 150))
    older.exited(ExitStatus(signal=9))
    older.ready(resume=True)
    older.turn("m3")
    older.end(**usage(0.75, 150))
    assert totals(older) == (1.5, 300)


def test_cost_and_tokens_of_newer_programs_are_what_they_say_is_new(talk: Talk) -> None:
    talk.turn("m1")
    talk.end(**usage(0.5, 100, (0.5, 100)))
    talk.exited()
    talk.ready(resume=True)
    talk.turn("m2")
    talk.end(**usage(0.75, 150, (0.25, 50)))
    assert totals(talk) == (0.75, 150)
    talk.turn("m3")
    talk.end(**usage(0.0, 0, (0.0, 0)))
    talk.turn("m4")
    talk.end(**usage(0.25, 50, (0.25, 50)))
    assert totals(talk) == (1.0, 200)


def test_tokens_are_reported_as_they_are_used_and_not_twice(talk: Talk) -> None:
    talk.turn()
    talk.stream("x")
    delta = {"stop_reason": "end_turn"}
    talk.event(type="message_delta", delta=delta, usage={"output_tokens": 3})
    live = talk.bodies("usage_reported")[-1]
    assert live.turn == session_pb2.Tokens(input=10, cache_read=5, cache_write=1, output=3)
    assert live.context_tokens == 16
    model = {
        "inputTokens": 110,
        "cacheReadInputTokens": 5,
        "cacheCreationInputTokens": 1,
        "outputTokens": 4,
    }
    talk.end(total_cost_usd=0.5, modelUsage={"opus": model})
    assert talk.bodies("usage_reported")[-1].turn == session_pb2.Tokens(input=100, output=1)


def test_the_context_is_smaller_after_it_was_compacted(talk: Talk) -> None:
    talk.turn("m1")
    talk.system("status", status="compacting")
    talk.system("compact_boundary", compact_metadata={"trigger": "auto", "pre_tokens": 900})
    (compacted,) = talk.bodies("compacted")
    assert (compacted.trigger, compacted.pre_tokens) == ("auto", 900)
    assert not compacted.HasField("post_tokens")
    talk.system("status", status=None, compact_result="success")
    states = [body.state for body in talk.bodies("state_changed")]
    assert states[-2:] == [session_pb2.SESSION_STATE_COMPACTING, session_pb2.SESSION_STATE_RUNNING]


def test_retries_are_explained(talk: Talk) -> None:
    talk.turn()
    fields = {"attempt": 2, "max_retries": 10, "retry_delay_ms": 1234.5, "error": "overloaded"}
    talk.system("api_retry", error_status=529, **fields)
    (retrying,) = talk.bodies("retrying")
    assert (retrying.attempt, retrying.max_attempts, retrying.reason) == (2, 10, "overloaded (529)")
    assert retrying.delay.ToMilliseconds() == 1234
