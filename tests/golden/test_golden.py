"""Every recording gives what is expected, and a restored driver goes on as the first one would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.drivers import create
from tests.conformance.host import DriverHost, plain
from tests.conformance.steps import play, read_lines, read_steps
from tests.golden.compare import compare, driver_of, scenarios, title_of

ALL = [pytest.param(path, id=title_of(path)) for path in scenarios()]


@pytest.mark.parametrize("folder", ALL)
def test_effects_are_as_expected(folder: Path) -> None:
    difference = compare(folder)
    assert not difference, difference


@pytest.mark.parametrize("folder", ALL)
def test_a_driver_restored_before_every_input_does_the_same(folder: Path) -> None:
    name = driver_of(folder)
    steps, lines = read_steps(folder / "steps.jsonl"), read_lines(folder / "stdout.jsonl")
    once = DriverHost(lambda: create(name))
    each = DriverHost(lambda: create(name), reload=True)
    pairs = zip(play(once, steps, lines), play(each, steps, lines), strict=True)
    for number, ((step, expected), (_, found)) in enumerate(pairs, 1):
        assert list(map(plain, found)) == list(map(plain, expected)), f"step {number}: {step}"
