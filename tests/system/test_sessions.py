"""A session from start to end: what a client sees of a real daemon, a real shim and a real agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from tests.support.daemon import Daemon
from tests.support.session import TIMEOUT, Watched, failing, watched

NEXT = session_pb2.DELIVERY_NEXT_TURN


@pytest.fixture
async def channel(daemon: Daemon) -> AsyncIterator[grpc.aio.Channel]:
    async with daemon.channel() as channel:
        yield channel


@pytest.fixture
async def session(daemon: Daemon, channel: grpc.aio.Channel) -> AsyncIterator[Watched]:
    async with watched(channel, str(daemon.workspace)) as session:
        await session.until_state("IDLE")
        yield session


async def test_a_turn_is_said_in_order(session: Watched) -> None:
    sent = await session.send("hello wide world", request_id="r1")
    assert not sent.queued
    await session.until("turn_ended")
    taken = await session.until("user_message")
    assert taken.user_message.message_id == sent.message_id
    assert taken.request_id == "r1"
    assert taken.actor
    assert session.text() == "hello wide world"
    order = [kind for kind in session.kinds(sent.seq - 1) if kind != "assistant_text"]
    assert order[:4] == ["message_queued", "turn_started", "state_changed", "user_message"]
    await session.until_state("IDLE", after=sent.seq)
    shown = await session.get()
    assert shown.state == session_pb2.SESSION_STATE_IDLE
    assert shown.head_seq == session.events[-1].seq
    assert shown.queue_length == 0


async def test_messages_for_the_next_turn_can_be_edited_moved_and_taken_back(session: Watched) -> None:
    await session.send("!sleep 60")
    await session.until("turn_started")
    first, second, third = [await session.send(text, delivery=NEXT) for text in ("one", "two", "three")]
    assert first.queued
    edit = api.EditMessageRequest(
        session_id=session.session_id, message_id=second.message_id, text="zwei", revision=1
    )
    edited = await session.stub.EditMessage(edit, timeout=TIMEOUT)
    assert edited.revision == 2
    async with failing("ABORTED", "STALE_REVISION") as stale:
        await session.stub.EditMessage(edit, timeout=TIMEOUT)
    assert stale.failure.metadata["revision"] == "2"
    move = api.MoveMessageRequest(
        session_id=session.session_id,
        message_id=third.message_id,
        before_message_id=first.message_id,
    )
    await session.stub.MoveMessage(move, timeout=TIMEOUT)
    dropped = await session.unqueue(first.message_id)
    assert dropped.outcome == api.UNQUEUE_OUTCOME_DROPPED
    assert (await session.get()).queue_length == 2
    await session.control(interrupt=api.Interrupt())
    await session.until("user_message", lambda m: m.text == "zwei")
    texts = [e.user_message.text for e in session.events if e.HasField("user_message")]
    assert texts == ["!sleep 60", "three", "zwei"]
    again = await session.unqueue(first.message_id)
    assert again.outcome == api.UNQUEUE_OUTCOME_DROPPED
    late = await session.unqueue(third.message_id)
    assert late.outcome == api.UNQUEUE_OUTCOME_ALREADY_SENT
    never = await session.unqueue("no-such-message")
    assert never.outcome == api.UNQUEUE_OUTCOME_UNKNOWN
    async with failing("NOT_FOUND", "MESSAGE_NOT_FOUND"):
        await session.stub.EditMessage(
            api.EditMessageRequest(
                session_id=session.session_id, message_id=third.message_id, text="too late"
            ),
            timeout=TIMEOUT,
        )


async def test_a_steered_message_can_be_taken_back_from_the_agent(session: Watched) -> None:
    await session.send("!sleep 60")
    await session.until("turn_started")
    steered = await session.send("read me later")
    taken_back = await session.unqueue(steered.message_id, request_id="u1")
    assert taken_back.outcome == api.UNQUEUE_OUTCOME_DROPPED
    await session.until("message_dropped", lambda m: m.message_id == steered.message_id)
    assert await session.unqueue(steered.message_id, request_id="u1") == taken_back


async def test_now_interrupts_the_turn_and_goes_first(session: Watched) -> None:
    await session.send("!sleep 60")
    await session.until("turn_started")
    await session.send("waits", delivery=NEXT)
    await session.send("urgent", delivery=session_pb2.DELIVERY_NOW)
    ended = await session.until("turn_ended")
    assert ended.turn_ended.outcome == ev.TURN_OUTCOME_INTERRUPTED
    await session.until("user_message", lambda m: m.text == "waits")
    texts = [e.user_message.text for e in session.events if e.HasField("user_message")]
    assert texts == ["!sleep 60", "urgent", "waits"]


async def test_append_adds_to_the_context_without_a_turn(session: Watched) -> None:
    sent = await session.send("remember this", delivery=session_pb2.DELIVERY_APPEND)
    await session.until("user_message", lambda m: m.message_id == sent.message_id)
    assert "turn_started" not in session.kinds()
    await session.run("!recall")
    assert "remember this" in session.text()


async def test_questions_are_answered_once(session: Watched) -> None:
    await session.send('!ask "Which?" [a|b]\n!ask "Several?" [x|y|z] multi text')
    asked = (await session.until("question_asked")).question_asked
    await session.until_state("AWAITING_INPUT")
    assert (await session.get()).open_question_count == 1
    for answers, text in ((["c"], "offered"), ([], "at least"), (["a", "b"], "one answer")):
        async with failing("INVALID_ARGUMENT", "INVALID_FIELD", "answers") as refused:
            await session.answer(asked.question_id, *answers)
        assert text in refused.failure.text
    async with failing("NOT_FOUND", "QUESTION_NOT_FOUND"):
        await session.answer("no-such-question", "a")
    first = await session.answer(asked.question_id, "b", note="because")
    assert await session.answer(asked.question_id, "b", note="because") == first
    async with failing("FAILED_PRECONDITION", "QUESTION_ALREADY_ANSWERED") as refused:
        await session.answer(asked.question_id, "a")
    assert refused.failure.metadata["answered_seq"] == str(first.seq)
    several = (await session.until("question_asked", after=first.seq)).question_asked
    await session.answer(several.question_id, "x", "my own words")
    await session.until("turn_ended")
    assert "Which? b (because)" in session.text()
    assert "Several? x, my own words" in session.text()


async def test_an_interrupted_question_is_withdrawn(session: Watched) -> None:
    await session.send("!permit bash {} -> done")
    asked = await session.until("question_asked")
    assert asked.question_asked.tool_id
    await session.control(interrupt=api.Interrupt())
    await session.until("question_withdrawn")
    ended = await session.until("tool_ended")
    assert ended.tool_ended.outcome == ev.TOOL_OUTCOME_INTERRUPTED
    async with failing("FAILED_PRECONDITION", "QUESTION_WITHDRAWN"):
        await session.answer(asked.question_asked.question_id, "Allow")


async def test_a_secret_answer_is_nowhere_in_the_transcript(session: Watched, daemon: Daemon) -> None:
    await session.send('!ask "Token?" secret')
    asked = (await session.until("question_asked")).question_asked
    assert asked.secret
    first = await session.answer(asked.question_id, "hunter2-hunter2")
    assert await session.answer(asked.question_id, "hunter2-hunter2") == first
    async with failing("FAILED_PRECONDITION", "QUESTION_ALREADY_ANSWERED"):
        await session.answer(asked.question_id, "another")
    await session.until("turn_ended")
    assert not any("hunter2" in str(event) for event in session.events)
    assert "hunter2" not in daemon.log()
    # Nor is it where it waited for the agent: the space that a row leaves is overwritten.
    await daemon.stop()
    files = [path for path in daemon.data_dir.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hunter2" in path.read_bytes()]
    await daemon.start()


async def test_settings_are_confirmed_by_the_agent_and_checked_before(session: Watched) -> None:
    await session.control(set_model=api.SetModel(model="echo-2"), request_id="m1")
    changed = await session.until("settings_changed", lambda s: s.model == "echo-2")
    assert changed.request_id == "m1"
    assert not changed.settings_changed.HasField("effort")
    await session.control(set_effort=api.SetEffort(effort="high"))
    await session.until("settings_changed", lambda s: s.effort == "high")
    async with failing("INVALID_ARGUMENT", "INVALID_FIELD", "set_model.model"):
        await session.control(set_model=api.SetModel(model="no-such-model"))
    await session.control(set_title=api.SetTitle(title="A title"))
    await session.until("settings_changed", lambda s: s.title == "A title")
    shown = await session.get()
    assert (shown.settings.model, shown.settings.effort, shown.title) == ("echo-2", "high", "A title")


async def test_commands_wait_for_the_end_of_the_turn(session: Watched) -> None:
    sent = await session.send("!usage context=900 window=1000 1 2\n!sleep 60")
    await session.until("usage_reported")
    compact = await session.control(compact=api.Compact(instructions="keep names"), request_id="c1")
    assert compact.queued
    assert compact.command_id
    clear = await session.control(clear=api.Clear())
    dropped = await session.unqueue(clear.command_id)
    assert dropped.outcome == api.UNQUEUE_OUTCOME_DROPPED
    await session.control(interrupt=api.Interrupt(), request_id="i1")
    ended = await session.until("turn_ended", after=sent.seq)
    assert ended.request_id == "i1"
    command = await session.until("command_sent")
    assert command.command_sent.text == "compact keep names"
    assert command.request_id == "c1"
    compacted = await session.until("compacted")
    assert compacted.request_id == "c1"
    assert ended.seq < command.seq
    await session.until_state("IDLE", after=command.seq)
    run = await session.control(clear=api.Clear())
    assert not run.queued
    await session.until("cleared")
    assert not (await session.get()).HasField("context_tokens")


async def test_usage_is_totalled(session: Watched) -> None:
    await session.run("!usage cache_read=3 cache_write=4 context=900 window=1000 cost=0.25 10 20")
    await session.run("!usage 1 2")
    report = await session.until("usage_reported", lambda u: u.turn.input == 1)
    total = report.usage_reported.total
    assert (total.input, total.cache_read, total.cache_write, total.output) == (11, 3, 4, 22)
    shown = await session.get()
    assert shown.total_tokens == total
    assert (shown.context_tokens, shown.context_window, shown.total_cost_usd) == (900, 1000, 0.25)


async def test_stop_and_restart_resume_the_conversation(session: Watched) -> None:
    await session.run("first words")
    before = await session.get()
    await session.control(stop=api.Stop())
    exited = await session.until("process_exited")
    await session.until_state("EXITED")
    async with failing("FAILED_PRECONDITION", "SESSION_EXITED"):
        await session.send("nobody there")
    await session.control(restart=api.Restart())
    await session.until("process_started", after=exited.seq)
    await session.until_state("IDLE", after=exited.seq)
    await session.run("!recall")
    assert "1: first words" in session.text(exited.seq)
    assert (await session.get()).native_session_id == before.native_session_id


async def test_restart_of_a_living_process_ends_it_first(session: Watched) -> None:
    await session.send("!sleep 60")
    turn = await session.until("turn_started")
    await session.control(restart=api.Restart())
    exited = await session.until("process_exited", after=turn.seq)
    await session.until("process_started", after=exited.seq)
    await session.until_state("IDLE", after=exited.seq)
    assert "turn_ended" in session.kinds()


@pytest.mark.parametrize(
    ("directive", "code", "signal"),
    [("!crash 3", 3, None), ("!crash KILL", None, 9), ("!exit 0", 0, None)],
)
async def test_a_crash_closes_everything_and_keeps_what_was_not_read(
    session: Watched, directive: str, code: int | None, signal: int | None
) -> None:
    await session.send(f"!open bash\n!sleep 0.5\n{directive}")
    await session.until("tool_started")
    waits = await session.send("for later", delivery=NEXT)
    exited = (await session.until("process_exited")).process_exited
    assert (exited.exit_code if exited.HasField("exit_code") else None) == code
    assert (exited.signal if exited.HasField("signal") else None) == signal
    await session.until_state("EXITED")
    kinds = session.kinds()
    for opened, closed in (("tool_started", "tool_ended"), ("turn_started", "turn_ended")):
        assert kinds.count(opened) == kinds.count(closed)
    shown = await session.get()
    assert (shown.queue_length, shown.queue_paused) == (1, True)
    await session.control(restart=api.Restart())
    await session.until("user_message", lambda m: m.message_id == waits.message_id)


async def test_any_bytes_from_an_agent_become_notices(session: Watched) -> None:
    await session.run("!garbage 50\n!invalid\n!unknown surprise\nstill here")
    assert "still here" in session.text()
    notices = [e for e in session.events if e.HasField("notice")]
    assert notices
    assert all(event.ignorable for event in notices)


async def test_huge_output_becomes_an_attachment(session: Watched) -> None:
    await session.run("!huge as=tool 3\n!huge as=text 3")
    ended = (await session.until("tool_ended")).tool_ended
    assert ended.full_output.size_bytes >= 3_000_000
    assert 0 < len(ended.output) < 100_000
    assert len(session.text()) >= 3_000_000
    assert all(event.ByteSize() <= 1024 * 1024 for event in session.events)


async def test_list_events_pages_backwards(session: Watched) -> None:
    await session.run("!burst @flat 2500")
    head = (await session.get()).head_seq
    collected: list[int] = []
    before = 0
    while True:
        page = await session.stub.ListEvents(
            api.ListEventsRequest(session_id=session.session_id, before_seq=before, page_size=333),
            timeout=TIMEOUT,
        )
        if not page.events:
            break
        assert len(page.events) == min(333, (before or head + 1) - 1)
        seqs = [event.seq for event in page.events]
        assert seqs == list(range(seqs[0], seqs[-1] + 1))
        collected = seqs + collected
        before = seqs[0]
        if before == 1:
            break
    assert collected == list(range(1, head + 1))


async def test_deleting_ends_streams_and_the_process(session: Watched) -> None:
    await session.send("!sleep 60")
    started = await session.until("process_started")
    await session.until("turn_started")
    request = api.DeleteSessionRequest(session_id=session.session_id, request_id="d1")
    await session.stub.DeleteSession(request, timeout=TIMEOUT)
    await session.until_gone()
    await session.stub.DeleteSession(request, timeout=TIMEOUT)
    async with failing("NOT_FOUND", "SESSION_NOT_FOUND"):
        await session.get()
    assert not _runs(started.process_started.pid)


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"
