"""The languages: what each client folder's conformance.json says, and building it when it changed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BuildError", "Language", "languages", "read_manifest"]

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "clients"
_BUILD_SECONDS = 1200


class BuildError(Exception):
    """A client could not be built; the text is the end of what the build said."""


@dataclass(frozen=True)
class Language:
    """One client: its folder, and its manifest with placeholders filled in."""

    key: str
    folder: Path
    out: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        name: str = self.manifest["language"]
        return name

    def missing(self) -> str:
        """Return which toolchain is missing, or nothing."""
        for need in self._commands("needs"):
            try:
                done = subprocess.run(
                    need, cwd=self.folder, env=self.environment(), capture_output=True, timeout=120
                )
            except FileNotFoundError:
                return need[0]
            if done.returncode != 0:
                return " ".join(need)
        return ""

    def build(self) -> bool:
        """Build the programs unless nothing changed since the last time; True: it was built now."""
        self.out.mkdir(parents=True, exist_ok=True)
        stamp = self.out / "stamp"
        wanted = self._digest()
        if stamp.exists() and stamp.read_text() == wanted:
            return False
        for command in self._commands("build"):
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_BUILD_SECONDS,
            )
            if done.returncode != 0:
                said = done.stdout.decode(errors="replace")[-4000:]
                raise BuildError(f"{' '.join(command)} exited with {done.returncode}:\n{said}")
        stamp.write_text(wanted)
        return True

    def command(self, program: str) -> list[str]:
        """Return how to start `tail` or `conformance`."""
        return [self._fill(word) for word in self.manifest[program]]

    def checks(self) -> list[list[str]]:
        """Return the commands of its own ecosystem that check it: format, lint, tests."""
        return self._commands("checks")

    def environment(self) -> dict[str, str]:
        """Return the environment of builds and programs: this one, without sessiond's own variables."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SESSIOND_")}
        added: dict[str, str] = self.manifest.get("environment", {})
        return {**inherited, **{k: self._fill(v) for k, v in added.items()}}

    def _commands(self, key: str) -> list[list[str]]:
        return [[self._fill(word) for word in command] for command in self.manifest.get(key, [])]

    def _fill(self, text: str) -> str:
        filled = text.replace("{out}", str(self.out)).replace("{root}", str(ROOT))
        return filled.replace("{python}", sys.executable)

    def _digest(self) -> str:
        digest = hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode())
        for pattern in self.manifest.get("inputs", []):
            for path in sorted(_matches(self.folder, pattern)):
                digest.update(str(path).encode())
                digest.update(path.read_bytes())
        return digest.hexdigest()


def _matches(folder: Path, pattern: str) -> list[Path]:
    while pattern.startswith("../"):
        folder, pattern = folder.parent, pattern[3:]
    skipped = {"node_modules", "target", "build", "dist"}
    found = (p for p in folder.glob(pattern) if p.is_file())
    return [p for p in found if not skipped.intersection(p.relative_to(folder).parts)]


def read_manifest(path: Path) -> dict[str, Any]:
    """Return what a conformance.json says; a key that stands twice would hide the first: ValueError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise ValueError(f"{path}: more than once: {', '.join(twice)}")
        return found

    manifest: dict[str, Any] = json.loads(path.read_text(), object_pairs_hook=once)
    return manifest


def languages() -> list[Language]:
    """Return every client that has a manifest, in the order of their keys (folder names)."""
    cache = Path(os.environ.get("SESSIOND_CLIENT_BUILDS", ROOT / ".toolchains" / "clients"))
    found = []
    for path in sorted(CLIENTS.glob("*/conformance.json")):
        manifest = read_manifest(path)
        key = path.parent.name
        found.append(Language(key, path.parent, cache / key, manifest))
    return found
