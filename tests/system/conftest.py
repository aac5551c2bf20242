"""The real daemon for system tests: one of its own for each test that asks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.daemon import Daemon


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    """A started daemon in a temporary folder; killed at the end, with all its sessions."""
    async with Daemon() as started:
        yield started
