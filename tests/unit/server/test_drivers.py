"""The registry: what is installed, what is broken, what is found on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond_drivers.base import DriverConfig, DriverType, Program
from sessiond_server import drivers as module
from sessiond_server.config import ConfigError
from sessiond_server.drivers import GROUP, Drivers
from sessiond_server.errors import DomainError
from tests.support.waiting import until


class Settings(DriverConfig):
    flavour: str = "plain"


def program(config: Settings) -> Program:
    return Program(
        executable=config.binary or "no-such-program",
        version_args=("--version",),
        parse_version=lambda text: text.removeprefix("fake ").strip() if "fake" in text else "",
        install_hint="install it from the shelf",
    )


def create(config: Settings) -> Any:
    return config


FAKE: DriverType[Settings] = DriverType(
    name="fake",
    display_name="Fake",
    config_type=Settings,
    capabilities=session_pb2.DriverCapabilities(steer=True),
    create=create,
    program=program,
)
NOT_ONE = object()


def point(name: str, attribute: str = "FAKE") -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{attribute}", GROUP)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, sys.modules[__name__]))


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def load(binary: str = "", **options: Any) -> Drivers:
    return Drivers.load({"fake": {"binary": binary}}, [point("fake")], **options)


def test_the_installed_ones_are_there() -> None:
    drivers = Drivers.load({})
    assert "echo" in drivers.names()
    assert drivers.loaded("echo")
    assert drivers.display_name("echo") == "Echo"


def test_a_table_reaches_its_driver() -> None:
    drivers = Drivers.load({"fake": {"flavour": "bitter", "args": ["-v"]}}, [point("fake")])
    made: Any = drivers.create("fake")
    assert made == Settings(flavour="bitter", args=["-v"])


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"fake": {"flavor": "x"}}, r"drivers\.fake: .*flavor"),
        ({"fake": {"args": "x"}}, r"drivers\.fake: .*args"),
        ({"fak": {}}, r"drivers\.fak: there is no such driver \(installed: fake\)"),
    ],
)
def test_a_bad_table_is_refused_by_name(tables: dict[str, dict[str, Any]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Drivers.load(tables, [point("fake")])


@pytest.mark.parametrize(
    "broken",
    [
        EntryPoint("other", "no_such_module_at_all:DRIVER", GROUP),
        point("other", "NO_SUCH_NAME"),
        point("other", "NOT_ONE"),
        point("other", "FAKE"),  # calls itself "fake"
    ],
)
async def test_a_broken_one_is_unavailable_and_hurts_nobody(broken: EntryPoint) -> None:
    drivers = Drivers.load({"other": {"whatever": 1}}, [broken, point("fake")])
    assert drivers.names() == ["fake", "other"]
    assert not drivers.loaded("other")
    probed = await drivers.probe("other")
    assert not probed.available
    assert "could not be loaded" in probed.reason
    assert drivers.capabilities("other") == session_pb2.DriverCapabilities()
    with pytest.raises(DomainError) as caught:
        drivers.create("other")
    assert caught.value.reason == reasons.ERROR_REASON_DRIVER_UNAVAILABLE
    assert drivers.create("fake")


async def test_the_first_of_one_name_stays() -> None:
    drivers = Drivers.load({}, [point("fake"), point("fake", "NOT_ONE")])
    assert drivers.loaded("fake")


async def test_an_unknown_one_is_named() -> None:
    with pytest.raises(DomainError) as caught:
        await Drivers.load({}, [point("fake")]).require("fkae")
    assert caught.value.reason == reasons.ERROR_REASON_DRIVER_UNKNOWN
    assert caught.value.field == "driver"


async def test_a_program_tells_its_version(tmp_path: Path) -> None:
    probed = await load(script(tmp_path, '[ "$1" = --version ] && echo fake 1.2')).require("fake")
    assert probed.version == "1.2"
    assert probed.executable == str(tmp_path / "program")


async def test_a_missing_program_says_what_to_install() -> None:
    with pytest.raises(DomainError) as caught:
        await load("no-such-program").require("fake")
    assert caught.value.reason == reasons.ERROR_REASON_DRIVER_UNAVAILABLE
    assert "install it from the shelf" in caught.value.message


@pytest.mark.parametrize("body", ["echo real 1.2", "exit 3", "printf '\\377\\376'"])
async def test_another_program_of_that_name_is_not_taken(tmp_path: Path, body: str) -> None:
    probed = await load(script(tmp_path, body)).probe("fake")
    assert not probed.available
    assert "is not the program it should be" in probed.reason


async def test_one_that_can_not_run_is_not_fatal(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    probed = await load(str(path)).probe("fake")
    assert not probed.available
    assert "could not be started" in probed.reason


@pytest.mark.parametrize("body", ["sleep 100", "exec >&- 2>&-; sleep 100", "yes"])
async def test_one_that_hangs_is_killed_with_its_children(
    tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROBE_TIMEOUT", 0.5)
    pid_file = tmp_path / "pid"
    started = asyncio.get_running_loop().time()
    probed = await load(script(tmp_path, f"echo $$ > {pid_file}; {body}; true")).probe("fake")
    assert asyncio.get_running_loop().time() - started < 4
    assert not probed.available
    assert "did not tell its version" in probed.reason
    group = int(pid_file.read_text())
    await until(lambda: not living(group), "the whole group is dead")


def living(group: int) -> list[str]:
    """The processes of a group that are not just waiting to be reaped by a slow init."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                stats.append(path.parent.name)
    return stats


async def test_one_that_leaves_a_child_behind_still_tells_its_version(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    probed = await load(script(tmp_path, f"sleep 100 & echo $! > {pid_file}; echo fake 1")).probe("fake")
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert probed.version == "1"


async def test_endless_output_is_read_and_let_go(tmp_path: Path) -> None:
    body = "echo fake 7; head -c 3000000 /dev/zero"
    assert (await load(script(tmp_path, body)).probe("fake")).version.startswith("7")


async def test_a_probe_is_kept_for_a_while_and_shared(tmp_path: Path) -> None:
    count = tmp_path / "count"
    now = [1000.0]
    drivers = load(script(tmp_path, f"echo x >> {count}; echo fake 1"), clock=lambda: now[0])
    await asyncio.gather(*(drivers.probe("fake") for _ in range(5)))
    assert count.read_text() == "x\n"
    now[0] += 29
    await drivers.probe("fake")
    assert count.read_text() == "x\n"
    now[0] += 2
    await drivers.probe("fake")
    assert count.read_text() == "x\nx\n"
