"""Subscriptions against a daemon that cuts, lies and falls silent."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessiond.v1 import session_service_pb2
from sessiond_client import (
    BrokenPromiseError,
    NotFoundError,
    SeqInFutureError,
    SeqPrunedError,
    SessiondClient,
    SessiondError,
    TranscriptChangedError,
    UnavailableError,
)
from sessiond_client._transport import Backoff
from tests.unit.client.scripted import (
    Context,
    Request,
    Response,
    Scripted,
    Stream,
    batch,
    fail,
    for_ever,
    socket_in,
)

_C = grpc.StatusCode


def serve(*streams: Stream) -> Stream:
    """Each stream in turn, the last one again and again."""
    turns = itertools.chain(streams, itertools.repeat(streams[-1]))

    async def stream(request: Request, context: Context) -> None:
        await next(turns)(request, context)

    return stream


def send(*responses: Response) -> Stream:
    """Send these and end well, as for a deleted session."""

    async def stream(_: Request, context: Context) -> None:
        for response in responses:
            await context.write(response)

    return stream


def send_and_fail(code: grpc.StatusCode, *responses: Response, reason: str = "") -> Stream:
    async def stream(_: Request, context: Context) -> None:
        for response in responses:
            await context.write(response)
        await fail(context, code, reason)

    return stream


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are made again at once."""
    monkeypatch.setattr("sessiond_client._subscribe.Backoff", lambda: Backoff(first=0.001, cap=0.002))


async def seqs(client: SessiondClient, after: int = 0) -> list[int]:
    return [event.seq async for event in client.subscribe("s", after)]


async def test_history_and_live_are_one_stream(daemon: Scripted, client: SessiondClient) -> None:
    daemon.stream = serve(send(batch(1, 3, 3), batch(4, 3, 3), batch(4, 4, 4)))
    subscription = client.subscribe("s")
    seen = []
    async for event in subscription:
        seen.append((event.seq, subscription.caught_up))
    assert seen == [(1, False), (2, False), (3, True), (4, True)]
    assert (subscription.transcript_id, subscription.first_seq, subscription.head_seq) == ("t1", 1, 4)


async def test_first_response_tells_the_head_although_it_is_empty(
    daemon: Scripted, client: SessiondClient
) -> None:
    daemon.stream = serve(send(batch(8, 7, 7)))
    subscription = client.subscribe("s", 7)
    heads = [response.head_seq async for response in subscription.batches()]
    assert heads == [7]
    assert subscription.caught_up


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), total=st.integers(1, 40), after=st.integers(0, 5))
async def test_random_cuts_neither_lose_nor_repeat(
    daemon: Scripted, client: SessiondClient, quick: None, data: st.DataObject, total: int, after: int
) -> None:
    after = min(after, total)
    cuts = data.draw(
        st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9), st.booleans()), max_size=6)
    )
    plan = iter(cuts)

    async def stream(request: Request, context: Context) -> None:
        responses, size, aborted = next(plan, (total + 2, 7, False))
        position = request.after_seq
        for _ in range(responses):
            last = min(position + size, total)
            await context.write(batch(position + 1, last, total))
            position = last
            if position == total:
                break
        if responses > total:
            return
        await fail(context, _C.UNAVAILABLE, "SERVER_DRAINING" if aborted else "")

    daemon.stream = stream
    if data.draw(st.booleans(), label="whole batches"):
        batches = [response async for response in client.subscribe("s", after).batches()]
        seen = [event.seq for response in batches for event in response.events]
    else:
        seen = await seqs(client, after)
    assert seen == list(range(after + 1, total + 1))


async def test_batches_go_on_after_a_cut_too(daemon: Scripted, client: SessiondClient) -> None:
    daemon.stream = serve(send_and_fail(_C.UNAVAILABLE, batch(1, 2, 4)), send(batch(3, 4, 4)))
    subscription = client.subscribe("s")
    seen = [event.seq async for response in subscription.batches() for event in response.events]
    assert seen == [1, 2, 3, 4]
    assert subscription.last_seq == 4


async def test_the_daemon_says_when_to_come_back(daemon: Scripted, client: SessiondClient) -> None:
    async def draining(_: Request, context: Context) -> None:
        await fail(context, _C.UNAVAILABLE, "SERVER_DRAINING", retry_ms=700)

    daemon.stream = serve(draining, send(batch(1, 1, 1)))
    began = asyncio.get_running_loop().time()
    assert await seqs(client) == [1]
    assert asyncio.get_running_loop().time() - began >= 0.7


async def test_a_killed_and_restarted_daemon_is_rejoined(
    daemon: Scripted, client: SessiondClient, folder: Path
) -> None:
    async def first(_: Request, context: Context) -> None:
        await context.write(batch(1, 5, 5))
        await for_ever()

    async def second(request: Request, context: Context) -> None:
        await context.write(batch(request.after_seq + 1, 9, 9))

    daemon.stream = serve(first, second)
    lost: list[SessiondError] = []
    seen = []
    async for event in client.subscribe("s", on_lost=lost.append):
        seen.append(event.seq)
        if event.seq == 5:
            await daemon.stop()
            await daemon.start(socket_in(folder))
    assert seen == list(range(1, 10))
    assert len(lost) >= 1
    last = daemon.of_type(Request)[-1]
    assert (last.after_seq, last.transcript_id) == (5, "t1")


