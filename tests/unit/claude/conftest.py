"""A ready program of each kind: one that tells the life of every message, and one that does not."""

from __future__ import annotations

import pytest

from tests.unit.claude.talk import Talk


@pytest.fixture
def talk() -> Talk:
    """A ready program of a newer version."""
    made = Talk()
    made.ready()
    return made


@pytest.fixture
def older() -> Talk:
    """A ready program of an older version."""
    made = Talk(lifecycle=False)
    made.ready()
    return made
