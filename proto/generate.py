"""Generate everything under gen/ (and typings/) from proto/, in a pinned environment of its own.

Usage: python proto/generate.py [--check] [--only python,descriptor]

--check writes to a temporary folder and fails (exit 1) when it differs from what is committed.
The environment is made once under .codegen/ (ignored by git) from codegen-requirements.txt.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
ENV = ROOT / ".codegen" / "python"
REQUIREMENTS = PROTO / "codegen-requirements.txt"
GOOGLE_RPC = ["google/rpc/status.proto", "google/rpc/error_details.proto", "google/rpc/code.proto"]


def environment() -> Path:
    """Return the bin folder of the generator's environment, made anew when its pins changed."""
    stamp = ENV / "stamp"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(ENV, ignore_errors=True)
        venv.create(ENV, with_pip=True)
        subprocess.run(
            [ENV / "bin" / "python", "-m", "pip", "install", "-q", "-r", REQUIREMENTS], check=True
        )
        stamp.write_text(wanted)
    return ENV / "bin"


def protos() -> list[str]:
    return sorted(str(p.relative_to(PROTO)) for p in PROTO.rglob("*.proto"))


def protoc(env: Path, *args: str) -> None:
    command = [str(env / "python"), "-m", "grpc_tools.protoc", *args]
    path = f"{env}:/usr/bin:/bin"
    subprocess.run(command, check=True, env={"PATH": path})


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


def typings(env: Path, out: Path) -> None:
    # google.rpc has no stubs that can live beside types-grpcio; made from the protos themselves.
    folder = out / "typings"
    folder.mkdir(parents=True)
    site = next((ENV / "lib").glob("python3*")) / "site-packages"
    protoc(env, f"-I{site}", f"--mypy_out=quiet:{folder}", *GOOGLE_RPC)


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


TARGETS = {
    "python": (python, Path("gen/python")),
    "typings": (typings, Path("typings")),
    "descriptor": (descriptor, Path("gen/descriptor")),
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
