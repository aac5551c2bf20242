"""Short runs of the attacks; long ones are made by hand."""

from __future__ import annotations

import pytest

from tests.chaos import kill_server, run


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_nothing_is_missed_when_the_daemon_is_killed() -> None:
    findings = await kill_server.attack(kills=8, sessions=2, watchers=4, seed=1)
    assert kill_server.report(8, findings)
    assert all(found.events > 100 and found.inputs > 3 for found in findings)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_nothing_is_missed_when_everything_falls() -> None:
    outcome = await run.attack(seconds=30.0, sessions=3, watchers=4, seed="1", pause=0.3)
    assert run.report(outcome)
    assert outcome.kills > 5
    assert outcome.cuts > 0
    # On a slow machine little happens to each; but something must have happened.
    assert outcome.line["events"] > 500
    assert outcome.line["inputs"] > 6
