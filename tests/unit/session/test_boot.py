"""What a start makes of what the last one left: crash, reboot, power cut, copy; and clocks that jump."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from asyncio import Future
from collections.abc import AsyncIterator, Sequence
from unittest.mock import patch

import pytest

from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_server.session import Core, Session, calls
from sessiond_server.session.process import Process
from sessiond_server.shim import find_leftovers, is_alive, is_kept, launch
from sessiond_server.store import COPIED, Store
from sessiond_server.store.writer import Statement
from tests.chaos.processes import Handle
from tests.support.daemon import wait_until_gone
from tests.support.waiting import until
from tests.unit.session.house import TIMEOUT, House, events, kinds
from tests.unit.session.house import until as until_event

HOUR = 3600 * 10**9


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with House() as opened:
        yield opened


async def _session(house: House) -> str:
    request = api.CreateSessionRequest(driver="echo", workspace=str(house.workspace))
    created = await house.roster.create(request)
    await _is(house, created.session.session_id, session_pb2.SESSION_STATE_IDLE)
    return created.session.session_id


async def _is(house: House, session_id: str, state: session_pb2.SessionState.ValueType) -> None:
    def reached() -> bool:
        return house.roster.get(session_id).summary().state == state

    await until(reached, f"the session is {session_pb2.SessionState.Name(state)}", 20.0)


def _transcript(house: House, session_id: str) -> str:
    return house.roster.get(session_id).summary().transcript_id


def _set_meta(house: House, key: str, value: str) -> None:
    connection = sqlite3.connect(house.config.data_dir / "sessiond.db")
    with connection:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
    connection.close()


async def test_attachments_of_sessions_that_are_no_more_are_forgotten(house: House) -> None:
    session_id = await _session(house)
    kept, left = (session_pb2.Attachment(ref=digit * 64) for digit in "ab")
    await house.roster.rows.add(session_id, kept)
    row = (house.roster.get(session_id).row.key + 1, left.ref, "", "", 0)
    await house.store.write([("INSERT INTO attachments VALUES (?, ?, ?, ?, ?)", row)])
    await house.crash()
    await house.open()
    assert house.store.attachment_refs() == {kept.ref}
    assert house.roster.rows.get(session_id, kept.ref) == kept


async def test_that_a_store_is_in_use_is_noted_before_anything_that_could_be_lost(house: House) -> None:
    await house.close()
    written: list[bool] = []
    write = Store.write

    def noting(store: Store, statements: Sequence[Statement], *, sync: bool = False) -> Future[None]:
        written.append(sync)
        return write(store, statements, sync=sync)

    with patch.object(Store, "write", noting):
        await house.open()
    # What a power cut takes is the end of what was written, and with this one nothing before it.
    assert written[:1] == [True]
    assert house.store.get_meta("clean") == "0"


async def test_a_crash_alone_changes_nothing(house: House) -> None:
    session_id = await _session(house)
    before = _transcript(house, session_id)
    await house.crash()
    await house.open()
    assert _transcript(house, session_id) == before
    await _is(house, session_id, session_pb2.SESSION_STATE_IDLE)


async def test_after_a_reboot_that_was_no_shutdown_transcripts_are_new_and_sessions_resumable(
    house: House,
) -> None:
    session_id = await _session(house)
    before = _transcript(house, session_id)
    await house.crash()
    await wait_until_gone(house.config.data_dir)
    await house.open("another boot")
    after = _transcript(house, session_id)
    assert after != before
    await _is(house, session_id, session_pb2.SESSION_STATE_EXITED)
    session = house.roster.get(session_id)
    await session.call(api.ControlRequest(), session.restart, api.ControlResponse)
    await _is(house, session_id, session_pb2.SESSION_STATE_IDLE)
    # Once for each cut: what was said since is as safe as before.
    await house.crash()
    await house.open("another boot")
    assert _transcript(house, session_id) == after


@pytest.mark.parametrize("how", ["shutdown", "everything synced"])
async def test_a_reboot_that_lost_nothing_keeps_the_transcripts(house: House, how: str) -> None:
    session_id = await _session(house)
    before = _transcript(house, session_id)
    if how == "shutdown":
        await house.close()
    else:
        await house.crash()
        _set_meta(house, "full_sync", "1")
    await wait_until_gone(house.config.data_dir)
    await house.open("another boot")
    assert _transcript(house, session_id) == before


async def test_a_copy_has_transcripts_of_its_own(house: House) -> None:
    session_id = await _session(house)
    before = _transcript(house, session_id)
    await house.close()
    _set_meta(house, COPIED, "1")
    await house.open()
    after = _transcript(house, session_id)
    assert after != before
    await house.close()
    await house.open()
    assert _transcript(house, session_id) == after


@pytest.mark.parametrize("where", ["a copy", "another boot"])
@pytest.mark.parametrize("what", ["a start", "a restart"])
async def test_a_start_under_way_is_not_carried_out_in_another_boot_or_a_copy(
    house: House, monkeypatch: pytest.MonkeyPatch, where: str, what: str
) -> None:
    session = house.roster.get(await _session(house))
    if what == "a start":
        assert await session.kill(TIMEOUT)
        # Promised, and the daemon dies before it does anything about it.
        monkeypatch.setattr(Process, "start", lambda *_: None)
    else:
        # The process that runs is to end first, and takes its time.
        monkeypatch.setattr(Core, "stop", lambda _: None)
    await session.call(api.ControlRequest(), session.restart, api.ControlResponse)
    monkeypatch.undo()
    await house.crash()
    await wait_until_gone(house.config.data_dir)
    if where == "a copy":
        _set_meta(house, COPIED, "1")
    before = session.row.head_seq
    await house.open("boot" if where == "a copy" else where)
    session = house.roster.get(session.session_id)
    await until_event(session, "error_raised", after=before, reason="AGENT_LOST")
    await _is(house, session.session_id, session_pb2.SESSION_STATE_EXITED)
    assert not session.row.alive
    assert "process_started" not in kinds(session)[before:]


async def test_what_is_synced_is_synced_within_its_commit(house: House) -> None:
    said: list[str] = []
    house.store._writing.set_trace_callback(said.append)
    # The start says so that this run has not ended well, before anything that may be lost.
    await house.store.set_meta({"x": "1"}, sync=True)
    await house.store.set_meta({"x": "2"})
    house.store._writing.set_trace_callback(None)
    settings = [text for text in said if "synchronous" in text or text == "COMMIT"]
    normal = "PRAGMA synchronous = NORMAL"
    assert settings == ["PRAGMA synchronous = FULL", "COMMIT", normal, "COMMIT"]
    assert house.store.get_meta("clean") == "0"


async def _tick(session: Session, jump: int) -> None:
    request = api.SendRequest(text=f"tick {jump}")
    sent = await session.call(
        request, lambda core: calls.send(core, request, str(jump), (), "me"), api.SendResponse
    )
    await until_event(session, "turn_ended", after=sent.seq)


async def test_a_clock_that_jumps_changes_times_and_nothing_else(house: House) -> None:
    session = house.roster.get(await _session(house))
    for jump in (-1000 * HOUR, 0, 500 * HOUR, -HOUR):
        house.time = jump
        await _tick(session, jump)
    said = events(session)
    assert [event.seq for event in said] == list(range(1, len(said) + 1))
    texts = [event.user_message.text for event in said if event.HasField("user_message")]
    assert texts == [f"tick {jump}" for jump in (-1000 * HOUR, 0, 500 * HOUR, -HOUR)]
    times = [event.create_time.ToNanoseconds() for event in said]
    assert times != sorted(times)


@pytest.mark.parametrize("stopped", [True, False])
async def test_what_follows_an_end_is_done_by_the_next_daemon(
    house: House, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    reached = asyncio.Event()

    async def cut(process: Process, *, kill: bool) -> None:
        # The system closes the sockets of one that dies.
        await process.detach()
        reached.set()
        await asyncio.Event().wait()

    session = house.roster.get(await _session(house))
    child = await _spawned(session)
    monkeypatch.setattr(Process, "finish", cut)
    if stopped:
        stop = api.ControlRequest(stop=api.Stop())
        await session.call(stop, lambda core: calls.control(core, stop, ""), api.ControlResponse)
    else:
        await _say(session, "!crash 1")
    await reached.wait()
    await house.crash()
    monkeypatch.undo()
    await house.open()
    await until(lambda: not is_kept(session.directory, 1), "the files of the run are gone")
    # What an agent that ended by itself has left may be wanted.
    assert [found.pid for found in find_leftovers(session.marker)] == ([] if stopped else [child.pid])
    child.signal(signal.SIGKILL)
    child.close()


async def test_an_agent_of_a_session_that_has_none_is_ended_at_the_start(house: House) -> None:
    session = house.roster.get(await _session(house))
    directory, marker, run = session.directory, session.marker, session.row.run
    assert await session.kill(TIMEOUT)
    await house.close()
    # Its start was given up by a daemon that did not live to end what had come up after all.
    command = [sys.executable, "-c", "import time; time.sleep(300)"]
    await launch(directory, run, argv=command, env={}, cwd="/", session_id=marker)
    await house.open()
    await until(lambda: not is_alive(directory), "the shim is gone")
    assert not find_leftovers(marker)
    session = house.roster.get(session.session_id)
    await session.call(api.ControlRequest(), session.restart, api.ControlResponse)
    await _is(house, session.session_id, session_pb2.SESSION_STATE_IDLE)


async def _say(session: Session, text: str) -> api.SendResponse:
    request = api.SendRequest(text=text)
    return await session.call(
        request, lambda core: calls.send(core, request, text, (), ""), api.SendResponse
    )


async def _spawned(session: Session) -> Handle:
    """Let the agent put a process into the background."""
    sent = await _say(session, "!spawn 300")
    said = await until_event(session, "assistant_text", after=sent.seq)
    await until_event(session, "turn_ended", after=sent.seq)
    return Handle(int(said.assistant_text.delta.removeprefix("pid ")))
