"""What a session needs of the daemon around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond_drivers.base import Content
from sessiond_server.errors import DomainError
from sessiond_server.session.product import Limits
from sessiond_server.store import Store


class Contents(Protocol):
    """Where the bytes of attachments are kept."""

    def content(self, attachment: session_pb2.Attachment) -> Content:
        """Return an attachment with its bytes; OSError when its file is gone."""

    def put(self, data: bytes, media_type: str, filename: str = "") -> session_pb2.Attachment:
        """Keep `data` under its sha256, durably; DomainError STORAGE_FULL."""


@dataclass(frozen=True, slots=True)
class Context:
    """Shared by all sessions. `clock` gives nanoseconds since the epoch, `environment` the agents' base.

    `launch_timeout` is in seconds, `log_cap` the bytes of output that may wait unread.
    """

    store: Store
    contents: Contents
    clock: Callable[[], int]
    environment: Callable[[], dict[str, str]]
    sessions_dir: Path
    limits: Limits
    launch_timeout: float
    log_cap: int


def request_id_reused(request_id: str) -> DomainError:
    """Return the error for a request_id that came with other content before."""
    return DomainError(
        reasons.ERROR_REASON_REQUEST_ID_REUSED,
        "this request_id was used for a call with other content; use a new one",
        field="request_id",
        metadata={"request_id": request_id},
    )
