"""Replay of stored events into a client of another process, against two other ways to send them.

`python -m tests.bench.replay [--events N] [--rounds N]`: the rounds are interleaved in one run. Each
event is a row of its own in the store, as live commits leave them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from sessiond.v1 import event_pb2, session_pb2
from sessiond_server.session import Spec, State, encode
from sessiond_server.store import SessionRow, Step, Store
from sessiond_server.store.records import record
from tests.bench.measure import finish
from tests.support.daemon import Daemon

_SESSION = "replayed"
_DELTA = "a streamed piece of assistant text, some eleven words long at most here"
_TIMEOUT = 300.0


async def _fill(database: Path, workspace: Path, count: int) -> bytes:
    """Store one exited session of `count` events; return all its records."""
    store = Store(database)
    summary = session_pb2.Session(driver="echo", state=session_pb2.SESSION_STATE_EXITED)
    row = SessionRow(
        key=0,
        session_id=_SESSION,
        transcript_id="bench",
        driver="echo",
        spec=encode(Spec(workspace=str(workspace))),
        state=encode(State(state=session_pb2.SESSION_STATE_EXITED)),
        summary=summary.SerializeToString(),
    )
    key = await store.create_session(row, None)
    event = event_pb2.Event()
    event.assistant_text.delta, event.assistant_text.block_id = _DELTA, "block-1"
    event.create_time.GetCurrentTime()
    parts: list[bytes] = []
    pending: list[asyncio.Future[None]] = []
    for seq in range(1, count + 1):
        event.seq = seq
        parts.append(record(event.SerializeToString()))
        # A session that never had a run is what a failed creation leaves, and is removed.
        pending.append(store.commit(Step(key, seq, [parts[-1]], run=1)))
        if len(pending) == 1000:
            await asyncio.gather(*pending)
            pending.clear()
    await asyncio.gather(*pending)
    store.close()
    return b"".join(parts)


async def _read(*arguments: str) -> float:
    command = [sys.executable, "-m", "tests.bench.reader", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(_TIMEOUT):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return float(output)


@contextlib.asynccontextmanager
async def _peer(kind: str, file: Path) -> AsyncIterator[str]:
    command = [sys.executable, "-m", "tests.bench.peers", kind, str(file)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def measure(events: int, rounds: int) -> dict[str, float]:
    """Return events/s of Subscribe, and how many times as fast it is as the two others (medians)."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "data").mkdir(mode=0o700)
        records = await _fill(folder / "data" / "sessiond.db", folder, events)
        file = folder / "events"
        file.write_bytes(records)
        count = str(events)
        async with Daemon(folder) as daemon, _peer("sse", file) as sse, _peer("one", file) as one:
            commands = {
                "subscribe": (daemon.unix, _SESSION, count),
                "sse": (sse, count),
                "one": (f"127.0.0.1:{one}", count),
            }
            seconds: dict[str, list[float]] = {kind: [] for kind in commands}
            for _ in range(rounds):
                for kind, arguments in commands.items():
                    seconds[kind].append(await _read(kind, *arguments))
    for kind, values in seconds.items():
        best, middle = min(values), statistics.median(values)
        print(f"{kind:10} best {best:.3f} s, median {middle:.3f} s, {events / middle:,.0f} events/s")
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    return {
        "events_per_s": round(events / median["subscribe"]),
        "vs_sse": median["sse"] / median["subscribe"],
        "vs_one_per_message": median["one"] / median["subscribe"],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    finish(asyncio.run(measure(options.events, options.rounds)))
