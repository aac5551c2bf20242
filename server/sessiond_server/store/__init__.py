"""Everything durable: sessions, transcripts, outboxes and answered requests, in one SQLite file."""

from sessiond_server.store.copying import Copied, copy
from sessiond_server.store.schema import COPIED, StoreTooNew, check_file
from sessiond_server.store.sqlite import (
    CLOSE_STDIN,
    CREATIONS,
    LINE,
    Response,
    SessionRow,
    Step,
    Store,
)
from sessiond_server.store.writer import StorageFull

__all__ = [
    "CLOSE_STDIN",
    "COPIED",
    "CREATIONS",
    "LINE",
    "Copied",
    "Response",
    "SessionRow",
    "Step",
    "StorageFull",
    "Store",
    "StoreTooNew",
    "check_file",
    "copy",
]
