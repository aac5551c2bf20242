"""From the start of the daemon to serving, with no session and with many, and the time to import it.

`python -m tests.bench.startup [--sessions N] [--rounds N]`; medians, in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sessiond.v1 import session_pb2
from sessiond_server.session import Spec, State, encode
from sessiond_server.store import SessionRow, Step, Store
from tests.bench.measure import finish
from tests.support.daemon import Daemon


async def _store_sessions(database: Path, count: int) -> None:
    store = Store(database)
    state = encode(State(state=session_pb2.SESSION_STATE_EXITED))
    spec = encode(Spec(workspace=str(database.parent)))
    rows = (
        SessionRow(
            key=0,
            session_id=f"stored-{number}",
            transcript_id=f"transcript-{number}",
            driver="echo",
            spec=spec,
            state=state,
            summary=session_pb2.Session(title=f"session {number}", driver="echo").SerializeToString(),
        )
        for number in range(count)
    )
    keys = await asyncio.gather(*(store.create_session(row, None) for row in rows))
    # A session that never had a run is what a failed creation leaves, and is removed.
    await asyncio.gather(*(store.commit(Step(key, 1, run=1)) for key in keys))
    store.close()


async def _start(sessions: int, rounds: int) -> float:
    times: list[float] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "data").mkdir(mode=0o700)
        await _store_sessions(folder / "data" / "sessiond.db", sessions)
        daemon = Daemon(folder)
        for _ in range(rounds):
            started = time.perf_counter()
            await daemon.start()
            times.append((time.perf_counter() - started) * 1000)
            await daemon.stop()
    return statistics.median(times)


def _import(module: str, rounds: int) -> float:
    times: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


async def measure(sessions: int, rounds: int) -> dict[str, float]:
    """Return milliseconds."""
    return {
        "import_ms": round(_import("sessiond_server.daemon", rounds)),
        "import_grpc_ms": round(_import("grpc.aio", rounds)),
        "serving_ms_0": round(await _start(0, rounds)),
        f"serving_ms_{sessions}": round(await _start(sessions, rounds)),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    finish(asyncio.run(measure(options.sessions, options.rounds)))
