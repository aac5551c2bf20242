"""All scenarios, in the order in which they run."""

from __future__ import annotations

from tests.live.claude import control, questions, turns
from tests.live.claude.registry import SCENARIOS

__all__ = ["ALL", "MODULES"]

MODULES = (turns, questions, control)
ALL = list(SCENARIOS)
