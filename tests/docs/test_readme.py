"""The README is true: its commands do what it shows, and it leaves nothing out."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

from sessiond.v1 import attachment_service_pb2, event_pb2, server_service_pb2, session_service_pb2
from sessiond_client.ctl.app import app as sessionctl
from sessiond_server.config import Config
from sessiond_server.main import app as sessiond
from tests.clients.languages import languages
from tests.docs import tour
from tests.gates.base import CI, ROOT

PAGE = tour.README.read_text()
CONFIGURATION = (ROOT / "gen" / "docs" / "configuration.md").read_text()
COMMANDS = "".join(
    (ROOT / "gen" / "docs" / f"{name}.md").read_text() for name in ("sessiond", "sessionctl")
)


@pytest.mark.timeout(300)
def test_the_commands_do_what_is_shown() -> None:
    missing = tour.missing_tools()
    assert not (CI and missing)
    assert tour.differences(tour.README, Path(sys.executable).parent, missing) == []


def test_the_two_set_up_commands_are_those_that_are_checked() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
    (tests,) = (block.strip() for block in blocks if "-m tests\n" in block)
    assert tests in (ROOT / ".ci" / "run").read_text()


def _kinds() -> Iterator[str]:
    for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields:
        assert field.message_type is not None
        yield field.message_type.name


@pytest.mark.parametrize("kind", list(_kinds()))
def test_every_event_kind_is_in_the_table(kind: str) -> None:
    assert re.search(rf"^\|.*`{kind}`.*\|", PAGE, re.M)


def _calls() -> Iterator[str]:
    for module in (session_service_pb2, attachment_service_pb2, server_service_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            yield from (method.name for method in service.methods)


@pytest.mark.parametrize("call", list(_calls()))
def test_every_call_is_named(call: str) -> None:
    assert re.search(rf"`{call}`", PAGE)


def _commands() -> Iterator[tuple[str, Any]]:
    for name, app in (("sessiond", sessiond), ("sessionctl", sessionctl)):
        yield from _below(name, typer.main.get_command(app))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    # typer gives no public type to what it makes of an app.
    yield name, command
    for sub, child in getattr(command, "commands", {}).items():
        yield from _below(f"{name} {sub}", child)


@pytest.mark.parametrize(("name", "command"), [pytest.param(n, c, id=n) for n, c in _commands()])
def test_every_command_and_flag_is_documented(name: str, command: Any) -> None:
    assert command.help
    heading = f"Command {name}" if name in ("sessiond", "sessionctl") else rf"`{name}`"
    section = re.search(rf"^#+ {heading}\n(.*?)(?=^#+ |\Z)", COMMANDS, re.M | re.S)
    assert section
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert parameter.help, f"{name} {parameter.opts[0]} has no help"
            assert parameter.opts[0] in section[1]


def _keys(prefix: str = "", model: type[BaseModel] = Config) -> Iterator[str]:
    for name, field in model.model_fields.items():
        table = field.annotation
        if isinstance(table, type) and issubclass(table, BaseModel):
            yield from _keys(f"{name}.", table)
        else:
            yield prefix + name


@pytest.mark.parametrize("key", list(_keys()))
def test_every_key_of_the_configuration_is_documented(key: str) -> None:
    table, _, name = key.rpartition(".")
    variable = "SESSIOND_" + key.upper().replace(".", "__")
    assert re.search(rf"^\| `{name}` \|.*\| `{variable}` \| .{{20,}} \|$", CONFIGURATION, re.M)
    assert not table or f"## `[{table}]`" in CONFIGURATION


def test_the_table_of_drivers_is_what_they_say() -> None:
    reference = runpy.run_path(str(ROOT / "drivers" / "driver_reference.py"))
    assert reference["capabilities"](reference["installed"]()) in PAGE


@pytest.mark.parametrize("language", [language.key for language in languages()])
def test_every_client_is_linked(language: str) -> None:
    assert f"](clients/{language})" in PAGE


def test_every_file_that_is_linked_exists() -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", PAGE)
    assert [link for link in links if not (ROOT / link).exists()] == []
