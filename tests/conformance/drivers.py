"""The registered drivers, found as the daemon finds them: by entry points."""

from __future__ import annotations

import shutil
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import msgspec

from sessiond_drivers.base import Driver, DriverType

__all__ = ["create", "drivers", "installed"]


@cache
def drivers() -> dict[str, DriverType[Any]]:
    """Return every registered driver by its name."""
    return {point.name: point.load() for point in entry_points(group="sessiond.drivers")}


def create(name: str, **config: object) -> Driver:
    """Make a driver of that name from a table of its configuration."""
    kind = drivers()[name]
    return kind.create(msgspec.convert(config, kind.config_type))


def installed(name: str) -> bool:
    """Return whether the agent's program is on this machine."""
    kind = drivers()[name]
    return shutil.which(kind.program(kind.config_type()).executable) is not None
