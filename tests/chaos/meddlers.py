"""What else clients do to a session while everything falls: each a loop that ends when it is over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import grpc

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from tests.chaos.sessions import Attacked
from tests.support.session import Failure

__all__ = ["MEDDLERS", "answer_all", "revive"]

# Refusals that a client has to expect: the world moved on before its call came.
_EXPECTED = frozenset(
    {
        "MESSAGE_NOT_FOUND",
        "STALE_REVISION",
        "TURN_NOT_RUNNING",
        "SESSION_EXITED",
        "QUESTION_NOT_FOUND",
        "QUESTION_WITHDRAWN",
        "QUESTION_ALREADY_ANSWERED",
    }
)
_DELIVERIES = [
    session_pb2.DELIVERY_STEER,
    session_pb2.DELIVERY_STEER,
    session_pb2.DELIVERY_NEXT_TURN,
    session_pb2.DELIVERY_NEXT_TURN,
    session_pb2.DELIVERY_NOW,
    session_pb2.DELIVERY_APPEND,
]
_BEFORE = [
    *[""] * 8,
    '!ask expires=3 "Which?" [a|b]\n',
    '!ask "Which?" [a|b]\n',
    "!permit bash {} -> done\n",
    "!tool updates=3 for=0.2 bash {} -> done\n",
    "!open bash\n",
    "!spawn 3600\n",
    "!garbage 3\n!invalid\n",
    "!huge 0.3\n",
    "!retract never mind\n",
]
_numbers = count(1)

Meddler = Callable[[Attacked, random.Random], Awaitable[None]]


async def _pace(over: asyncio.Event, rng: random.Random, pause: float) -> AsyncIterator[None]:
    """Yield at random moments until it is over."""
    while not over.is_set():
        yield
        await asyncio.sleep(rng.expovariate(1 / pause))


async def _allow(call: Awaitable[object]) -> bool:
    """Make a call that may be refused; False when it was."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if Failure(error).reason not in _EXPECTED:
            raise
        return False
    return True


async def send(session: Attacked, rng: random.Random) -> None:
    """A message of any kind, in any delivery."""
    if (await session.get()).queue_length < 20:
        await _allow(session.send(rng.choice(_DELIVERIES), rng.choice(_BEFORE)))


def _recent(session: Attacked, rng: random.Random) -> str:
    return rng.choice(list(session.sent.accepted)[-6:] or ["none"])


async def unqueue(session: Attacked, rng: random.Random) -> None:
    """Take one of the last messages back."""
    message_id = _recent(session, rng)
    request = api.UnqueueRequest(
        session_id=session.session_id, message_id=message_id, request_id=f"u{next(_numbers)}"
    )
    reply = await session.call("unqueue", session.stub.Unqueue, request)
    if reply.outcome == api.UNQUEUE_OUTCOME_DROPPED:
        session.sent.dropped.add(message_id)
    elif reply.outcome == api.UNQUEUE_OUTCOME_UNKNOWN:
        session.sent.unsure.add(message_id)


async def edit(session: Attacked, rng: random.Random) -> None:
    """Edit or move one of the last messages."""
    message_id = _recent(session, rng)
    if rng.random() < 0.7:
        _, text = session.script()
        edit = api.EditMessageRequest(
            session_id=session.session_id,
            message_id=message_id,
            text=text,
            request_id=f"e{next(_numbers)}",
        )
        await _allow(session.call("edit", session.stub.EditMessage, edit))
    else:
        move = api.MoveMessageRequest(
            session_id=session.session_id, message_id=message_id, request_id=f"m{next(_numbers)}"
        )
        await _allow(session.call("move", session.stub.MoveMessage, move))


async def interrupt(session: Attacked, rng: random.Random) -> None:
    """Interrupt the turn, or ask for something that waits for its end."""
    request = api.ControlRequest(session_id=session.session_id, request_id=f"c{next(_numbers)}")
    action = rng.choice(["interrupt", "interrupt", "compact", "clear", "stop", "set_model", "set_title"])
    getattr(request, action).SetInParent()
    if action == "set_model":
        request.set_model.model = rng.choice(["echo-1", "echo-2", "echo-locked"])
    elif action == "set_title":
        request.set_title.title = f"title {next(_numbers)}"
    await _allow(session.call(action, session.stub.Control, request))


async def answer_all(session: Attacked, rng: random.Random) -> None:
    """Answer what is open."""
    if not (await session.get()).open_question_count:
        return
    for asked in await _open_questions(session):
        labels = [option.label for option in asked.options]
        request = api.AnswerRequest(
            session_id=session.session_id,
            question_id=asked.question_id,
            answers=[rng.choice(labels)],
            request_id=f"a{next(_numbers)}",
        )
        await _allow(session.call("answer", session.stub.Answer, request))


async def _open_questions(session: Attacked) -> list[ev.QuestionAsked]:
    found: dict[str, ev.QuestionAsked] = {}
    closed: set[str] = set()
    before = 0
    # A question may be thousands of deltas back: the agent streams on while it waits elsewhere.
    while True:
        request = api.ListEventsRequest(session_id=session.session_id, before_seq=before, page_size=1000)
        page = await session.call("page", session.stub.ListEvents, request)
        for event in page.events:
            closed.add(event.question_answered.question_id or event.question_withdrawn.question_id)
            if event.HasField("question_asked"):
                found[event.question_asked.question_id] = event.question_asked
        still = [asked for name, asked in found.items() if name not in closed]
        if still or not page.events or page.events[0].seq == 1:
            return still
        before = page.events[0].seq


async def revive(session: Attacked, rng: random.Random) -> None:
    """Start the agent again when it has ended."""
    if (await session.get()).state == session_pb2.SESSION_STATE_EXITED:
        request = api.ControlRequest(
            session_id=session.session_id, restart=api.Restart(), request_id=f"r{next(_numbers)}"
        )
        await session.call("restart", session.stub.Control, request)


# Each with the mean seconds between two of its acts.
MEDDLERS: dict[Meddler, float] = {
    send: 0.4,
    unqueue: 2.0,
    edit: 2.0,
    interrupt: 3.0,
    answer_all: 1.0,
    revive: 0.7,
}


async def meddle(act: Meddler, session: Attacked, seed: str, over: asyncio.Event, pause: float) -> None:
    """Do one thing at random moments until it is over."""
    rng = random.Random(f"{seed}/{session.session_id}/{act.__name__}")
    async for _ in _pace(over, rng, pause):
        await act(session, rng)
