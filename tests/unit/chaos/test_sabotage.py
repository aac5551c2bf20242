"""A daemon that loses, doubles or reorders is found out by the attack that the honest one passes."""

from __future__ import annotations

import pytest

from tests.chaos.checkers import count
from tests.chaos.kill_server import attack, report
from tests.unit.chaos.sabotage import SABOTAGE, sabotaged

# What the comparison must say of each.
_EVENTS = {"drop": "lost", "double": "doubled", "swap": "reordered", "forget": "lost"}


@pytest.mark.slow
@pytest.mark.parametrize("how", SABOTAGE)
async def test_sabotage_is_found_out(how: str) -> None:
    (found,) = await attack(3, 1, 2, seed=1, kind=sabotaged(how), patience=20.0)
    assert found.events > 0
    if how == "repeat":
        assert count(found.of_inputs)["doubled"]
    else:
        effects = {effect for effect, times in count(found.of_events).items() if times}
        assert _EVENTS[how] in effects
    assert not report(3, [found])
