"""Write the reference of the installed drivers, as Markdown: what each supports and can be told.

Usage: python drivers/driver_reference.py > drivers.md

proto/generate.py calls this; it needs the environment that the daemon runs in.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any

import msgspec

from sessiond.v1 import session_pb2
from sessiond_drivers.base import DriverConfig, DriverType

_HEAD = """\
<!-- Made by proto/generate.py from drivers/. Do not edit. -->

# Drivers

What a session of each driver can do; [the reference of the contract](reference.md#drivercapabilities)
says what each word means. Clients go by `Session.capabilities`, never by a driver's name."""

_CONFIGURATION = """\
## Configuration

Every driver takes these keys in its table `[drivers.NAME]` of the daemon's configuration:"""


def installed() -> list[DriverType[Any]]:
    """Return the drivers that this package brings, by name."""
    found = entry_points(group="sessiond.drivers")
    own = [entry for entry in found if entry.dist is not None and entry.dist.name == "sessiond"]
    return sorted((entry.load() for entry in own), key=lambda driver: driver.name)


def capabilities(drivers: Sequence[DriverType[Any]]) -> str:
    """Return the table of what each driver supports."""
    lines = [
        "| | " + " | ".join(f"`{d.name}`<br>{d.display_name}" for d in drivers) + " |",
        "|---|" + "---|" * len(drivers),
    ]
    for field in session_pb2.DriverCapabilities.DESCRIPTOR.fields:
        marks = ["yes" if getattr(d.capabilities, field.name) else "" for d in drivers]
        lines.append(f"| `{field.name}` | {' | '.join(marks)} |")
    return "\n".join(lines)


def _keys(config: type[DriverConfig], without: frozenset[str] = frozenset()) -> Iterator[str]:
    for field in msgspec.structs.fields(config):
        if field.name not in without:
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            yield f"- `{field.name}`: `{msgspec.json.encode(default).decode()}` unless set"


def _about(config: type[DriverConfig]) -> str:
    return inspect.cleandoc(config.__doc__ or "")


def render() -> str:
    """Return the whole page."""
    drivers = installed()
    common = frozenset(field.name for field in msgspec.structs.fields(DriverConfig))
    blocks = [_HEAD, capabilities(drivers), _CONFIGURATION, "\n".join(_keys(DriverConfig))]
    for driver in drivers:
        blocks += [f"### `[drivers.{driver.name}]`", _about(driver.config_type)]
        if own := list(_keys(driver.config_type, common)):
            blocks.append("\n".join(own))
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
