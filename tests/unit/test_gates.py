"""The runner of the gates: what it runs, where it stops, and what it says at the end."""

from __future__ import annotations

import pytest

from tests import __main__ as runner
from tests.gates import GATES, Failed, Gate, Skipped
from tests.gates.base import run


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def gate(name: str, error: Exception | None = None) -> Gate:
        def check() -> None:
            names.append(name)
            if error is not None:
                raise error

        return Gate(name, f"about {name}", check)

    gates = (gate("a"), gate("b", Failed("closed")), gate("c", Skipped("no tool")), gate("d"))
    monkeypatch.setattr(runner, "GATES", gates)
    return names


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["tests", *arguments])
    return runner.main()


def _last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.rstrip().splitlines()[-1]


def test_it_stops_at_the_first_failure(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch) == 1
    assert ran == ["a", "b"]
    assert _last_line(capsys) == "1 passed, 1 failed"


def test_it_keeps_going(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, "--keep-going") == 1
    assert ran == ["a", "b", "c", "d"]
    assert _last_line(capsys) == "2 passed, 1 failed, 1 skipped"


def test_it_runs_what_is_asked_for(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, "--only", "d", "--only", "a") == 0
    assert ran == ["a", "d"]
    assert _run(monkeypatch, "--skip", "b") == 0
    assert _last_line(capsys) == "2 passed, 0 failed, 1 skipped"
    assert _run(monkeypatch, "--list") == 0
    assert "about c" in capsys.readouterr().out
    assert ran == ["a", "d", "a", "c", "d"]


def test_gates_have_names_of_their_own() -> None:
    assert len({gate.name for gate in GATES}) == len(GATES)


def test_a_command_that_fails_or_hangs_closes_the_gate() -> None:
    run("true")
    with pytest.raises(Failed, match="exit code 1"):
        run("false")
    with pytest.raises(Failed, match="still running after 0 s"):
        run("sleep", "60", timeout=0.1)
    with pytest.raises(Failed, match="No such file"):
        run("no-such-program-anywhere")
