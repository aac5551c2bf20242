"""The command line: flags, what it prints, how it fails."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sessiond_server.config import Config
from sessiond_server.main import app

run = CliRunner()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import os

    for name in list(os.environ):
        if name.startswith(("SESSIOND_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_version() -> None:
    result = run.invoke(app, ["--version"])
    assert (result.exit_code, result.output.split()[0]) == (0, "sessiond")


def test_flags_reach_the_settings_in_effect(home: Path) -> None:
    flags = [
        *("--data-dir", "/d", "--runtime-dir", "/r", "--listen", "unix:/a", "--listen", "[::1]:0"),
        *("--workspace-root", "/w", "--log-level", "debug", "--log-format", "json"),
        *("--set", "limits.max_sessions=7", "--set", "drivers.echo.binary=some/where"),
        *("--set", 'drivers.echo.args=["-x"]', "--set", "store.synchronous=full"),
    ]
    result = run.invoke(app, ["serve", *flags, "--print-config"])
    assert result.exit_code == 0, result.output
    printed = tomllib.loads(result.output)
    assert (printed["data_dir"], printed["runtime_dir"]) == ("/d", "/r")
    assert printed["listen"] == ["unix:/a", "[::1]:0"]
    assert printed["workspace_roots"] == ["/w"]
    assert printed["log"] == {"level": "debug", "format": "json"}
    assert printed["limits"]["max_sessions"] == 7
    assert printed["store"] == {"synchronous": "full"}
    assert printed["drivers"] == {"echo": {"binary": "some/where", "args": ["-x"]}}


def test_without_flags_the_defaults_are_printed() -> None:
    result = run.invoke(app, ["serve", "--print-config"])
    assert result.output == Config().to_toml()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--set", "limits"], "--set limits: write KEY=VALUE"),
        (["--set", "limits.nothing=1"], "limits.nothing: there is no such setting"),
        (["--set", "drain_grace=1", "--set", "drain_grace.x=1"], "drain_grace is no table"),
        (["--log-level", "loud"], "log.level: Input should be"),
        (["--config", "absent.toml"], "absent.toml: No such file"),
        (["--listen", "0.0.0.0:1"], "listen: 0.0.0.0:1 is not loopback"),
        (["--set", "drivers.nobody.binary=x"], "drivers.nobody: there is no such driver"),
    ],
)
def test_bad_input_is_one_clear_line(home: Path, flags: list[str], said: str) -> None:
    result = run.invoke(app, ["serve", "--data-dir", str(home / "d"), *flags])
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("sessiond: ")]
    assert said in line