async def test_silence_is_a_lost_connection(daemon: Scripted, client: SessiondClient) -> None:
    daemon.heartbeat_ms = 50

    async def silent(_: Request, context: Context) -> None:
        await context.write(batch(1, 2, 2))
        await for_ever()

    daemon.stream = serve(silent, send(batch(3, 4, 4)))
    lost: list[SessiondError] = []
    seen = [event.seq async for event in client.subscribe("s", on_lost=lost.append)]
    assert seen == [1, 2, 3, 4]
    assert [type(error) for error in lost] == [UnavailableError]
    assert "nothing heard" in str(lost[0])


async def test_heartbeats_keep_an_idle_stream(daemon: Scripted, client: SessiondClient) -> None:
    daemon.heartbeat_ms = 60

    async def beats(request: Request, context: Context) -> None:
        await context.write(batch(1, 1, 1))
        for _ in range(8):
            await asyncio.sleep(0.06)
            await context.write(batch(2, 1, 1))
        await context.write(batch(2, 2, 2))

    daemon.stream = serve(beats)
    subscription = client.subscribe("s")
    assert [event.seq async for event in subscription] == [1, 2]
    assert subscription.reconnects == 0


async def test_a_slow_consumer_is_not_taken_for_silence(
    daemon: Scripted, client: SessiondClient
) -> None:
    daemon.heartbeat_ms = 30
    daemon.stream = serve(send(batch(1, 1, 2), batch(2, 2, 2)))
    subscription = client.subscribe("s")
    seen = []
    async for event in subscription:
        seen.append(event.seq)
        await asyncio.sleep(0.2)
    assert seen == [1, 2]
    assert subscription.reconnects == 0


@pytest.mark.parametrize(
    "lie",
    [
        (batch(2, 3, 3),),
        (batch(1, 2, 4), batch(4, 4, 4)),
        (batch(1, 2, 4), batch(2, 4, 4)),
        (batch(1, 3, 2),),
    ],
    ids=["starts too late", "gap", "repetition", "head behind"],
)
async def test_a_broken_promise_is_told_and_not_retried(
    daemon: Scripted, client: SessiondClient, lie: tuple[Response, ...]
) -> None:
    daemon.stream = serve(send(*lie))
    with pytest.raises(BrokenPromiseError):
        await seqs(client)
    assert len(daemon.of_type(Request)) == 1


async def test_a_gap_inside_a_response_delivers_nothing_of_it(
    daemon: Scripted, client: SessiondClient
) -> None:
    gap = batch(1, 4, 4)
    del gap.events[2]
    daemon.stream = serve(send(gap))
    subscription = client.subscribe("s")
    with pytest.raises(BrokenPromiseError, match="sent event 4 where 3 must come"):
        [event.seq async for event in subscription]
    assert subscription.last_seq == 0


async def test_another_transcript_is_an_error_even_unannounced(
    daemon: Scripted, client: SessiondClient
) -> None:
    daemon.stream = serve(
        send_and_fail(_C.UNAVAILABLE, batch(1, 2, 2)), send(batch(3, 4, 4, transcript="t2"))
    )
    with pytest.raises(TranscriptChangedError):
        await seqs(client)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (_C.NOT_FOUND, "SESSION_NOT_FOUND", NotFoundError),
        (_C.FAILED_PRECONDITION, "TRANSCRIPT_CHANGED", TranscriptChangedError),
        (_C.OUT_OF_RANGE, "SEQ_IN_FUTURE", SeqInFutureError),
        (_C.OUT_OF_RANGE, "SEQ_PRUNED", SeqPrunedError),
        (_C.INTERNAL, "INTERNAL", SessiondError),
        (_C.RESOURCE_EXHAUSTED, "TOO_MANY_SUBSCRIBERS", SessiondError),
    ],
)
async def test_refusals_are_typed(
    daemon: Scripted, client: SessiondClient, code: grpc.StatusCode, reason: str, kind: type[Exception]
) -> None:
    daemon.stream = serve(send_and_fail(code, reason=reason))
    with pytest.raises(kind) as caught:
        await seqs(client)
    assert isinstance(caught.value, SessiondError)
    assert (caught.value.code, caught.value.reason) == (code, reason)
    assert len(daemon.of_type(Request)) == 1


async def test_a_session_deleted_while_away_is_not_found(
    daemon: Scripted, client: SessiondClient
) -> None:
    daemon.stream = serve(
        send_and_fail(_C.UNAVAILABLE, batch(1, 2, 2)),
        send_and_fail(_C.NOT_FOUND, reason="SESSION_NOT_FOUND"),
    )
    with pytest.raises(NotFoundError):
        await seqs(client)


