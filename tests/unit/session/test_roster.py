"""Sessions come and go whole, whoever gives up or dies in between."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_server.drain import Drain
from sessiond_server.drivers import Drivers
from sessiond_server.errors import DomainError
from sessiond_server.services.session import SessionService
from sessiond_server.session import calls
from sessiond_server.shim import Link
from sessiond_server.store import Response, StorageFull
from tests.support import waiting
from tests.unit.session.house import TIMEOUT, House, events, kinds, until

IDLE = session_pb2.SESSION_STATE_IDLE


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with House() as house:
        yield house


async def test_a_creation_goes_on_when_its_caller_gives_up(house: House) -> None:
    request = house.creation(request_id="r1")
    for steps in range(12):
        request.request_id = f"r{steps}"
        first = asyncio.create_task(house.roster.create(request))
        for _ in range(steps):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait((first,))
        again = await house.roster.create(request)
        assert again.session.driver == "echo"
        assert again == await house.roster.create(request)
    listed = house.roster.list(api.ListSessionsRequest())
    assert len(listed.sessions) == 12
    assert all(session.driver for session in listed.sessions)


async def test_equal_calls_that_waited_for_one_that_failed_make_one_session(house: House) -> None:
    blocker = await house.create()
    await until(blocker, "state_changed", state=IDLE)
    native = blocker.summary().native_session_id
    request = house.creation(request_id="r1", native_session_id=native)
    results = await asyncio.gather(
        *(house.roster.create(request) for _ in range(3)), return_exceptions=True
    )
    assert [type(result) for result in results] == [DomainError] * 3
    await house.roster.delete(api.DeleteSessionRequest(session_id=blocker.session_id))
    made = await asyncio.gather(*(house.roster.create(request) for _ in range(3)))
    assert len({response.session.session_id for response in made}) == 1
    assert len(house.roster.list(api.ListSessionsRequest()).sessions) == 1


async def test_a_creation_that_the_daemon_did_not_live_to_start_is_made_anew(house: House) -> None:
    request = house.creation(request_id="r1", session_id="mine")
    creating = asyncio.create_task(house.roster.create(request))
    for _ in range(1_000_000):
        if house.store.session("mine") is not None:
            break
        await asyncio.sleep(0)
    row = house.store.session("mine")
    assert row is not None
    assert not row.run, "too late: it was started"
    await house.crash()
    await asyncio.wait((creating,))
    await house.open()
    assert not house.roster.list(api.ListSessionsRequest()).sessions
    made = await house.roster.create(request)
    assert made.session.session_id == "mine"
    await until(house.roster.get("mine"), "state_changed", state=IDLE)


async def test_a_session_is_never_shown_without_its_face(house: House) -> None:
    request = house.creation(session_id="mine", title="a title")
    creating = asyncio.create_task(house.roster.create(request))
    seen: list[session_pb2.Session] = []
    while not creating.done():
        seen += house.roster.list(api.ListSessionsRequest()).sessions
        await asyncio.sleep(0)
    assert seen
    for session in seen:
        assert (session.driver, session.title) == ("echo", "a title")
        assert session.state != session_pb2.SESSION_STATE_UNSPECIFIED
        assert session.workspace


async def test_a_creation_whose_answer_has_no_room_can_be_repeated(house: House) -> None:
    async def no_room(key: int, response: Response) -> None:
        raise StorageFull("the disk is full")

    request = house.creation(request_id="r1")
    with patch.object(house.store, "keep_response", no_room):
        made = await house.roster.create(request)
        again = await house.roster.create(request)
    await house.crash()
    await house.open()
    after = await house.roster.create(request)
    assert {made.session.session_id} == {again.session.session_id, after.session.session_id}
    assert len(house.roster.list(api.ListSessionsRequest()).sessions) == 1


async def test_a_creation_that_a_full_disk_cut_can_be_repeated(house: House) -> None:
    failed = 0
    # Some pages for the session, then some for its first step, which writes its labels twice.
    labels = {f"key-{n}": "v" * 250 for n in range(40)}
    for spare in range(0, 16, 3):
        request = house.creation(session_id=f"s{spare}", request_id=f"r{spare}", labels=labels)
        house.fill_disk(spare)
        try:
            async with asyncio.timeout(2):
                await house.roster.create(request)
        except TimeoutError:
            pass  # it was started, and goes on as soon as that can be recorded
        except (StorageFull, DomainError):
            failed += 1
            listed = house.roster.list(api.ListSessionsRequest()).sessions
            assert request.session_id not in [session.session_id for session in listed]
        house.clear_disk()
        made = await house.roster.create(request)
        assert made.session.session_id == request.session_id
        await until(house.roster.get(request.session_id), "state_changed", state=IDLE)
    assert failed > 1


async def test_a_session_that_could_not_be_deleted_goes_on(house: House) -> None:
    session = await house.create()
    await until(session, "state_changed", state=IDLE)
    request = api.DeleteSessionRequest(session_id=session.session_id)
    # Deleting needs room for the pages it changes.
    house.store._writing.execute("PRAGMA query_only = ON")
    with pytest.raises(Exception, match="readonly"):
        await house.roster.delete(request)
    house.store._writing.execute("PRAGMA query_only = OFF")
    assert not session.tail.closed
    before = session.row.head_seq
    await session.call(api.ControlRequest(), session.restart, api.ControlResponse, request_id="again")
    await until(session, "state_changed", after=before, state=IDLE)
    await house.roster.delete(request)
    assert session.tail.closed


async def test_a_deletion_goes_on_when_its_caller_gives_up(house: House) -> None:
    session = await house.create()
    request = api.DeleteSessionRequest(session_id=session.session_id, request_id="d1")
    first = asyncio.create_task(house.roster.delete(request))
    await asyncio.sleep(0)
    first.cancel()
    async with asyncio.timeout(TIMEOUT):
        while not session.tail.closed:
            await session.tail.wait(session.tail.head_seq, TIMEOUT)
    await house.roster.delete(request)


async def test_calls_in_a_running_step_are_answered_when_the_session_goes(house: House) -> None:
    session = await house.create()
    await until(session, "state_changed", state=IDLE)
    with contextlib.closing(sqlite3.connect(house.store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        request = api.SendRequest(text="hello")
        call = asyncio.create_task(
            session.call(request, lambda core: calls.send(core, request, "m", (), ""), api.SendResponse)
        )
        # The call is queued, then the actor takes it into a step, which waits for the lock.
        for _ in range(3):
            await asyncio.sleep(0)
        assert not session._calls
        await session.close()
        other.execute("ROLLBACK")
    with pytest.raises(DomainError) as closed:
        async with asyncio.timeout(TIMEOUT):
            await call
    assert closed.value.reason == reasons.ERROR_REASON_SERVER_DRAINING
    session.reopen()


async def test_two_creations_never_run_one_conversation(house: House) -> None:
    results = await asyncio.gather(
        *(house.create(native_session_id="one") for _ in range(2)), return_exceptions=True
    )
    (refused,) = [result for result in results if isinstance(result, DomainError)]
    assert refused.reason == reasons.ERROR_REASON_NATIVE_SESSION_IN_USE


async def test_a_page_of_sessions_fits_what_clients_receive(house: House) -> None:
    house.fake_sessions(300, labels={f"key-{n}": "v" * 256 for n in range(60)})
    seen: list[str] = []
    token = ""
    while True:
        request = api.ListSessionsRequest(page_size=1000, page_token=token)
        page = house.roster.list(request)
        assert page.ByteSize() < 2 << 20
        seen += [session.session_id for session in page.sessions]
        token = page.next_page_token
        if not token:
            break
    assert seen == [f"fake-{n}" for n in reversed(range(300))]


async def test_sessions_of_a_store_that_is_gone_make_way_for_new_ones(house: House) -> None:
    former = [await house.create() for _ in range(4)]
    agents = [(await until(session, "process_started")).process_started.pid for session in former]
    await house.crash()
    for path in house.config.data_dir.glob("sessiond.db*"):
        path.unlink()
    (house.config.data_dir / "sessions" / "a stray file").touch()
    await house.open()
    created = await asyncio.gather(*(house.create() for _ in range(4)))
    assert [session.row.key for session in former] == sorted(session.row.key for session in created)
    for session in created:
        await until(session, "state_changed", state=IDLE)
    await waiting.until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in agents), "the agents are gone"
    )
    assert all(session.directory.exists() for session in created)


async def test_what_deletions_were_asked_is_not_kept_for_ever(house: House) -> None:
    def kept() -> int:
        count: int = house.store._reading.execute("SELECT count(*) FROM requests").fetchone()[0]
        return count

    for number in range(4):
        session = await house.create(request_id=f"c{number}")
        request = api.DeleteSessionRequest(session_id=session.session_id, request_id=f"d{number}")
        await house.roster.delete(request)
        await house.roster.delete(request)
        assert kept() <= 2
        house.time += 8 * 24 * 3600 * 10**9


async def test_a_session_whose_driver_is_gone_can_be_deleted(house: House) -> None:
    session = await house.create()
    other = await house.create()
    started = (await until(session, "process_started")).process_started
    await house.close()
    house.found = []
    await house.open()
    lost = house.roster.get(session.session_id)
    assert kinds(lost)
    with pytest.raises(DomainError):
        await lost.call(api.ControlRequest(), lost.restart, api.ControlResponse)
    await house.roster.delete(api.DeleteSessionRequest(session_id=session.session_id))
    await waiting.until(lambda: not Path(f"/proc/{started.pid}").exists(), "the agent is gone")
    house.found = None
    await house.close()
    await house.open()
    await until(house.roster.get(other.session_id), "process_adopted")


async def test_an_ephemeral_session_can_be_restarted_after_a_crash(house: House) -> None:
    session = await house.create(ephemeral=True)
    await until(session, "state_changed", state=IDLE)
    await house.crash()
    await house.open()
    session = house.roster.get(session.session_id)
    exited = await until(session, "process_exited")
    await session.call(api.ControlRequest(), session.restart, api.ControlResponse)
    idle = await until(session, "state_changed", after=exited.seq, state=IDLE)
    await asyncio.sleep(0.5)
    assert "process_exited" not in kinds(session)[idle.seq :]


async def test_what_the_agent_has_got_leaves_the_outbox(house: House) -> None:
    session = await house.create()
    await until(session, "state_changed", state=IDLE)
    request = api.SendRequest(text="!sleep 60")
    await session.call(request, lambda core: calls.send(core, request, "m", (), ""), api.SendResponse)
    await until(session, "turn_started")
    await waiting.until(lambda: not house.store.outbox(session.row.key), "the outbox is empty")


async def test_the_times_of_streamed_events_are_shown(house: House) -> None:
    session = await house.create()
    await until(session, "state_changed", state=IDLE)
    request = api.SendRequest(text="!text @20 " + "word " * 60)
    await session.call(request, lambda core: calls.send(core, request, "m", (), ""), api.SendResponse)
    await until(session, "assistant_text")
    turn = await until(session, "turn_started")
    before = session.summary().update_time.ToNanoseconds()
    await until(session, "assistant_text", after=turn.seq + 20)
    newest = events(session)[-1]
    assert newest.WhichOneof("body") == "assistant_text"
    shown = session.summary().update_time.ToNanoseconds()
    assert shown > before
    assert shown >= newest.create_time.ToNanoseconds()


async def test_a_restart_is_checked_like_a_creation(house: House) -> None:
    (house.workspace / "inner").mkdir()
    request = house.creation(workspace=str(house.workspace / "inner"))
    made = await house.roster.create(request)
    session = house.roster.get(made.session.session_id)
    await until(session, "state_changed", state=IDLE)
    await house.roster.check_restart(session)
    native = session.summary().native_session_id
    stop = api.ControlRequest(stop=api.Stop())
    await session.call(stop, lambda core: calls.control(core, stop, ""), api.ControlResponse)
    await until(session, "process_exited")
    (house.workspace / "inner").rmdir()
    with pytest.raises(DomainError) as gone:
        await house.roster.check_restart(session)
    assert gone.value.reason == reasons.ERROR_REASON_WORKSPACE_NOT_FOUND
    (house.workspace / "inner").symlink_to("/")
    with pytest.raises(DomainError) as outside:
        await house.roster.check_restart(session)
    assert outside.value.reason == reasons.ERROR_REASON_WORKSPACE_NOT_ALLOWED
    (house.workspace / "inner").unlink()
    (house.workspace / "inner").mkdir()
    other = await house.create(native_session_id=native)
    with pytest.raises(DomainError) as taken:
        house.roster.check_conversation(session)
    assert taken.value.reason == reasons.ERROR_REASON_NATIVE_SESSION_IN_USE
    assert taken.value.metadata == {"session_id": other.session_id}


async def test_a_conversation_is_continued_only_where_the_driver_can(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Drivers, "capabilities", lambda *_: session_pb2.DriverCapabilities())
    with pytest.raises(DomainError) as refused:
        await house.create(native_session_id="one")
    assert refused.value.reason == reasons.ERROR_REASON_DRIVER_UNSUPPORTED
    assert refused.value.metadata == {"capability": "resume"}


async def test_a_fault_after_the_commit_ends_neither_the_session_nor_the_message(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await house.create()
    await until(session, "state_changed", state=IDLE)
    failing = [True]
    send_input = Link.send_input

    def broken(link: Link, input_id: int, data: bytes) -> None:
        if failing and failing.pop():
            raise RuntimeError("a fault")
        send_input(link, input_id, data)

    monkeypatch.setattr(Link, "send_input", broken)
    request = api.SendRequest(text="hello")
    with pytest.raises(RuntimeError, match="a fault"):
        await session.call(
            request, lambda core: calls.send(core, request, "m", (), ""), api.SendResponse
        )
    await until(session, "user_message", message_id="m")
    await until(session, "turn_ended")
    assert kinds(session).count("user_message") == 1
    assert session.tail.head_seq == len(events(session))


async def test_attachments_that_no_agent_could_be_sent_are_refused(house: House) -> None:
    session = await house.create()
    refs = [digit * 64 for digit in "ab"]
    for ref in refs:
        attachment = session_pb2.Attachment(ref=ref, size_bytes=20 << 20)
        await house.store.add_attachment(session.row.key, attachment)
    service = SessionService(house.config, house.roster, Drain())
    request = api.SendRequest(session_id=session.session_id, attachment_refs=refs)
    with pytest.raises(DomainError) as refused:
        service._content(session, request.text, request.attachment_refs)
    assert refused.value.field == "attachment_refs"


async def test_a_store_that_cannot_be_read_keeps_no_call_waiting(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> NoReturn:
        raise sqlite3.OperationalError("disk I/O error")

    async def send(message_id: str) -> None:
        request = api.SendRequest(text="hello")
        run = functools.partial(
            calls.send, request=request, message_id=message_id, attachments=(), actor=""
        )
        async with asyncio.timeout(TIMEOUT):
            await session.call(request, run, api.SendResponse)

    session = await house.create()
    await until(session, "state_changed", state=IDLE)
    monkeypatch.setattr(house.store, "commit", unreadable)
    monkeypatch.setattr(house.store, "session", unreadable)
    # Those in the step that fails, and one that waits for the next.
    monkeypatch.setattr("sessiond_server.session.actor._MAX_CALLS", 2)
    results = await asyncio.gather(*(send(f"{n}") for n in range(3)), return_exceptions=True)
    results += await asyncio.gather(send("next"), return_exceptions=True)
    assert {type(result) for result in results} == {sqlite3.OperationalError}
    monkeypatch.undo()
    await send("m")
    await until(session, "user_message", message_id="m")
    assert kinds(session).count("message_queued") == 1


async def test_an_attachment_that_comes_as_its_session_goes_leaves_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await house.create()
    attachment = session_pb2.Attachment(ref="a" * 64, size_bytes=1)
    delete_session = house.store.delete_session
    adding: list[asyncio.Task[None]] = []

    def deleting(*arguments: Any) -> asyncio.Future[None]:
        deleted = delete_session(*arguments)
        # The session is still known, and what is written now is written after it was deleted.
        adding.append(asyncio.create_task(house.roster.rows.add(session.session_id, attachment)))
        return deleted

    monkeypatch.setattr(house.store, "delete_session", deleting)
    await house.roster.delete(api.DeleteSessionRequest(session_id=session.session_id))
    with pytest.raises(DomainError) as refused:
        await adding[0]
    assert refused.value.reason == reasons.ERROR_REASON_SESSION_NOT_FOUND
    assert refused.value.metadata == {"session_id": session.session_id}
    assert house.store.attachment_refs() == set()
