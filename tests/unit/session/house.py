"""A roster with a real store, real shims and real echo agents in the test's own process.

It can be ended as a crash would: nothing is written any more, and the agents live on.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_server.attachments import Attachments
from sessiond_server.config import Config
from sessiond_server.drivers import Drivers
from sessiond_server.roster import Roster
from sessiond_server.session import Session
from sessiond_server.store import SessionRow, Store
from tests.support.daemon import wait_until_gone

TIMEOUT = 20.0


class House:
    """One data directory, and while it is open the roster on it."""

    def __init__(self, **settings: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sessiond-"))
        self.workspace = self.folder / "work"
        self.workspace.mkdir()
        self.found: list[EntryPoint] | None = None
        self.time = 0
        self.config = Config(
            data_dir=self.folder / "data",
            runtime_dir=self.folder / "run",
            workspace_roots=(self.folder,),
            **settings,
        )
        self.config.data_dir.mkdir()

    async def open(self, boot_id: str = "boot") -> None:
        """Open the store and all sessions, as the daemon does at its start."""
        self.store = Store(self.config.data_dir / "sessiond.db")
        self.roster = await Roster.open(
            self.config,
            self.store,
            Drivers.load(self.config.drivers, self.found),
            Attachments(self.config.data_dir, self.config.limits),
            clock=lambda: self.time + time.time_ns(),
            boot_id=boot_id,
        )

    async def close(self) -> None:
        """End as the daemon does when it is told to."""
        await self.roster.close()
        self.store.close()

    async def crash(self) -> None:
        """Stop every task of the roster where it is, and write nothing more."""
        others = asyncio.all_tasks() - {asyncio.current_task()} - self.kept
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for session in self.roster._sessions.values():
            # Only what the system does when a process ends: its sockets are closed.
            await session._agent.detach()
        self.store.close()

    async def __aenter__(self) -> House:
        self.kept = asyncio.all_tasks()
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        await wait_until_gone(self.config.data_dir)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- short ways ---

    def creation(self, **fields: Any) -> api.CreateSessionRequest:
        """Return a request for an echo session in the workspace."""
        given = {"driver": "echo", "workspace": str(self.workspace), **fields}
        return api.CreateSessionRequest(**given)

    async def create(self, **fields: Any) -> Session:
        """Create a session and return it."""
        response = await self.roster.create(self.creation(**fields))
        return self.roster.get(response.session.session_id)

    def fake_sessions(self, count: int, labels: dict[str, str]) -> None:
        """Add sessions that only have a row and a summary, `fake-0` and so on."""
        for number in range(count):
            summary = session_pb2.Session(driver="echo", labels=labels)
            row = SessionRow(10**6 + number, f"fake-{number}", "t", "echo", b"", 1, 1)
            row.summary = summary.SerializeToString()
            self.roster._make(row)

    def fill_disk(self, spare: int) -> None:
        """Let the store run out of space, but for some pages."""
        pages: int = self.store._writing.execute("PRAGMA page_count").fetchone()[0]
        free: int = self.store._writing.execute("PRAGMA freelist_count").fetchone()[0]
        self.store._writing.execute(f"PRAGMA max_page_count = {pages + max(0, spare - free)}")

    def clear_disk(self) -> None:
        """Give the store its space back."""
        self.store._writing.execute("PRAGMA max_page_count = 1000000")


def events(session: Session) -> list[ev.Event]:
    """Return the whole transcript."""
    data, _ = session.read(0, 1 << 30)
    return list(api.SubscribeResponse.FromString(data).events)


def kinds(session: Session) -> list[str]:
    """Return the kind of every event."""
    return [event.WhichOneof("body") or "" for event in events(session)]


async def until(session: Session, kind: str, after: int = 0, **fields: Any) -> ev.Event:
    """Wait for an event of `kind` after seq `after` whose body has these fields."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            head = session.tail.head_seq
            for event in events(session)[after:]:
                body = getattr(event, kind) if event.WhichOneof("body") == kind else None
                if body is not None and all(getattr(body, k) == v for k, v in fields.items()):
                    return event
            await session.tail.wait(head, TIMEOUT)
