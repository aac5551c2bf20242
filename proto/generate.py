"""Generate everything under gen/ (and typings/) from proto/, in a pinned environment of its own.

Usage: python proto/generate.py [--check] [--only python,descriptor]

--check writes to a temporary folder and fails (exit 1) when it differs from what is committed.
The environment is made once under .codegen/ (ignored by git): Python from codegen-requirements.txt,
npm and Go from the lock files in codegen/. A target whose toolchain is missing fails and says what to
install.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
CODEGEN = ROOT / ".codegen"
ENV = CODEGEN / "python"
REQUIREMENTS = PROTO / "codegen-requirements.txt"
LOCKS = PROTO / "codegen"
COMMAND_LINES = {"sessiond": "sessiond_server.main", "sessionctl": "sessiond_client.ctl.app"}
GOOGLE_RPC = ["google/rpc/status.proto", "google/rpc/error_details.proto", "google/rpc/code.proto"]


def made_once(folder: Path, pins: list[Path], make: Callable[[], None]) -> None:
    """Call `make` to fill `folder` unless it was made from the same pins before."""
    stamp = folder / "stamp"
    wanted = hashlib.sha256(b"".join(p.read_bytes() for p in pins)).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make()
    stamp.write_text(wanted)


def program(name: str, package: str) -> str:
    """Return the path of a program that the machine must have, or exit saying what to install."""
    found = shutil.which(name)
    if found is None:
        sys.exit(f"proto/generate.py needs {name}: install {package}, or leave it out with --only")
    return found


def environment() -> Path:
    """Return the bin folder of the generator's environment, made anew when its pins changed."""

    def make() -> None:
        venv.create(ENV, with_pip=True)
        subprocess.run(
            [ENV / "bin" / "python", "-m", "pip", "install", "-q", "-r", REQUIREMENTS], check=True
        )

    made_once(ENV, [REQUIREMENTS], make)
    return ENV / "bin"


def npm_plugins() -> Path:
    """Return the folder with the TypeScript plugin, installed from its lock file."""
    folder = CODEGEN / "npm"
    locks = [LOCKS / "package.json", LOCKS / "package-lock.json"]
    npm = program("npm", "Node.js 20 or newer with npm")

    def make() -> None:
        for lock in locks:
            shutil.copy(lock, folder)
        subprocess.run([npm, "ci", "--silent", "--ignore-scripts"], cwd=folder, check=True)

    made_once(folder, locks, make)
    return folder / "node_modules" / ".bin"


def go_plugins() -> Path:
    """Return the folder with the Go plugins, built from their lock file."""
    folder = CODEGEN / "go"
    go = program("go", "Go 1.25 or newer")

    def make() -> None:
        environ = {**os.environ, "GOBIN": str(folder)}
        subprocess.run([go, "install", "tool"], cwd=LOCKS, env=environ, check=True)

    made_once(folder, [LOCKS / "go.mod", LOCKS / "go.sum"], make)
    return folder


def protos() -> list[str]:
    return sorted(str(p.relative_to(PROTO)) for p in PROTO.rglob("*.proto"))


def protoc(env: Path, *args: str) -> None:
    command = [str(env / "python"), "-m", "grpc_tools.protoc", *args]
    path = f"{env}:{os.environ.get('PATH', os.defpath)}"
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})


def python(env: Path, out: Path) -> None:
    gen = out / "gen" / "python"
    gen.mkdir(parents=True)
    protoc(
        env,
        f"-I{PROTO}",
        f"--python_out={gen}",
        f"--grpc_python_out={gen}",
        f"--mypy_out=quiet:{gen}",
        f"--mypy_grpc_out=quiet:{gen}",
        *protos(),
    )
    (gen / "sessiond" / "v1" / "py.typed").touch()


def site_packages(env: Path) -> Path:
    return next((env.parent / "lib").glob("python3*")) / "site-packages"


def typings(env: Path, out: Path) -> None:
    # google.rpc has no stubs that can live beside types-grpcio; made from the protos themselves.
    folder = out / "typings"
    folder.mkdir(parents=True)
    protoc(env, f"-I{site_packages(env)}", f"--mypy_out=quiet:{folder}", *GOOGLE_RPC)


def descriptor(env: Path, out: Path) -> None:
    folder = out / "gen" / "descriptor"
    folder.mkdir(parents=True)
    protoc(
        env,
        f"-I{PROTO}",
        "--include_imports",
        "--include_source_info",
        f"--descriptor_set_out={folder / 'sessiond.binpb'}",
        *protos(),
    )


