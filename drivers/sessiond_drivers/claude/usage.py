"""Tokens and cost.

A result tells what the whole process used, with sub-agents and summaries; what streams tells the main
conversation's share at once. Both are reported, the result with what was not reported before.
"""

from __future__ import annotations

import msgspec

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond_drivers.base import Effect, Emit
from sessiond_drivers.claude.state import Counts, State
from sessiond_drivers.claude.wire import Record, integer, number, obj, records, text

__all__ = ["call_ended", "call_started", "context_changed", "result", "whole_call"]

_NOTHING = Counts()


def call_started(state: State, usage: Record) -> list[Effect]:
    """Remember what a model call sends; its size is the context's."""
    call = _api_counts(usage)
    call.output = 0
    state.usage.call = call
    return _context(state, call)


def call_ended(state: State, event: Record) -> list[Effect]:
    """Report the tokens of a model call whose stream came to its end."""
    if not text(obj(event, "delta"), "stop_reason"):
        return []
    call = state.usage.call
    state.usage.call = Counts()
    call.output = integer(obj(event, "usage"), "output_tokens") or 0
    state.usage.live = _sum(state.usage.live, call)
    return _report(state, call) if call != _NOTHING else []


def whole_call(state: State, usage: Record) -> list[Effect]:
    """Take the context's size from a message that was not streamed."""
    return _context(state, _api_counts(usage))


def context_changed(state: State, tokens: int | None) -> None:
    """Remember the context's size after it was shortened or emptied; other events say it."""
    state.usage.context_tokens = tokens


def result(state: State, record: Record) -> list[Effect]:
    """Report what the turn used beyond what was reported live, the cost and the window."""
    usage = state.usage
    models = obj(record, "modelUsage")
    used, cost = _since_last_result(state, record, models)
    rest = _minus(used, usage.live)
    usage.live = _minus(usage.live, used)
    usage.session_cost += cost
    window = _window(state, models)
    news = window is not None and window != usage.context_window
    usage.context_window = window if window is not None else usage.context_window
    return _report(state, rest, cost=True) if news or cost or rest != _NOTHING else []


def _since_last_result(state: State, record: Record, models: Record) -> tuple[Counts, float]:
    usage = state.usage
    # Newer versions go on counting after a resume and begin anew after /clear; they tell the
    # difference themselves. Older ones count per process.
    recent = record.get("model_usage_since_last_result")
    if isinstance(recent, dict):
        return _model_counts(recent), sum(number(m, "costUSD") or 0.0 for m in _values(recent))
    if not models:
        return Counts(), 0.0
    total, cost = _model_counts(models), number(record, "total_cost_usd") or 0.0
    used = _minus(total, usage.process)
    spent = cost - usage.process_cost if cost >= usage.process_cost else cost
    usage.process, usage.process_cost = total, cost
    return used, spent


def _context(state: State, call: Counts) -> list[Effect]:
    tokens = call.input + call.cache_read + call.cache_write
    if not tokens or tokens == state.usage.context_tokens:
        return []
    state.usage.context_tokens = tokens
    return _report(state, _NOTHING)


def _report(state: State, used: Counts, cost: bool = False) -> list[Effect]:
    report = ev.UsageReported(
        context_tokens=state.usage.context_tokens, context_window=state.usage.context_window
    )
    if used != _NOTHING:
        report.turn.CopyFrom(session_pb2.Tokens(**msgspec.structs.asdict(used)))
    if cost:
        report.total_cost_usd = state.usage.session_cost
    return [Emit(ev.Event(usage_reported=report))]


def _window(state: State, models: Record) -> int | None:
    entries = {name: obj(models, name) for name in models}
    entry = entries.get(state.settings.model)
    if entry is None and len(entries) == 1:
        entry = next(iter(entries.values()))
    return integer(entry, "contextWindow") if entry is not None else None


def _values(models: Record) -> list[Record]:
    return records({"values": list(models.values())}, "values")


def _api_counts(usage: Record) -> Counts:
    return Counts(
        input=integer(usage, "input_tokens") or 0,
        cache_read=integer(usage, "cache_read_input_tokens") or 0,
        cache_write=integer(usage, "cache_creation_input_tokens") or 0,
        output=integer(usage, "output_tokens") or 0,
    )


def _model_counts(models: Record) -> Counts:
    total = Counts()
    for model in _values(models):
        total = _sum(
            total,
            Counts(
                input=integer(model, "inputTokens") or 0,
                cache_read=integer(model, "cacheReadInputTokens") or 0,
                cache_write=integer(model, "cacheCreationInputTokens") or 0,
                output=integer(model, "outputTokens") or 0,
            ),
        )
    return total


def _sum(a: Counts, b: Counts) -> Counts:
    return Counts(
        a.input + b.input,
        a.cache_read + b.cache_read,
        a.cache_write + b.cache_write,
        a.output + b.output,
    )


def _minus(a: Counts, b: Counts) -> Counts:
    return Counts(
        max(0, a.input - b.input),
        max(0, a.cache_read - b.cache_read),
        max(0, a.cache_write - b.cache_write),
        max(0, a.output - b.output),
    )
