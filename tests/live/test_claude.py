"""The scenarios of the real Claude Code, for both versions, under pytest: `-m live`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.live.claude.rig import Rig
from tests.live.claude.scenarios import ALL, SCENARIOS
from tests.live.npm import CLAUDE_VERSIONS

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="session", params=CLAUDE_VERSIONS)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A daemon with that version of the program."""
    async with Rig(str(request.param)) as started:
        yield started


@pytest.mark.parametrize("name", ALL)
async def test_scenario(rig: Rig, name: str) -> None:
    await SCENARIOS[name](rig)
