"""The list of scenarios, filled by the modules that hold them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from tests.live.claude.rig import Rig

__all__ = ["SCENARIOS", "Scenario", "scenario"]

Scenario: TypeAlias = Callable[[Rig], Awaitable[None]]

SCENARIOS: dict[str, Scenario] = {}


def scenario(run: Scenario) -> Scenario:
    """Register a scenario under the name of its function."""
    SCENARIOS[run.__name__] = run
    return run
