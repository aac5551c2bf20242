"""Calls that meet in the middle of each other: one wins, the other is told, and nothing is left over."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_server.config import Limits
from sessiond_server.drain import Drain
from sessiond_server.errors import DomainError
from sessiond_server.services.session import SessionService
from sessiond_server.session import Session, calls
from sessiond_server.session.process import Process
from sessiond_server.store import StorageFull
from tests.support import waiting
from tests.unit.session.house import House, events, until

IDLE = session_pb2.SESSION_STATE_IDLE


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with House() as house:
        yield house


def _look_again(house: House) -> None:
    """Let the next call that needs the driver wait until its program was asked for its version."""
    house.roster._drivers._entries["echo"].probed = None


def _refused(results: list[object]) -> list[reasons.ErrorReason.ValueType]:
    errors = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(error, DomainError) for error in errors), errors
    return [error.reason for error in errors if isinstance(error, DomainError)]


async def _stop(session: Session) -> None:
    stop = api.ControlRequest(stop=api.Stop())
    await session.call(stop, lambda core: calls.control(core, stop, ""), api.ControlResponse)
    await until(session, "process_exited", after=session.tail.head_seq - 1)


def _titled(session: Session, title: str) -> Awaitable[api.ControlResponse]:
    request = api.ControlRequest(set_title=api.SetTitle(title=title))
    return session.call(request, lambda core: calls.control(core, request, ""), api.ControlResponse)


@contextlib.contextmanager
def _locked(house: House) -> Iterator[None]:
    """Let commits wait while in the block."""
    with contextlib.closing(sqlite3.connect(house.store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def _committing(session: Session, call: Awaitable[object]) -> asyncio.Future[object]:
    """Begin a call and return when its step waits for its commit."""

    task = asyncio.ensure_future(call)
    # The call is queued, then the actor takes it into a step.
    for _ in range(3):
        await asyncio.sleep(0)
    assert not session._calls
    return task


async def test_of_two_creations_of_one_id_one_succeeds(house: House) -> None:
    _look_again(house)
    request = house.creation(session_id="twin")
    results = await asyncio.gather(
        *(house.roster.create(request) for _ in range(3)), return_exceptions=True
    )
    assert _refused([*results]) == [reasons.ERROR_REASON_SESSION_EXISTS] * 2
    session = house.roster.get("twin")
    await until(session, "state_changed", state=IDLE)
    await _titled(session, "still whole")
    assert len(list(house.store.sessions())) == 1


async def test_a_creation_that_failed_frees_its_id() -> None:
    async with House() as house:
        with pytest.raises(DomainError):
            await house.create(session_id="mine", labels={"": "no key"})
        await house.create(session_id="mine")


async def test_creations_at_once_keep_to_the_limit() -> None:
    async with House(limits=Limits(max_sessions=2)) as house:
        _look_again(house)
        results = await asyncio.gather(*(house.create() for _ in range(5)), return_exceptions=True)
        assert _refused([*results]) == [reasons.ERROR_REASON_TOO_MANY_SESSIONS] * 3


async def test_of_two_restarts_of_one_conversation_one_succeeds(house: House) -> None:
    first = await house.create()
    await until(first, "state_changed", state=IDLE)
    native = first.summary().native_session_id
    await _stop(first)
    second = await house.create(native_session_id=native)
    await until(second, "state_changed", state=IDLE)
    await _stop(second)
    _look_again(house)
    service = SessionService(house.config, house.roster, Drain())
    results = await asyncio.gather(
        *(
            service._restart(session, api.ControlRequest(restart=api.Restart()))
            for session in (first, second)
        ),
        return_exceptions=True,
    )
    assert _refused([*results]) == [reasons.ERROR_REASON_NATIVE_SESSION_IN_USE]


async def test_a_restart_on_its_way_starts_nothing_in_a_session_that_goes(house: House) -> None:
    session = await house.create()
    await until(session, "state_changed", state=IDLE)
    gate = asyncio.Event()
    finish: Callable[..., Awaitable[None]] = Process.finish

    async def slow(process: Process, *, kill: bool) -> None:
        await gate.wait()
        await finish(process, kill=kill)

    with patch.object(Process, "finish", slow):
        await _stop(session)
        with _locked(house):
            restart = session.call(api.ControlRequest(), session.restart, api.ControlResponse)
            call = await _committing(session, restart)
            closing = asyncio.create_task(session.close(deleting=True))
            await asyncio.sleep(0)
        await house.store.set_meta({"after": "that"})
        gate.set()
        await asyncio.gather(call, closing, return_exceptions=True)
    assert session._agent._process is None


async def test_what_was_committed_while_a_session_closed_is_told_when_it_stays(house: House) -> None:
    session = await house.create()
    await until(session, "state_changed", state=IDLE)
    await _stop(session)
    session.tail.readers += 1
    await _titled(session, "one")
    seen = session.tail.head_seq
    with _locked(house):
        call = await _committing(session, _titled(session, "two"))
        await session.close(deleting=True)
    with pytest.raises(DomainError) as closed:
        await call
    assert closed.value.reason == reasons.ERROR_REASON_SESSION_NOT_FOUND
    await house.store.set_meta({"after": "that"})
    session.reopen()
    assert session.tail.head_seq == seen + 1
    await _titled(session, "three")
    data, last = session.read(seen, 1 << 20)
    told = [event.seq for event in api.SubscribeResponse.FromString(data).events]
    assert told == [seen + 1, seen + 2]
    assert last == session.tail.head_seq


async def test_an_agent_that_a_failed_deletion_ended_is_seen_to_have_ended(house: House) -> None:
    session = await house.create()
    await until(session, "state_changed", state=IDLE)

    async def no_room(*_: object) -> None:
        raise StorageFull("the disk is full")

    seen = session.tail.head_seq
    # As long as the disk is full the end of the agent is not recorded either.
    with (
        patch.object(house.store, "delete_session", no_room),
        patch.object(house.store, "commit", no_room),
        pytest.raises(DomainError) as refused,
    ):
        await house.roster.delete(api.DeleteSessionRequest(session_id=session.session_id))
    assert refused.value.reason == reasons.ERROR_REASON_STORAGE_FULL
    await until(session, "process_exited", after=seen)


async def test_a_creation_that_could_not_be_taken_back_is_forgotten_later(house: House) -> None:
    launch = Session.launch
    full = True

    async def fails(session: Session, resume: bool) -> None:
        await launch(session, resume)
        raise DomainError(reasons.ERROR_REASON_LAUNCH_FAILED, "as if")

    delete = house.store.delete_session

    async def no_room(key: int, *given: Any) -> None:
        if full:
            raise StorageFull("the disk is full")
        await delete(key, *given)

    with patch.object(house.store, "delete_session", no_room):
        with patch.object(Session, "launch", fails), pytest.raises(DomainError, match="as if"):
            await house.create(session_id="ghost")
        assert not house.roster.list(api.ListSessionsRequest()).sessions
        with pytest.raises(DomainError) as refused:
            await house.create(session_id="ghost")
        assert refused.value.reason == reasons.ERROR_REASON_SESSION_EXISTS
        full = False
        await waiting.until(lambda: house.store.session("ghost") is None, "it is forgotten")
    made = await house.create(session_id="ghost")
    await until(made, "state_changed", state=IDLE)
    assert events(made)[0].seq == 1
