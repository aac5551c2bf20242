"""Everything durable: sessions, transcripts, outboxes and answered requests, in one SQLite file."""

from sessiond_server.store.schema import StoreTooNew
from sessiond_server.store.sqlite import (
    CLOSE_STDIN,
    LINE,
    Response,
    SessionRow,
    Step,
    Store,
)
from sessiond_server.store.writer import StorageFull

__all__ = [
    "CLOSE_STDIN",
    "LINE",
    "Response",
    "SessionRow",
    "Step",
    "StorageFull",
    "Store",
    "StoreTooNew",
]
