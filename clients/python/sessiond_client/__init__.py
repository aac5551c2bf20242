"""A typed asyncio client of sessiond.

`SessiondClient` has one method per call; `SessiondClient.subscribe` yields a session's events across
lost connections and restarts of the daemon, each exactly once. Requests and events are the generated
messages of `sessiond.v1`.
"""

from __future__ import annotations

from ._client import SessiondClient, new_request_id
from ._endpoint import AddressError, Endpoint, Tls, data_dir, discover, runtime_dir
from ._errors import (
    AlreadyExistsError,
    BrokenPromiseError,
    FieldViolation,
    NotFoundError,
    SeqInFutureError,
    SeqPrunedError,
    SessiondError,
    TranscriptChangedError,
    UnauthenticatedError,
    UnavailableError,
)
from ._pending import Pending, Waiting, context_tokens, pending
from ._subscribe import Subscription

__all__ = [
    "AddressError",
    "AlreadyExistsError",
    "BrokenPromiseError",
    "Endpoint",
    "FieldViolation",
    "NotFoundError",
    "Pending",
    "SeqInFutureError",
    "SeqPrunedError",
    "SessiondClient",
    "SessiondError",
    "Subscription",
    "Tls",
    "TranscriptChangedError",
    "UnauthenticatedError",
    "UnavailableError",
    "Waiting",
    "context_tokens",
    "data_dir",
    "discover",
    "new_request_id",
    "pending",
    "runtime_dir",
]
