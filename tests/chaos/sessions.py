"""One session under attack: who sends to it, who watches it, and what is found in the end."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2, session_service_pb2_grpc
from sessiond.v1 import session_service_pb2 as api
from tests.chaos import audit, checkers, record, watcher
from tests.chaos.checkers import Violation
from tests.chaos.persist import Stuck, persist
from tests.support.daemon import Daemon

R = TypeVar("R")

_STEER = session_pb2.DELIVERY_STEER
_TIMEOUT = 10.0
_RATES = (200, 1000, 5000)
_COUNTS = (5, 400)


@dataclass(slots=True)
class Findings:
    """What the comparison of one session said; the numbers are how much was compared."""

    events: int = 0
    inputs: int = 0
    seen: int = 0
    streams: int = 0
    of_events: list[Violation] = field(default_factory=list)
    of_inputs: list[Violation] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)


class Watchers:
    """The recording subscribers of one session, each a process; they may be killed and come again."""

    def __init__(self, session_id: str, folder: Path, seed: str, patience: float) -> None:
        self.session_id = session_id
        self._patience = patience
        self._folder = folder
        self._seed = seed
        self._ways: dict[str, str] = {}
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._targets: dict[str, tuple[str, Mapping[str, str]]] = {}

    async def add(self, way: str, target: str, env: Mapping[str, str]) -> None:
        """Start one more."""
        name = f"{self.session_id}-{len(self._ways)}-{way}"
        self._ways[name] = way
        self._targets[name] = (target, env)
        await self._start(name)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.record"

    async def _start(self, name: str) -> None:
        target, env = self._targets[name]
        self._running[name] = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.watcher", target, self.session_id),
            *(str(self._file(name)), self._ways[name], f"{self._seed}/{name}"),
            stdin=asyncio.subprocess.PIPE,
            env=dict(env),
        )

    def pids(self) -> list[int]:
        """Those that run now."""
        return [process.pid for process in self._running.values() if process.returncode is None]

    async def kill(self, rng: random.Random, number: signal.Signals) -> bool:
        """End one of them by a signal and start it again; False when there is none yet."""
        if not self._running:
            return False
        name = rng.choice(sorted(self._running))
        process = self._running[name]
        if process.returncode is None:
            process.send_signal(number)
            # One that is frozen hears nothing else than a SIGKILL before that.
            process.send_signal(signal.SIGCONT)
        await process.wait()
        await self._start(name)
        return True

    async def finish(self, head_seq: int) -> list[str]:
        """Tell all where to stop and wait until they have it; return those that never got there."""
        return [
            text
            for text in await asyncio.gather(*(self._end(name, head_seq) for name in self._running))
            if text
        ]

    async def _end(self, name: str, head_seq: int) -> str:
        process = self._running[name]
        assert process.stdin is not None
        try:
            async with asyncio.timeout(self._patience):
                await process.communicate(f"{head_seq}\n".encode())
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"{name} never got to {head_seq}"
        return "" if process.returncode == 0 else f"{name} failed with {process.returncode}"

    def records(self) -> list[record.Record]:
        """Return what they recorded."""
        return [record.read(self._file(name), name, self.session_id) for name in self._ways]

    async def close(self) -> None:
        """End whatever still runs."""
        for process in self._running.values():
            if process.returncode is None:
                process.kill()
                await process.wait()


class Attacked:
    """One session of the echo agent, and all that is kept of what its clients were told.

    `metadata` goes with each call. What is not done after `patience` seconds is stuck.
    """

    def __init__(
        self,
        daemon: Daemon,
        channel: grpc.aio.Channel,
        name: str,
        seed: str,
        patience: float,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.stub: session_service_pb2_grpc.SessionServiceAsyncStub
        self.stub = session_service_pb2_grpc.SessionServiceStub(channel)
        self.session_id = name
        self.random = random.Random(f"{seed}/{name}/sender")
        self.sent = audit.Sent()
        self.watchers = Watchers(name, daemon.folder, seed, patience)
        self.metadata = metadata
        self._patience = patience
        self._daemon = daemon
        self._log = daemon.folder / f"{name}.read"
        self._number = 0

    async def call(self, what: str, method: Callable[..., Awaitable[R]], request: Message) -> R:
        """Make a call until it is answered; raises Refused with the daemon's reason."""
        return await persist(
            f"{what} of {self.session_id}",
            lambda: method(request, timeout=_TIMEOUT, metadata=self.metadata),
        )

    async def create(self) -> None:
        """Create it, with a request_id, however often that has to be said."""
        state = self._daemon.folder / "echo"
        request = api.CreateSessionRequest(
            driver="echo",
            session_id=self.session_id,
            workspace=str(self._daemon.workspace),
            environment={"ECHO_READ_LOG": str(self._log), "ECHO_STATE_DIR": str(state)},
            request_id=f"create-{self.session_id}",
        )
        created = await self.call("create", self.stub.CreateSession, request)
        if created.session.session_id != self.session_id:
            raise Stuck(f"{self.session_id} was created as {created.session.session_id!r}")

    async def delete(self) -> None:
        """Delete it."""
        request = api.DeleteSessionRequest(
            session_id=self.session_id, request_id=f"delete-{self.session_id}"
        )
        await self.call("delete", self.stub.DeleteSession, request)

    # --- sending ---

    def script(self) -> tuple[str, str]:
        """Return a new tag and a message with it."""
        self._number += 1
        tag = f"{self.session_id}-{self._number}"
        rate, count = self.random.choice(_RATES), self.random.randint(*_COUNTS)
        return tag, audit.script(tag, rate, count)

    async def send(self, delivery: session_pb2.Delivery.ValueType = _STEER, before: str = "") -> str:
        """Send one burst (after the script `before`) until it is acknowledged; return its id.

        Now and then the same is asked once more.
        """
        tag, text = self.script()
        request = api.SendRequest(
            session_id=self.session_id,
            text=before + text,
            delivery=delivery,
            request_id=f"send-{tag}",
        )
        reply = await self.call("send", self.stub.Send, request)
        self.sent.accepted[reply.message_id] = request.text
        if self.random.random() < 0.2:
            again = await self.call("repeated send", self.stub.Send, request)
            if again != reply:
                self.sent.disputed.append(again.message_id)
        return reply.message_id

    async def send_until(self, over: asyncio.Event, pause: float) -> None:
        """Send bursts at random moments until it is over."""
        while not over.is_set():
            await self.send()
            # Half of the time faster than the agent reads: messages wait, and some are read in one turn.
            busy = (await self.get()).queue_length > 3
            await asyncio.sleep(1.0 if busy else self.random.uniform(0.0, 2 * pause))

    async def get(self) -> session_pb2.Session:
        """Return the session."""
        request = api.GetSessionRequest(session_id=self.session_id)
        return (await self.call("get", self.stub.GetSession, request)).session

    # --- the end ---

    async def settle(self) -> str:
        """Wait until it is idle with nothing waiting; say how it stands when it never gets there."""
        deadline = asyncio.get_running_loop().time() + self._patience
        while True:
            session = await self.get()
            idle = session.state == session_pb2.SESSION_STATE_IDLE
            if idle and not session.queue_length and not session.open_question_count:
                return ""
            if asyncio.get_running_loop().time() > deadline:
                state = session_pb2.SessionState.Name(session.state)
                return f"{self.session_id} is {state} with {session.queue_length} waiting"
            await asyncio.sleep(0.1)

    async def findings(self) -> Findings:
        """Read the transcript and compare everything with it; all must have settled."""
        found = Findings(inputs=len(self.sent.accepted))
        head = (await self.get()).head_seq
        found.stuck += await self.watchers.finish(head)
        own, events = await self._transcript(head)
        transcript = own.streams[-1].events
        found.events = len(events)
        for kept in [own, *self.watchers.records()]:
            found.of_events += checkers.check(kept, transcript)
            found.streams += len(kept.streams)
            found.seen += sum(len(stream.seqs) for stream in kept.streams)
        found.of_events += audit.bursts(self.session_id, events)
        found.of_events += audit.balance(self.session_id, events)
        log = audit.read_log(self._log)
        found.of_inputs += audit.inputs(self.session_id, self.sent, log, events)
        return found

    async def _transcript(self, head: int) -> tuple[record.Record, Sequence[ev.Event]]:
        """Subscribe from the beginning, as a client of its own."""
        stream = record.Stream(0)
        events: list[ev.Event] = []
        request = api.SubscribeRequest(session_id=self.session_id)
        call = self.stub.Subscribe(request, timeout=self._patience, metadata=self.metadata)
        async for response in call:
            stream.answers.append(record.answer(response))
            events += response.events
            if events and events[-1].seq >= head:
                break
        call.cancel()
        stream.end = record.COMPLETE
        return record.Record("reader", self.session_id, [stream]), events

    async def close(self) -> None:
        """End its watchers."""
        await self.watchers.close()


def ways(count: int) -> list[str]:
    """Return how each of `count` watchers behaves."""
    return [watcher.WAYS[number % len(watcher.WAYS)] for number in range(count)]
