from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.shim.support import Home


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    # The directory's name is the session's id, and leftovers are found by it: one per test.
    home = Home(tmp_path / f"s-{uuid.uuid4().hex}")
    yield home
    await home.end()
