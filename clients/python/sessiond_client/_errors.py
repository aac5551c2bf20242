"""Errors of calls, with the reason the daemon gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc import aio

__all__ = [
    "AlreadyExistsError",
    "BrokenPromiseError",
    "FieldViolation",
    "NotFoundError",
    "SeqInFutureError",
    "SeqPrunedError",
    "SessiondError",
    "TranscriptChangedError",
    "UnauthenticatedError",
    "UnavailableError",
    "from_rpc_error",
]

_DOMAIN = "sessiond"
_STATUS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A field of the request that is not acceptable, in the proto's spelling, and why."""

    field: str
    description: str


class SessiondError(Exception):
    """A call that failed, or a stream that ended in a failure.

    `reason` is a name of the contract's ErrorReason without its prefix (SESSION_NOT_FOUND), or empty
    when the failure did not come from the daemon itself (a lost connection, a deadline). `retry_after`
    is in seconds and set when the daemon says that the same call may succeed later.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: tuple[FieldViolation, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self.metadata: Mapping[str, str] = dict(metadata or {})
        self.violations = violations
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.reason or self.code.name}: {self.message}"


class NotFoundError(SessiondError):
    """No such session, question, message or attachment."""


class AlreadyExistsError(SessiondError):
    """The session exists already, or the request_id was used for something else."""


class UnauthenticatedError(SessiondError):
    """The token is missing or wrong."""


class UnavailableError(SessiondError):
    """The daemon can't be reached, is going, or can't reach the session's agent; it may be back soon."""


class SeqInFutureError(SessiondError):
    """`after_seq` is beyond the transcript's head: it belongs to another transcript."""


class SeqPrunedError(SessiondError):
    """The events after `after_seq` are gone; `metadata["first_seq"]` is the first there is."""


class TranscriptChangedError(SessiondError):
    """The session has another transcript than the one that `after_seq` belongs to: start from 0."""


class BrokenPromiseError(SessiondError):
    """The daemon sent what its contract rules out, such as a gap in the seqs. Not to be retried."""


_BY_REASON: Mapping[str, type[SessiondError]] = {
    "SEQ_IN_FUTURE": SeqInFutureError,
    "SEQ_PRUNED": SeqPrunedError,
    "TRANSCRIPT_CHANGED": TranscriptChangedError,
}
_BY_CODE: Mapping[grpc.StatusCode, type[SessiondError]] = {
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
}


def from_rpc_error(error: aio.AioRpcError) -> SessiondError:
    """Return what the daemon meant; details that can't be read are left out."""
    code = error.code()
    info, violations, retry_after = _read_details(error)
    kind = _BY_REASON.get(info.reason) or _BY_CODE.get(code) or SessiondError
    return kind(
        code,
        error.details() or code.name.lower().replace("_", " "),
        reason=info.reason,
        metadata=info.metadata,
        violations=violations,
        retry_after=retry_after,
    )


def _read_details(
    error: aio.AioRpcError,
) -> tuple[error_details_pb2.ErrorInfo, tuple[FieldViolation, ...], float | None]:
    found = error_details_pb2.ErrorInfo()
    violations: list[FieldViolation] = []
    retry_after: float | None = None
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    try:
        for detail in _details(error):
            if detail.Unpack(info) and info.domain == _DOMAIN:
                found.CopyFrom(info)
            elif detail.Unpack(bad_request):
                violations += [
                    FieldViolation(v.field, v.description) for v in bad_request.field_violations
                ]
            elif detail.Unpack(retry):
                retry_after = retry.retry_delay.ToTimedelta().total_seconds()
    except DecodeError:
        pass
    return found, tuple(violations), retry_after


def _details(error: aio.AioRpcError) -> Sequence[Any]:
    for key, value in error.trailing_metadata() or ():
        if key == _STATUS_KEY and isinstance(value, bytes):
            return status_pb2.Status.FromString(value).details
    return ()
