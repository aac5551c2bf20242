"""Programs from npm, pinned, in a folder of this checkout that is not under version control."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["CLAUDE_VERSIONS", "claude"]

CLAUDE_VERSIONS = ("2.1.197", "2.1.332")

_TOOLCHAINS = Path(__file__).parents[2] / ".toolchains"
_TIMEOUT = 600
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def claude(version: str) -> Path:
    """Return the Claude Code program of that version, installed on first use.

    The package `@anthropic-ai/claude-code` finds its program in a package for the platform, with the
    help of an install script; here the platform's package is installed itself, without scripts.
    """
    name = f"@anthropic-ai/claude-code-{_platform()}"
    folder = _TOOLCHAINS / "claude" / version
    program = folder / "node_modules" / name / "claude"
    if not program.exists():
        _install(folder, f"{name}@{version}")
    return program


def _platform() -> str:
    system = {"linux": "linux", "darwin": "darwin"}.get(sys.platform)
    machine = _MACHINES.get(platform.machine().lower())
    if system is None or machine is None:
        raise RuntimeError(f"no program for {sys.platform} on {platform.machine()} is known")
    musl = system == "linux" and platform.libc_ver()[0] != "glibc"
    return f"{system}-{machine}{'-musl' if musl else ''}"


def _install(folder: Path, package: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is needed to install this agent; put it on PATH")
    folder.mkdir(parents=True, exist_ok=True)
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    command = [npm, "install", "--prefix", str(folder), *quiet, package]
    subprocess.run(command, check=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL)
