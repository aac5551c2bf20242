"""Gates of the Python code as text: style, types, imports."""

from __future__ import annotations

from tests.gates.base import run, tool

_TYPED = ("server", "drivers", "clients/python", "tests", "proto/generate.py", "proto/reference.py")


def style() -> None:
    """Rules in pyproject.toml."""
    run(tool("ruff"), "check", ".")


def formatted() -> None:
    """Layout; mended by `ruff format .`."""
    run(tool("ruff"), "format", "--check", ".")


def types() -> None:
    """Strict, on everything that is not generated."""
    run(tool("mypy"), *_TYPED)


def imports() -> None:
    """The contracts in pyproject.toml."""
    run(tool("lint-imports"), "--no-cache")
