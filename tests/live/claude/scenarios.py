"""All scenarios, in the order in which they run."""

from __future__ import annotations

from tests.live.claude import turns
from tests.live.claude.registry import SCENARIOS

__all__ = ["ALL", "MODULES"]

MODULES = (turns,)
ALL = list(SCENARIOS)
