"""The gates: everything that has to hold before a change is taken, in the order in which it is checked.

`python -m tests` runs them. A gate is a function without arguments in one of the modules here; it
returns when all is well, raises `Failed` or lets a command's failure through, and raises `Skipped` when
this machine lacks something that only CI installs.
"""

from tests.gates import agents, clients, contract, installed, python, show, suite, toolchains
from tests.gates.base import Failed, Gate, Skipped

__all__ = ["GATES", "Failed", "Gate", "Skipped"]

GATES: tuple[Gate, ...] = (
    Gate("buf-lint", "the contract keeps its style, every element is commented", contract.lint),
    Gate("buf-format", "the contract is formatted", contract.formatted),
    Gate("buf-breaking", "the contract breaks no client of the last release", contract.breaking),
    Gate("toolchains", "the tools of the other languages are there", toolchains.ensure),
    Gate("generated", "everything under gen/ is what the contract gives", contract.generated),
    Gate("ruff", "Python style", python.style),
    Gate("ruff-format", "Python is formatted", python.formatted),
    Gate("mypy", "Python types, strict", python.types),
    Gate("imports", "imports go one way", python.imports),
    Gate("pytest", "the test suite", suite.tests),
    Gate("wheel", "the wheel works where it is installed, with the newest libraries", installed.newest),
    Gate("oldest", "the wheel works with the oldest libraries it admits", installed.oldest),
    Gate("claude", "Claude Code itself, through client, daemon and shim", agents.claude),
    Gate("client-checks", "each client passes the checks of its own language", clients.checks),
    Gate("clients", "clients of every language behave the same", clients.conformance),
    Gate("chaos", "killing the daemon loses, doubles and reorders nothing", show.chaos),
    Gate("load", "many readers, streams and sessions cost little and leave nothing", show.load),
    Gate("fuzz", "no bytes break a driver or either end of the shim's socket", show.fuzz),
    Gate("benchmarks", "the benchmarks run and hold their floors", show.benchmarks),
)
