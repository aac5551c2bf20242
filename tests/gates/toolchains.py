"""The tools that clients in other languages are built with and that the command-line tests use.

In CI what is missing is installed. Elsewhere the gate is skipped with the names of what is missing, and
so are the tests that need it.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from tests.gates.base import CI, Failed, Skipped, run

_GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: the command that succeeds when it is there, and Debian's packages that bring it.

    Without packages it is a toolchain whose version matters; `hint` says which to install.
    """

    name: str
    probe: tuple[str, ...]
    packages: tuple[str, ...] = ()
    hint: str = ""


TOOLS: tuple[Tool, ...] = (
    Tool("Go", ("go", "version"), hint="Go 1.26 or newer"),
    Tool("Node.js", ("npm", "--version"), hint="Node.js 20 or newer, with npm"),
    Tool("Rust", ("cargo", "--version"), hint="Rust 1.88 or newer, with rustfmt and clippy"),
    Tool("Java", ("javac", "-version"), ("default-jdk-headless",)),
    Tool("Maven", ("mvn", "--version"), ("maven",)),
    Tool("C++ compiler", ("g++", "--version"), ("g++",)),
    Tool("CMake", ("cmake", "--version"), ("cmake", "make")),
    Tool("gRPC for C++", ("pkg-config", "--exists", "grpc++"), ("libgrpc++-dev", "pkg-config")),
    Tool("protoc", ("protoc", "--version"), ("protobuf-compiler", "libprotobuf-dev")),
    Tool("protoc plugins", ("which", "grpc_cpp_plugin"), ("protobuf-compiler-grpc",)),
    Tool("Ninja", ("ninja", "--version"), ("ninja-build",)),
    Tool("OpenSSL for C++", ("pkg-config", "--exists", "openssl"), ("libssl-dev", "pkg-config")),
    Tool("JSON for C++", ("pkg-config", "--exists", "nlohmann_json"), ("nlohmann-json3-dev",)),
    Tool("GoogleTest", ("pkg-config", "--exists", "gtest_main"), ("libgtest-dev",)),
    Tool("clang-format", ("clang-format", "--version"), ("clang-format",)),
    Tool("gRPC for Ruby", ("ruby", "-e", "require 'grpc'"), ("ruby", "ruby-grpc")),
    Tool("Ruby's test library", ("ruby", "-e", "require 'minitest'"), ("ruby-minitest",)),
    Tool("Rake", ("rake", "--version"), ("rake",)),
    Tool("RuboCop", ("rubocop", "--version"), ("rubocop",)),
)


def _there(probe: tuple[str, ...]) -> bool:
    if shutil.which(probe[0]) is None:
        return False
    return subprocess.run(probe, capture_output=True, timeout=60).returncode == 0


def ensure() -> None:
    """Install what is missing (in CI), or say what is."""
    missing = [tool for tool in TOOLS if not _there(tool.probe)]
    if not CI:
        names = [tool.name for tool in missing]
        if shutil.which("grpcurl") is None:
            names.append(f"grpcurl (go install {_GRPCURL})")
        if names:
            raise Skipped("missing: " + ", ".join(names))
        return
    packages = sorted({package for tool in missing for package in tool.packages})
    if packages:
        run("apt-get", "update", "-q")
        noninteractive = {"DEBIAN_FRONTEND": "noninteractive"}
        install = ("apt-get", "install", "-q", "-y", "--no-install-recommends")
        run(*install, *packages, timeout=900, env=noninteractive)
    still = [f"{t.name} ({t.hint or ' '.join(t.packages)})" for t in TOOLS if not _there(t.probe)]
    if still:
        raise Failed("install: " + ", ".join(still))
    if shutil.which("grpcurl") is None:
        # Into a folder that is on the PATH of everything that runs later.
        run("go", "install", _GRPCURL, env={"GOBIN": "/usr/local/bin"})
