"""Gates of the clients: what each ecosystem checks, and one suite of scenarios for all."""

from __future__ import annotations

import sys

from tests.clients.languages import BuildError, Language, languages
from tests.gates.base import CI, Failed, Skipped, run


def checks() -> None:
    """Format, lint and tests of every client, by the tools of its own language."""
    missing = [name for name in map(_missing, languages()) if name]
    if missing and CI:
        raise Failed(f"missing: {', '.join(missing)}")
    for language in languages():
        if not _missing(language):
            _check(language)
    if missing:
        raise Skipped(f"in part, missing: {', '.join(missing)}")


def _missing(language: Language) -> str:
    tool = language.missing()
    return f"{language.name} ({tool})" if tool else ""


def _check(language: Language) -> None:
    try:
        language.build()
    except BuildError as error:
        raise Failed(str(error)) from error
    for command in language.checks():
        run(*command, cwd=language.folder, env=language.environment(), timeout=1200)


def conformance() -> None:
    """Builds every client and plays every scenario; a missing toolchain is a failure in CI."""
    run(sys.executable, "-m", "tests.clients.conformance", timeout=2400)
