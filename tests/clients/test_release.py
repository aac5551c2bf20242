"""What a release must not forget: one version in every package, and the licence with each."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_CLIENTS = _ROOT / "clients"
_POM = {"m": "http://maven.apache.org/POM/4.0.0"}


def _text(path: str) -> str:
    return (_CLIENTS / path).read_text()


def _toml(path: str) -> dict[str, Any]:
    return tomllib.loads(_text(path))


def _found(pattern: str, path: str) -> str:
    found = re.search(pattern, _text(path))
    assert found is not None, f"{path} names no version"
    return found[1]


def _npm_lock() -> list[str]:
    lock = json.loads(_text("typescript/package-lock.json"))
    return [lock["version"], lock["packages"][""]["version"]]


def _cargo_lock() -> list[str]:
    packages = _toml("rust/Cargo.lock")["package"]
    return [p["version"] for p in packages if p["name"] == "sessiond-client"]


def _pom(path: str, where: str) -> list[str | None]:
    # A file of this repository, no stranger's.
    root = ElementTree.fromstring(_text(path))
    return [root.findtext(where, namespaces=_POM)]


_PLACES: dict[str, Callable[[], list[Any]]] = {
    "typescript/package.json": lambda: [json.loads(_text("typescript/package.json"))["version"]],
    "typescript/package-lock.json": _npm_lock,
    "ruby/lib/sessiond/version.rb": lambda: [
        _found(r'VERSION = "([^"]+)"', "ruby/lib/sessiond/version.rb")
    ],
    "rust/Cargo.toml": lambda: [_toml("rust/Cargo.toml")["package"]["version"]],
    "rust/Cargo.lock": _cargo_lock,
    "java/pom.xml": lambda: _pom("java/pom.xml", "m:version"),
    "java/client/pom.xml": lambda: _pom("java/client/pom.xml", "m:parent/m:version"),
    "java/examples/pom.xml": lambda: _pom("java/examples/pom.xml", "m:parent/m:version"),
    "java/README.md": lambda: [_found(r"<version>([^<]+)</version>", "java/README.md")],
    "cpp/CMakeLists.txt": lambda: [_found(r"\n  VERSION (\S+)\n", "cpp/CMakeLists.txt")],
}


def _version() -> str:
    version: str = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


@pytest.mark.parametrize("place", _PLACES)
def test_every_package_has_the_version_of_the_service(place: str) -> None:
    found = _PLACES[place]()
    assert found
    assert set(found) == {_version()}


def test_the_rust_readme_asks_for_a_version_that_there_is() -> None:
    asked = _found(r'sessiond-client = "([^"]+)"', "rust/README.md")
    assert f"{_version()}.".startswith(f"{asked}.")


def test_every_copy_of_the_licence_is_the_licence() -> None:
    wanted = (_ROOT / "LICENSE").read_text()
    copies = list(_CLIENTS.glob("*/LICENSE"))
    # Packages of these can hold nothing from outside their folders.
    assert {"cpp", "rust"} <= {copy.parent.name for copy in copies}
    for copy in copies:
        assert copy.read_text() == wanted, copy


def test_the_packages_take_the_licence_with_them() -> None:
    assert "/LICENSE" in _toml("rust/Cargo.toml")["package"]["include"]
    assert "install(FILES LICENSE" in _text("cpp/CMakeLists.txt")
    where = "m:build/m:resources/m:resource"
    [folder] = _pom("java/client/pom.xml", f"{where}/m:directory")
    [name] = _pom("java/client/pom.xml", f"{where}/m:includes/m:include")
    assert folder is not None
    assert name is not None
    relative = folder.replace("${project.basedir}", str(_CLIENTS / "java/client"))
    assert (Path(relative) / name).resolve() == _ROOT / "LICENSE"
