"""What a daemon does at its start for one that did not live to do it."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

import structlog

from sessiond_server import shim
from sessiond_server.session.state import decode_state, encode
from sessiond_server.store import COPIED, SessionRow, StorageFull, Store

__all__ = ["check_boot", "drop_orphans", "note_end", "put_aside", "server_id", "sweep"]

_logger = structlog.get_logger(__name__)


async def check_boot(store: Store, rows: Sequence[SessionRow], boot_id: str) -> None:
    """Give all transcripts new ids where commits may be missing, and note that this boot uses the store.

    Seqs could be given twice after a power cut, and in a copy. `boot_id` names this boot of the machine.
    In another boot and in a copy no agent starts by itself: starts that were under way are given up.
    """
    meta = store.get_meta
    rebooted = meta("boot_id") not in ("", boot_id)
    cut = rebooted and meta("clean") != "1" and meta("full_sync") != "1"
    copied = meta(COPIED) == "1"
    if rebooted or copied:
        await _give_up_starts(store, rows)
    if cut or copied:
        for row in rows:
            row.transcript_id = uuid.uuid4().hex
        await store.change_transcripts([(row.transcript_id, row.key) for row in rows])
        _logger.warning("transcripts_renamed", sessions=len(rows))
    now = {"boot_id": boot_id, "clean": "0", COPIED: "0", "full_sync": str(int(store.full_sync))}
    # Before anything that a power cut could take: else it would take this along.
    await store.set_meta(now, sync=True)


async def _give_up_starts(store: Store, rows: Sequence[SessionRow]) -> None:
    """Take back what sessions have promised to start, so that they are found exited like all others.

    The original of a copy may have carried them out: two agents would be at work on one conversation.
    """
    changed: list[tuple[bytes, int]] = []
    for row in rows:
        stored = store.session(row.session_id) if row.alive else None
        if stored is None:
            continue
        state = decode_state(stored.state)
        if state.restarting or state.announced_run != row.run:
            state.restarting, state.announced_run = False, row.run
            changed.append((encode(state), row.key))
    await store.change_states(changed)


async def note_end(store: Store) -> None:
    """Note that the store is closed well: nothing of it can be missing after a power cut."""
    await store.set_meta({"clean": "1"})


async def drop_orphans(store: Store) -> None:
    """Forget attachments that sessions left behind when they were deleted."""
    # Where the disk is full, the next start will do.
    with contextlib.suppress(StorageFull):
        await store.drop_orphans()


def put_aside(sessions_dir: Path, store: Store, rows: Sequence[SessionRow]) -> list[Path]:
    """Free the names of directories that no session has: a new one may get that key at once.

    Returns them, for `sweep`. To be called before `check_boot`, which forgets that a store is a copy.
    """
    # In a copy all sessions are exited: what runs here is of the store that was here before.
    known = set() if store.get_meta(COPIED) == "1" else {str(row.key) for row in rows}
    found = sessions_dir.iterdir() if sessions_dir.exists() else ()
    strange = [directory for directory in found if directory.is_dir() and directory.name not in known]
    return [d.rename(d.with_name(f"gone-{uuid.uuid4().hex}")) for d in strange]


async def sweep(directories: Sequence[Path]) -> None:
    """End and forget sessions that were deleted."""
    for directory in directories:
        try:
            await shim.kill_runs(directory)
        except OSError:
            _logger.exception("not_swept", directory=directory.name)
            continue
        shutil.rmtree(directory, ignore_errors=True)
        _logger.info("swept", directory=directory.name)


async def server_id(store: Store) -> str:
    """Return the id that this store keeps for ever."""
    known = store.get_meta("server_id")
    if not known:
        known = uuid.uuid4().hex
        await store.set_meta({"server_id": known})
    return known
