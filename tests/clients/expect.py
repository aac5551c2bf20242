"""What a scenario expects, compared with what came: plain data in, a list of complaints out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

__all__ = ["complaints", "look_up"]

_ABSENT = object()


def look_up(path: str, tree: Any) -> Any:
    """Return the value at a dotted path (`watch.events.0.seq`); raises LookupError."""
    value = tree
    for part in path.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise LookupError(f"there is no {path!r}") from None
    return value


def _same_as(wanted: Any, got: Any, tree: Any) -> bool:
    return bool(got == look_up(wanted, tree))


_CHECKS: dict[str, Callable[[Any, Any, Any], bool]] = {
    "$at_least": lambda wanted, got, _: got is not _ABSENT and got >= wanted,
    "$at_most": lambda wanted, got, _: got is not _ABSENT and got <= wanted,
    "$matches": lambda wanted, got, _: isinstance(got, str) and re.search(wanted, got) is not None,
    "$not": lambda wanted, got, _: got != wanted,
    "$same_as": _same_as,
    "$absent": lambda wanted, got, _: (got is _ABSENT) == wanted,
    "$present": lambda wanted, got, _: (got is not _ABSENT) == wanted,
}


def complaints(wanted: Any, got: Any, tree: Any, where: str = "") -> list[str]:
    """Return one line for each way in which `got` does not contain `wanted`.

    Objects may have more keys than wanted, lists are as long as wanted; an object of `$` keys is a check
    of the value. `tree` is what `$same_as` refers to.
    """
    if isinstance(wanted, dict) and wanted and all(k in _CHECKS for k in wanted):
        broken = [k for k, v in wanted.items() if not _CHECKS[k](v, got, tree)]
        return [f"{where}: {_shown(got)} fails {k} {wanted[k]!r}" for k in broken]
    if isinstance(wanted, dict):
        return _of_object(wanted, got, tree, where)
    if isinstance(wanted, list):
        return _of_list(wanted, got, tree, where)
    # Absent is a field's default: protobuf JSON leaves those out.
    if got == wanted or (got is _ABSENT and wanted in ("", 0, False, "0")):
        return []
    return [f"{where}: {_shown(got)} instead of {wanted!r}"]


def _of_object(wanted: dict[str, Any], got: Any, tree: Any, where: str) -> list[str]:
    if not isinstance(got, dict):
        return [] if got is _ABSENT and not wanted else [f"{where}: {_shown(got)} instead of an object"]
    found = []
    for key, value in wanted.items():
        found += complaints(value, got.get(key, _ABSENT), tree, f"{where}.{key}" if where else key)
    return found


def _of_list(wanted: list[Any], got: Any, tree: Any, where: str) -> list[str]:
    if got is _ABSENT and not wanted:
        return []
    if not isinstance(got, list) or len(got) != len(wanted):
        return [f"{where}: {_shown(got)} instead of {len(wanted)} items"]
    found = []
    for number, (one, other) in enumerate(zip(wanted, got, strict=True)):
        found += complaints(one, other, tree, f"{where}.{number}")
    return found


def _shown(value: Any) -> str:
    return "nothing" if value is _ABSENT else repr(value)[:300]
