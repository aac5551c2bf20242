"""What every scenario stands on: a daemon with the real program, sessions in folders of their own."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2, session_service_pb2_grpc
from sessiond.v1 import session_service_pb2 as api
from tests.live.model import Model, Reply
from tests.live.npm import claude
from tests.support.daemon import Daemon
from tests.support.session import TIMEOUT, Watched

__all__ = ["Home", "Rig", "Talk"]


class Home:
    """Folders of one scenario: `workspace`, and `home` with the program's settings and conversations."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "workspace"
        self.home = folder / "home"
        for path in (self.workspace, self.home):
            path.mkdir(parents=True)

    def environment(self, model: Model) -> dict[str, str]:
        """What a session's program needs to find the scripted model and nothing of the machine's."""
        return {
            "HOME": str(self.home),
            "CLAUDE_CONFIG_DIR": str(self.home / ".claude"),
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "not-a-key",
            "ANTHROPIC_AUTH_TOKEN": "",
            "NO_PROXY": "*",
            # Without it the program refuses to act without asking when it runs as root.
            "IS_SANDBOX": "1",
        }


class Talk(Watched):
    """A watched session, its scripted model and its folders."""

    model: Model
    home: Home

    @property
    def workspace(self) -> Path:
        """The session's workspace."""
        return self.home.workspace

    async def ready(self, after: int = 0) -> None:
        """Wait until the program can take a message."""
        await self.until_state("IDLE", after)

    async def question(self, after: int = 0) -> ev.QuestionAsked:
        """Return the next question."""
        return (await self.until("question_asked", after=after)).question_asked

    async def end(self, after: int = 0) -> ev.TurnEnded:
        """Return the end of the next turn, when the program is idle again."""
        event = await self.until("turn_ended", after=after)
        await self.until_state("IDLE", after=event.seq)
        return event.turn_ended

    def bodies(self, kind: str, after: int = 0) -> list[Any]:
        """Return the bodies of all events of a kind so far."""
        return [getattr(e, kind) for e in self.events[after:] if e.WhichOneof("body") == kind]

    def seq(self, kind: str, after: int = 0) -> int:
        """Return the seq of the first event of a kind; AssertionError when there is none."""
        for event in self.events[after:]:
            if event.WhichOneof("body") == kind:
                return event.seq
        raise AssertionError(f"no {kind} after {after}: {self.kinds(after)}")

    def settings(self) -> dict[str, str]:
        """Return what was last confirmed of each setting."""
        confirmed: dict[str, str] = {}
        for changed in self.bodies("settings_changed"):
            confirmed |= {field.name: value for field, value in changed.ListFields()}
        return confirmed


class Rig:
    """A daemon whose `claude` driver runs one version of the program."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.program = claude(version)
        self.seen: list[ev.Event] = []
        self.daemon = Daemon(
            settings={
                "drivers.claude.binary": f'"{self.program}"',
                "drivers.claude.allow_bypass": "true",
                "drivers.claude.env": '{ CLAUDE_CODE_MAX_RETRIES = "2" }',
            }
        )
        self._numbers = itertools.count(1)

    def new_home(self) -> Home:
        """Make folders for a scenario, inside those that the daemon allows."""
        return Home(self.daemon.workspace / f"{next(self._numbers):03d}")

    @contextlib.asynccontextmanager
    async def talk(self, *script: Reply, **fields: Any) -> AsyncIterator[Talk]:
        """Yield a ready session with a scripted model of its own."""
        with Model(*script) as model:
            async with self.session(model, self.new_home(), **fields) as talk:
                await talk.ready()
                yield talk

    @contextlib.asynccontextmanager
    async def session(self, model: Model, home: Home, **fields: Any) -> AsyncIterator[Talk]:
        """Yield a session, ready or not; it is deleted at the end."""
        async with self.daemon.channel() as channel:
            stub = session_service_pb2_grpc.SessionServiceStub(channel)
            created = await self.create(stub, model, home, **fields)
            talk = Talk(stub, created.session_id)
            talk.model, talk.home = model, home
            try:
                yield talk
            finally:
                self.seen += talk.events
                await talk.close()
                request = api.DeleteSessionRequest(session_id=created.session_id)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await stub.DeleteSession(request, timeout=TIMEOUT, wait_for_ready=True)

    async def create(
        self,
        stub: session_service_pb2_grpc.SessionServiceAsyncStub,
        model: Model,
        home: Home,
        environment: dict[str, str] | None = None,
        **fields: Any,
    ) -> session_pb2.Session:
        """Call CreateSession."""
        request = api.CreateSessionRequest(
            driver="claude",
            environment=home.environment(model) | (environment or {}),
            **{"workspace": str(home.workspace), **fields},
        )
        response = await stub.CreateSession(request, timeout=TIMEOUT, wait_for_ready=True)
        return response.session

    async def __aenter__(self) -> Rig:
        await self.daemon.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self.daemon.__aexit__(*failure)