def typescript(env: Path, out: Path) -> None:
    gen = out / "gen" / "typescript"
    gen.mkdir(parents=True)
    protoc(
        env,
        f"-I{PROTO}",
        f"-I{site_packages(env)}",
        f"--plugin=protoc-gen-es={npm_plugins() / 'protoc-gen-es'}",
        f"--es_out={gen}",
        "--es_opt=target=js+dts,import_extension=js",
        # No npm package carries google.rpc, which the errors' details are made of.
        "google/rpc/error_details.proto",
        *protos(),
    )


def go(env: Path, out: Path) -> None:
    gen = out / "gen" / "go"
    gen.mkdir(parents=True)
    plugins = go_plugins()
    protoc(
        env,
        f"-I{PROTO}",
        f"--plugin=protoc-gen-go={plugins / 'protoc-gen-go'}",
        f"--plugin=protoc-gen-go-grpc={plugins / 'protoc-gen-go-grpc'}",
        f"--go_out={gen}",
        "--go_opt=paths=source_relative",
        f"--go-grpc_out={gen}",
        "--go-grpc_opt=paths=source_relative",
        *protos(),
    )


def ruby(env: Path, out: Path) -> None:
    gen = out / "gen" / "ruby"
    gen.mkdir(parents=True)
    # grpcio-tools carries no Ruby generator; the plain protoc does, all but the services.
    plugin = program("grpc_ruby_plugin", "the package protobuf-compiler-grpc or ruby-grpc-tools")
    command = [
        str(env / "protoc"),
        f"-I{PROTO}",
        f"--ruby_out={gen}",
        f"--plugin=protoc-gen-grpc={plugin}",
        f"--grpc_out={gen}",
        *protos(),
    ]
    subprocess.run(command, check=True)


def docs(env: Path, out: Path) -> None:
    folder = out / "gen" / "docs"
    folder.mkdir(parents=True)
    descriptors = out / "documented.binpb"
    arguments = ("--include_source_info", f"--descriptor_set_out={descriptors}")
    protoc(env, f"-I{PROTO}", *arguments, *protos())
    # All but the first are made from the programs themselves, so they need what those need.
    pages: dict[str, list[str | Path]] = {
        "reference": [env / "python", PROTO / "reference.py", descriptors],
        "configuration": [sys.executable, ROOT / "server" / "configuration_reference.py"],
        "drivers": [sys.executable, ROOT / "drivers" / "driver_reference.py"],
    }
    for name, command in pages.items():
        with (folder / f"{name}.md").open("wb") as page:
            subprocess.run(command, stdout=page, check=True)
    for name, module in COMMAND_LINES.items():
        typer = [sys.executable, "-m", "typer", module, "utils", "docs", "--name", name]
        output = ["--title", f"Command {name}", "--output", str(folder / f"{name}.md")]
        subprocess.run([*typer, *output], stdout=subprocess.DEVNULL, check=True)


TARGETS = {
    "python": (python, Path("gen/python")),
    "typings": (typings, Path("typings")),
    "descriptor": (descriptor, Path("gen/descriptor")),
    "typescript": (typescript, Path("gen/typescript")),
    "go": (go, Path("gen/go")),
    "ruby": (ruby, Path("gen/ruby")),
    "docs": (docs, Path("gen/docs")),
}


def differences(made: Path, committed: Path) -> list[str]:
    def files(root: Path) -> set[str]:
        found = (p.relative_to(root) for p in root.rglob("*") if p.is_file())
        return {str(p) for p in found if "__pycache__" not in p.parts}

    here, there = files(made), files(committed)
    changed = [n for n in here & there if not filecmp.cmp(made / n, committed / n, shallow=False)]
    return sorted((here ^ there) | set(changed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default=",".join(TARGETS))
    options = parser.parse_args()
    env = environment()
    stale: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)
        for name in options.only.split(","):
            make, folder = TARGETS[name]
            make(env, out)
            if options.check:
                stale += [f"{folder}/{n}" for n in differences(out / folder, ROOT / folder)]
            else:
                shutil.rmtree(ROOT / folder, ignore_errors=True)
                shutil.copytree(out / folder, ROOT / folder)
    for path in stale:
        print(f"not up to date: {path} (run: python proto/generate.py)")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
