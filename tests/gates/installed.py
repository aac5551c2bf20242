"""Gates of the wheel: built, installed in a new environment outside the checkout, and used.

What is run with it is the README's tour, so the commands a newcomer types are the ones that are proven.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.gates.base import ROOT, Failed, run

# The floors of pyproject.toml: what the generated code demands of the libraries at import.
_FLOORS = (
    "grpcio==1.76.0",
    "protobuf==6.31.1",
    "grpcio-health-checking==1.76.0",
    "grpcio-reflection==1.76.0",
    "grpcio-status==1.76.0",
)
_VERSIONS = (
    "import grpc, google.protobuf as p, sessiond_server; "
    "print('grpcio', grpc.__version__, 'protobuf', p.__version__, sessiond_server.__file__)"
)


def newest() -> None:
    """The newest libraries that the package index gives."""
    _proven([])


def oldest() -> None:
    """The oldest libraries that the package admits."""
    _proven(list(_FLOORS))


def _proven(pins: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="sessiond-wheel-") as scratch:
        folder = Path(scratch)
        wheel = _wheel(folder / "dist")
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / "bin"
        run(programs / "python", "-m", "pip", "install", "-q", wheel, *pins, cwd=folder)
        # Neither the checkout nor this interpreter's packages may be what is used.
        shown = subprocess.run(
            [programs / "python", "-c", _VERSIONS],
            cwd=folder,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
        )
        print(shown.stdout + shown.stderr, end="", flush=True)
        if shown.returncode or str(folder) not in shown.stdout:
            raise Failed("the installed wheel is not what was imported")
        run(sys.executable, "-m", "tests.docs.tour", "--programs", programs, timeout=400)


def _wheel(folder: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    (wheel,) = folder.glob("sessiond-*.whl")
    return wheel
