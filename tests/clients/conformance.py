"""Prove every client: build it, run each scenario with it, print a table and one closing JSON line.

Usage: python -m tests.clients.conformance [--language NAME]... [--scenario NAME]... [--verbose]

A missing toolchain is a failure when CI=true and a named skip elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, field

if __name__ == "__main__":
    # A handshake that the scripted server has to refuse would be logged into the table. gRPC reads this
    # when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from tests.clients.languages import BuildError, Language, languages
from tests.clients.scenario import Scenario, SharedDaemon, run, scenarios

_MARKS = {True: "ok", False: "FAIL"}


def _line(first: str, rest: list[str], width: int) -> str:
    return " ".join([first.ljust(width), *(text.ljust(10) for text in rest)]).rstrip()


@dataclass
class _Report:
    """All cells so far: scenario name -> language key -> passed."""

    cells: dict[str, dict[str, bool]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    unready: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, scenario: str, language: str, problems: list[str]) -> None:
        self.cells.setdefault(scenario, {})[language] = not problems
        self.failures += [f"{language} / {scenario}: {p}" for p in problems]

    def row(self, scenario: str, keys: list[str], width: int) -> str:
        row = self.cells[scenario]
        return _line(scenario, [_MARKS[row[k]] for k in keys], width)

    def totals(self, number: int) -> dict[str, int]:
        marks = [passed for row in self.cells.values() for passed in row.values()]
        return {
            "languages": number,
            "scenarios": len(self.cells),
            "passed": marks.count(True),
            "failed": marks.count(False) + len(self.unready),
        }


def _ready(language: Language, report: _Report) -> bool:
    """Build the client; False, and noted, when that is not possible."""
    missing = language.missing()
    if missing and os.environ.get("CI") == "true":
        report.unready.append(f"{language.key}: its toolchain is missing: {missing}")
    elif missing:
        report.skipped[language.key] = missing
    else:
        started = time.monotonic()
        try:
            built = language.build()
        except BuildError as error:
            report.unready.append(f"{language.key}: {error}")
            return False
        if built:
            print(f"built {language.name} in {time.monotonic() - started:.0f} s", flush=True)
        return True
    return False


async def _prove(chosen: list[Language], wanted: list[Scenario], report: _Report, verbose: bool) -> None:
    shared = SharedDaemon()
    keys = [language.key for language in chosen]
    width = max(len(scenario.name) for scenario in wanted)
    print(_line("scenario", keys, width), flush=True)
    try:
        for scenario in wanted:
            for language in chosen:
                outcome = await run(scenario, language, shared)
                report.add(scenario.name, language.key, outcome.complaints)
                if verbose:
                    print(f"{scenario.name} {language.key}: {json.dumps(outcome.results)}", flush=True)
            print(report.row(scenario.name, keys, width), flush=True)
    finally:
        try:
            await shared.close()
        except TimeoutError:
            report.unready.append("the daemon's processes did not end")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.clients.conformance", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--language", action="append", choices=[x.key for x in languages()])
    parser.add_argument("--scenario", action="append", choices=[x.name for x in scenarios()])
    parser.add_argument("--verbose", action="store_true", help="print each program's results")
    return parser.parse_args()


def main() -> int:
    options = _options()
    report = _Report()
    chosen = [x for x in languages() if not options.language or x.key in options.language]
    wanted = [x for x in scenarios() if not options.scenario or x.name in options.scenario]
    built = [x for x in chosen if _ready(x, report)]
    if built:
        asyncio.run(_prove(built, wanted, report, options.verbose))
    for key, missing in report.skipped.items():
        print(f"skipped {key}: its toolchain is missing: {missing}")
    for failure in report.unready + report.failures:
        print(f"FAIL {failure}")
    print(json.dumps(report.totals(len(built))))
    return 1 if report.unready or report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
