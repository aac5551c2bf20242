from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sessiond_client import SessiondClient
from tests.unit.client.scripted import Scripted, socket_in


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a unix socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sc") as name:
        yield Path(name)


@pytest.fixture
async def daemon(folder: Path) -> AsyncIterator[Scripted]:
    scripted = Scripted()
    await scripted.start(socket_in(folder))
    yield scripted
    await scripted.stop()


@pytest.fixture
async def client(daemon: Scripted, folder: Path) -> AsyncIterator[SessiondClient]:
    async with SessiondClient(socket_in(folder), timeout=10.0, patience=5.0) as client:
        yield client
