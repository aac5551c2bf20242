"""All scenarios, in the order in which they run."""

from __future__ import annotations

from tests.live.claude import content, control, life, questions, trouble, turns
from tests.live.claude.registry import SCENARIOS

__all__ = ["ALL", "MODULES", "SCENARIOS"]

MODULES = (turns, questions, control, content, life, trouble)
ALL = [
    name for module in MODULES for name, run in SCENARIOS.items() if run.__module__ == module.__name__
]
