"""Domain errors, and the one place that maps them to gRPC statuses.

Code below the services raises `DomainError` with a reason of the contract and nothing of gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond_server.texts import begin

DOMAIN = "sessiond"
_PREFIX = "ERROR_REASON_"
# Trailers over 16 KiB get lost on the way, and the error with them (grpc/grpc#37852); from 8 KiB on they
# may. All in bytes: the text goes twice, three times as long with each byte as %XX, and in base64.
_MAX_MESSAGE = 1024
_MAX_VALUE = 256
_MAX_KEY = 64
_MAX_ENTRIES = 4

_C = grpc.StatusCode
CODES: Mapping[reasons.ErrorReason.ValueType, grpc.StatusCode] = {
    reasons.ERROR_REASON_SESSION_NOT_FOUND: _C.NOT_FOUND,
    reasons.ERROR_REASON_SESSION_EXISTS: _C.ALREADY_EXISTS,
    reasons.ERROR_REASON_SESSION_EXITED: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_QUESTION_NOT_FOUND: _C.NOT_FOUND,
    reasons.ERROR_REASON_QUESTION_ALREADY_ANSWERED: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_QUESTION_WITHDRAWN: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_ATTACHMENT_NOT_FOUND: _C.NOT_FOUND,
    reasons.ERROR_REASON_DIGEST_MISMATCH: _C.INVALID_ARGUMENT,
    reasons.ERROR_REASON_WRONG_OFFSET: _C.OUT_OF_RANGE,
    reasons.ERROR_REASON_INVALID_FIELD: _C.INVALID_ARGUMENT,
    reasons.ERROR_REASON_REQUEST_ID_REUSED: _C.ALREADY_EXISTS,
    reasons.ERROR_REASON_SEQ_IN_FUTURE: _C.OUT_OF_RANGE,
    reasons.ERROR_REASON_SEQ_PRUNED: _C.OUT_OF_RANGE,
    reasons.ERROR_REASON_TRANSCRIPT_CHANGED: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_UNKNOWN_ACTION: _C.INVALID_ARGUMENT,
    reasons.ERROR_REASON_DRIVER_UNKNOWN: _C.INVALID_ARGUMENT,
    reasons.ERROR_REASON_DRIVER_UNAVAILABLE: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_DRIVER_UNSUPPORTED: _C.UNIMPLEMENTED,
    reasons.ERROR_REASON_WORKSPACE_NOT_ALLOWED: _C.INVALID_ARGUMENT,
    reasons.ERROR_REASON_WORKSPACE_NOT_FOUND: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_TURN_NOT_RUNNING: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_QUEUE_FULL: _C.RESOURCE_EXHAUSTED,
    reasons.ERROR_REASON_TOO_MANY_SESSIONS: _C.RESOURCE_EXHAUSTED,
    reasons.ERROR_REASON_TOO_MANY_SUBSCRIBERS: _C.RESOURCE_EXHAUSTED,
    reasons.ERROR_REASON_STORAGE_FULL: _C.RESOURCE_EXHAUSTED,
    reasons.ERROR_REASON_SERVER_DRAINING: _C.UNAVAILABLE,
    reasons.ERROR_REASON_UNAUTHENTICATED: _C.UNAUTHENTICATED,
    reasons.ERROR_REASON_PERMISSION_DENIED: _C.PERMISSION_DENIED,
    reasons.ERROR_REASON_STALE_REVISION: _C.ABORTED,
    reasons.ERROR_REASON_MESSAGE_NOT_FOUND: _C.NOT_FOUND,
    reasons.ERROR_REASON_ATTACHMENT_TOO_LARGE: _C.RESOURCE_EXHAUSTED,
    reasons.ERROR_REASON_LAUNCH_FAILED: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_RESUME_FAILED: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_SETTING_REFUSED: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_COMMAND_FAILED: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_AGENT_FAILED: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_AGENT_LOST: _C.FAILED_PRECONDITION,
    reasons.ERROR_REASON_SESSION_UNREACHABLE: _C.UNAVAILABLE,
    reasons.ERROR_REASON_INTERNAL: _C.INTERNAL,
    reasons.ERROR_REASON_NATIVE_SESSION_IN_USE: _C.FAILED_PRECONDITION,
}


class DomainError(Exception):
    """A call can't be carried out; nothing was recorded.

    `field` names the request's field at fault, in the proto's spelling. `retry_after` is in seconds: the
    same call may succeed then.
    """

    def __init__(
        self,
        reason: reasons.ErrorReason.ValueType,
        message: str,
        *,
        field: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after


def invalid(field: str, message: str) -> DomainError:
    """Return the error for a request's field that is not acceptable."""
    return DomainError(reasons.ERROR_REASON_INVALID_FIELD, message, field=field)


def reason_name(reason: reasons.ErrorReason.ValueType) -> str:
    """Return the reason as it is sent: without its prefix."""
    return reasons.ErrorReason.Name(reason).removeprefix(_PREFIX)


def _pack(message: Message) -> Any:
    packed = Any()
    packed.Pack(message)
    return packed


def to_status(error: DomainError) -> status_pb2.Status:
    """Return the rich status of `error`: its code, text and details, small enough for trailers."""
    entries = list(error.metadata.items())[:_MAX_ENTRIES]
    metadata = {begin(k, _MAX_KEY): begin(v, _MAX_VALUE) for k, v in entries}
    info = error_details_pb2.ErrorInfo(
        reason=reason_name(error.reason), domain=DOMAIN, metadata=metadata
    )
    details = [_pack(info)]
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=begin(error.field, _MAX_VALUE), description=begin(error.message, _MAX_VALUE)
        )
        details.append(_pack(error_details_pb2.BadRequest(field_violations=[violation])))
    if error.retry_after is not None:
        delay = Duration()
        delay.FromMilliseconds(int(error.retry_after * 1000))
        details.append(_pack(error_details_pb2.RetryInfo(retry_delay=delay)))
    code: int = CODES[error.reason].value[0]
    return status_pb2.Status(code=code, message=begin(error.message, _MAX_MESSAGE), details=details)
