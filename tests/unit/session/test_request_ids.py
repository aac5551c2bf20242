"""One request_id, one effect: however often it is sent, at once or over crashes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_server.errors import DomainError
from sessiond_server.session import Session, calls
from tests.unit.session.house import House, events, until


@dataclass(frozen=True)
class Sent:
    """The same message, so many times at once."""

    request_id: str
    text: str
    times: int


@dataclass(frozen=True)
class Crash:
    """The daemon dies and another one takes over."""


_STEPS = st.one_of(
    st.builds(Sent, st.sampled_from(["r1", "r2", "r3"]), st.sampled_from(["a", "b"]), st.integers(1, 3)),
    st.builds(Crash),
)


async def _send(session: Session, step: Sent, message_id: str) -> bytes | DomainError:
    request = api.SendRequest(text=step.text, request_id=step.request_id)
    try:
        response = await session.call(
            request,
            lambda core: calls.send(core, request, message_id, (), ""),
            api.SendResponse,
            request_id=step.request_id,
        )
    except DomainError as error:
        return error
    return response.SerializeToString()


async def _play(steps: list[Sent | Crash]) -> None:
    async with House() as house:
        session = await house.create(session_id="s")
        await until(session, "state_changed", state=session_pb2.SESSION_STATE_IDLE)
        known: dict[str, tuple[str, bytes]] = {}
        for number, step in enumerate(steps):
            if isinstance(step, Crash):
                await house.crash()
                await house.open()
                session = house.roster.get("s")
                continue
            sends = [_send(session, step, f"m{number}-{n}") for n in range(step.times)]
            for result in await asyncio.gather(*sends):
                if isinstance(result, bytes):
                    known.setdefault(step.request_id, (step.text, result))
                    assert known[step.request_id] == (step.text, result)
                else:
                    assert result.reason == reasons.ERROR_REASON_REQUEST_ID_REUSED
                    assert known[step.request_id][0] != step.text
        queued = [event for event in events(session) if event.HasField("message_queued")]
        told = {event.request_id: event.message_queued.text for event in queued}
        assert told == {request_id: text for request_id, (text, _) in known.items()}
        assert len(queued) == len(known)


@settings(max_examples=12, deadline=None)
@given(st.lists(_STEPS, min_size=1, max_size=8))
def test_a_request_id_has_one_effect(steps: list[Sent | Crash]) -> None:
    asyncio.run(_play(steps))
