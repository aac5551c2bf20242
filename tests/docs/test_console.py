"""The runner of console sessions itself: it must see what differs, or it proves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs import console

ENV = {"PATH": os.environ["PATH"]}


def _differences(page: str, folder: Path, timeout: float = 20) -> list[str]:
    found = console.commands(page)
    return console.differences(console.run(found, folder, ENV, timeout))


def _page(body: str) -> str:
    return f"# Page\n\n```console\n{body}\n```\n"


def test_what_is_shown_is_what_is_printed(tmp_path: Path) -> None:
    page = _page("$ echo one; echo two\none\ntwo\n$ true\n$ printf 'a\\n' |\n> tr a b\nb")
    assert _differences(page, tmp_path) == []


@pytest.mark.parametrize(
    "body",
    [
        "$ echo one\ntwo",
        "$ echo one; echo two\none",
        "$ echo one\none\ntwo",
        "$ false",
        "$ exit 0\n$ echo never",
        "$ echo a; echo b >&2\na",
    ],
)
def test_a_difference_is_found(tmp_path: Path, body: str) -> None:
    assert _differences(_page(body), tmp_path)


def test_commands_share_one_shell(tmp_path: Path) -> None:
    page = _page("$ NAME=world") + _page("$ echo hello $NAME\nhello world")
    assert _differences(page, tmp_path) == []


def test_dots_stand_for_anything(tmp_path: Path) -> None:
    assert _differences(_page("$ seq 5\n1\n...\n5"), tmp_path) == []
    assert _differences(_page("$ echo from 1 to 5\nfrom ... 5"), tmp_path) == []
    assert len(_differences(_page("$ seq 5\n1\n...\n4"), tmp_path)) == 1


def test_what_differs_from_run_to_run_is_the_same(tmp_path: Path) -> None:
    shown = "at 2026-01-02T03:04:05.678Z on 127.0.0.1:7419 id 0b2f8a5e-6a55-4a0e-8a55-2f1c5f0f6d11"
    printed = "at 2031-12-31T00:00:00Z on 127.0.0.1:40001 id 00000000-0000-0000-0000-000000000000"
    assert _differences(_page(f"$ echo {printed}\n{shown}"), tmp_path) == []
    assert len(_differences(_page(f"$ echo {printed} x\n{shown}"), tmp_path)) == 1


def test_a_failure_can_be_shown(tmp_path: Path) -> None:
    page = "<!-- exit 3 -->\n```console\n$ true\n$ echo no; (exit 3)\nno\n```\n"
    assert _differences(page, tmp_path) == []
    assert len(_differences(page.replace("(exit 3)", "true"), tmp_path)) == 1


def test_a_background_command_is_waited_for_and_ended(tmp_path: Path) -> None:
    program = "bash -c 'echo $$ >pid; sleep 0.3; echo ready; exec sleep 60'"
    page = _page(f"$ {program} &\nready\n$ echo next\nnext")
    assert _differences(page, tmp_path) == []
    stat = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    # It may wait for its new parent still.
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    found = _differences(_page("$ echo before\nbefore\n$ sleep 60"), tmp_path, timeout=1)
    assert len(found) == 1
    assert "still running" in found[0]


def test_a_block_without_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with a command"):
        console.commands(_page("just text"))


def test_a_background_command_can_be_killed(tmp_path: Path) -> None:
    page = _page(
        "$ bash -c 'echo ready; exec sleep 60' &\nready\n$ kill -9 %1\n$ wait\n$ echo next\nnext"
    )
    assert _differences(page, tmp_path) == []
