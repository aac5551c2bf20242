"""All scenarios, in the order in which they run."""

from __future__ import annotations

from tests.live.claude import content, control, life, questions, trouble, turns
from tests.live.claude.registry import SCENARIOS

__all__ = ["ALL", "MODULES"]

MODULES = (turns, questions, control, content, life, trouble)
ALL = list(SCENARIOS)
