"""How fast each client reads 100,000 stored events.

Usage: python -m tests.clients.bench [--events N] [--rounds N] [--language NAME]...

One daemon, one transcript, one session of short texts; the clients take turns, so that all of them meet
the same machine. Each program reads seq, kind and text of every event and hashes the text. Prints a
markdown table of the best round of each: the time of the subscription, without the start of a runtime.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from tests.clients.daemon import act
from tests.clients.languages import Language, languages
from tests.support.daemon import Daemon

_SESSION = "bench"
_LIMIT = 300.0


async def _round(language: Language, daemon: Daemon, events: int) -> float:
    """Return the seconds in which the client read the transcript."""
    step = {"id": "read", "do": "subscribe", "session_id": _SESSION, "until": {"kind": "plan_updated"}}
    connection = {"address": f"unix://{daemon.runtime_dir / 'sessiond.sock'}"}
    document = {"connection": connection, "steps": [{**step, "deadline_ms": int(_LIMIT * 1000)}]}
    process = await asyncio.create_subprocess_exec(
        *language.command("conformance"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=language.environment(),
    )
    async with asyncio.timeout(_LIMIT):
        out, _ = await process.communicate(json.dumps(document).encode())
    result = json.loads(out.splitlines()[-1])["results"]["read"]
    got = result["kinds"].get("assistant_text")
    if result["end"] != "DONE" or got != events or result["gaps"] or result["repeats"]:
        raise SystemExit(f"{language.name} did not read the transcript right: {result}")
    elapsed: float = result["elapsed_ms"] / 1000
    return elapsed


async def _measure(chosen: list[Language], events: int, rounds: int) -> dict[str, float]:
    best: dict[str, float] = {}
    async with Daemon() as daemon:
        target = {"session": _SESSION}
        await act(daemon, {"do": "create", **target})
        await act(daemon, {"do": "run", "text": f"!burst {events}\n!plan done:x", **target})
        for _ in range(rounds):
            for language in chosen:
                seconds = await _round(language, daemon, events)
                best[language.name] = min(seconds, best.get(language.name, seconds))
    return best


def _table(best: dict[str, float], events: int) -> str:
    lines = [f"| client | {events:,} events in | events/s |", "|---|---:|---:|"]
    for name, seconds in sorted(best.items(), key=lambda item: item[1]):
        lines.append(f"| {name} | {seconds:.2f} s | {events / max(seconds, 0.001):,.0f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.clients.bench", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--language", action="append", choices=[x.key for x in languages()])
    options = parser.parse_args()
    chosen = []
    for language in languages():
        if options.language and language.key not in options.language:
            continue
        if missing := language.missing():
            print(f"skipped {language.name}: its toolchain is missing: {missing}", file=sys.stderr)
            continue
        language.build()
        chosen.append(language)
    best = asyncio.run(_measure(chosen, options.events, options.rounds))
    print(_table(best, options.events))
    rates = {name: round(options.events / max(seconds, 0.001)) for name, seconds in best.items()}
    print(json.dumps({"events": options.events, "events_per_s": rates}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
