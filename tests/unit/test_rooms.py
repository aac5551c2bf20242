"""Nothing outside drivers/ knows which driver a session has: no code names one.

Which module may import which is in pyproject.toml (import-linter); this is about names in strings.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = {entry.name for entry in entry_points(group="sessiond.drivers")}


def _named_drivers(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in DRIVERS:
            yield node.lineno, node.value


def _sources() -> list[Path]:
    rooms = (ROOT / "server" / "sessiond_server", ROOT / "clients" / "python" / "sessiond_client")
    return sorted(path for room in rooms for path in room.rglob("*.py"))


def test_there_are_drivers_to_look_for() -> None:
    assert "echo" in DRIVERS
    assert list(_named_drivers("if session.driver == 'echo': pass")) == [(1, "echo")]


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_code_names_a_driver(path: Path) -> None:
    assert list(_named_drivers(path.read_text())) == []
