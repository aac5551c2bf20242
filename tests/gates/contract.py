"""Gates of the contract in proto/ and of what is generated from it."""

from __future__ import annotations

import sys

from tests.gates.base import ROOT, run, tool

_PROTO = ROOT / "proto"
_RELEASED = _PROTO / "released.binpb"


def lint() -> None:
    """Style and comments of the protos (rules in proto/buf.yaml)."""
    run(tool("buf"), "lint", cwd=_PROTO)


def formatted() -> None:
    """Layout of the protos; mended by `buf format -w` in proto/."""
    run(tool("buf"), "format", "--diff", "--exit-code", cwd=_PROTO)


def breaking() -> None:
    """Compatibility with the image of the last release, which is renewed at each release."""
    run(tool("buf"), "breaking", "--against", str(_RELEASED), cwd=_PROTO)


def generated() -> None:
    """Generates anew, in the generators' own environment, and compares."""
    run(sys.executable, _PROTO / "generate.py", "--check")
