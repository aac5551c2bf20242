"""The echo driver and its real agent keep every promise in every scenario, also over restores."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sessiond.v1 import event_pb2 as ev
from tests.conformance.drivers import create
from tests.conformance.echo_scenarios import SCENARIOS
from tests.conformance.live import LiveHost

# Kinds that only the host appends.
HOSTS_OWN = {
    "user_message", "message_queued", "message_edited", "message_moved", "message_dropped",
    "question_answered", "command_queued", "command_sent", "command_dropped",
    "process_started", "process_adopted", "process_exited",
}  # fmt: skip


@pytest.mark.parametrize("reload", [False, True], ids=["once", "restored"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_with_the_real_agent(scenario: str, reload: bool, tmp_path: Path) -> None:
    with LiveHost(lambda: create("echo", state_dir=str(tmp_path), seed=7), reload) as host:
        SCENARIOS[scenario](host)
        assert host.kinds


def test_the_scenarios_play_every_kind_that_a_driver_can_cause(tmp_path: Path) -> None:
    played: set[str] = set()
    for name, scenario in SCENARIOS.items():
        folder = tmp_path / name
        with LiveHost(partial(create, "echo", state_dir=str(folder))) as host:
            scenario(host)
        played |= set(host.kinds) | {type(effect).__name__ for effect in host.effects}
    kinds = {field.name for field in ev.Event.DESCRIPTOR.oneofs_by_name["body"].fields}
    # The host makes these two out of the effects Attach and Retract.
    assert {"Attach", "Retract", "Taken", "Dropped", "Settle", "Identified"} <= played
    assert kinds - HOSTS_OWN - {"attachment_added", "retracted"} - played == set()