@pytest.mark.parametrize("code", [_C.UNKNOWN, _C.INTERNAL, _C.CANCELLED])
async def test_transport_faults_are_retried_but_not_for_ever(
    daemon: Scripted, client: SessiondClient, code: grpc.StatusCode
) -> None:
    daemon.stream = serve(send_and_fail(code, batch(1, 2, 9)), send(batch(3, 9, 9)))
    assert await seqs(client) == list(range(1, 10))


async def test_an_unexplained_failure_ends_in_an_error(
    daemon: Scripted, client: SessiondClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiond_client._subscribe._MAX_PERHAPS", 2)
    daemon.stream = serve(send_and_fail(_C.INTERNAL))
    with pytest.raises(SessiondError) as caught:
        await seqs(client)
    assert caught.value.code is _C.INTERNAL
    assert len(daemon.of_type(Request)) == 3


async def test_patience_ends_a_subscription_to_nobody(folder: Path) -> None:
    async with SessiondClient(socket_in(folder)) as client:
        with pytest.raises(UnavailableError):
            async for _ in client.subscribe("s", patience=0.3):
                pass


async def test_iterating_again_goes_on_where_it_stopped(
    daemon: Scripted, client: SessiondClient
) -> None:
    async def stream(request: Request, context: Context) -> None:
        await context.write(batch(request.after_seq + 1, 6, 6))

    daemon.stream = stream
    subscription = client.subscribe("s")
    async for event in subscription:
        if event.seq == 2:
            break
    assert [event.seq async for event in subscription] == [3, 4, 5, 6]


@pytest.mark.parametrize("close", ["subscription", "client"])
async def test_closing_from_elsewhere_ends_the_iteration(
    daemon: Scripted, client: SessiondClient, close: str
) -> None:
    async def stream(_: Request, context: Context) -> None:
        await context.write(batch(1, 2, 2))
        await for_ever()

    daemon.stream = stream
    subscription = client.subscribe("s")
    everything_seen = asyncio.Event()

    async def close_it() -> None:
        await everything_seen.wait()
        if close == "subscription":
            subscription.close()
        else:
            await client.close()

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(close_it())
        seen = []
        async for event in subscription:
            seen.append(event.seq)
            if event.seq == 2:
                everything_seen.set()
    assert seen == [1, 2]


async def test_cancelling_the_reader_is_a_cancellation(daemon: Scripted, client: SessiondClient) -> None:
    async def stream(_: Request, context: Context) -> None:
        await context.write(batch(1, 2, 2))
        await for_ever()

    daemon.stream = stream
    caught_up = asyncio.Event()

    async def read() -> None:
        async for event in client.subscribe("s"):
            if event.seq == 2:
                caught_up.set()

    task = asyncio.get_running_loop().create_task(read())
    await asyncio.wait_for(caught_up.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_transcript_whose_beginning_is_gone_starts_at_its_first_event(
    daemon: Scripted, client: SessiondClient
) -> None:
    response = batch(5, 6, 6)
    response.first_seq = 5
    daemon.stream = serve(send(response, batch(7, 7, 7)))
    assert await seqs(client) == [5, 6, 7]
    with pytest.raises(BrokenPromiseError):
        await seqs(client, 1)


async def test_a_watchdog_of_the_callers_own(daemon: Scripted, client: SessiondClient) -> None:
    async def silent(_: Request, context: Context) -> None:
        await context.write(batch(1, 1, 1))
        await for_ever()

    daemon.stream = serve(silent, send(batch(2, 1, 1), batch(2, 2, 2)))
    subscription = client.subscribe("s", watchdog=0.2)
    assert [event.seq async for event in subscription] == [1, 2]
    assert (subscription.reconnects, subscription.heartbeats) == (1, 1)


async def test_an_error_with_a_delay_heals_only_after_a_first_response(
    daemon: Scripted, client: SessiondClient
) -> None:
    async def full(_: Request, context: Context) -> None:
        await fail(context, _C.RESOURCE_EXHAUSTED, "TOO_MANY_SUBSCRIBERS", retry_ms=10)

    daemon.stream = serve(send_and_fail(_C.UNAVAILABLE, batch(1, 1, 1)), full, send(batch(2, 2, 2)))
    assert await seqs(client) == [1, 2]
    daemon.stream = serve(full)
    with pytest.raises(SessiondError, match="TOO_MANY_SUBSCRIBERS"):
        await seqs(client)


async def test_a_call_by_name_adds_nothing(daemon: Scripted, client: SessiondClient) -> None:
    request = session_service_pb2.SendRequest(session_id="s", text="x")
    assert await client.call("Send", request) == session_service_pb2.SendResponse()
    assert daemon.of_type(session_service_pb2.SendRequest) == [request]
    with pytest.raises(ValueError, match="no call Sned"):
        await client.call("Sned", request)
