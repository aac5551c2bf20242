"""Gates of the contract in proto/ and of what is generated from it."""

from __future__ import annotations

import runpy
import shutil
import sys

from tests.gates.base import CI, ROOT, run, tool

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


# Programs that a machine must have to generate for a language.
_NEEDED = {"typescript": "npm", "go": "go", "ruby": "grpc_ruby_plugin"}


def generated() -> None:
    """Generates anew, in the generators' own environments, and compares.

    Outside CI, languages whose toolchain is missing are left out; their tools are named by `toolchains`.
    """
    script = _PROTO / "generate.py"
    targets = list(runpy.run_path(str(script))["TARGETS"])
    there = [t for t in targets if CI or t not in _NEEDED or shutil.which(_NEEDED[t])]
    if left_out := sorted(set(targets) - set(there)):
        print("not checked, for want of a toolchain:", ", ".join(left_out))
    run(sys.executable, script, "--check", "--only", ",".join(there))
