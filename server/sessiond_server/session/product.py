"""What a core is made with, and what one of its steps makes."""

from __future__ import annotations

from dataclasses import dataclass, field

from sessiond.v1 import session_pb2, session_service_pb2
from sessiond_drivers.base import StopPlan
from sessiond_server.session.state import Spec


@dataclass(frozen=True, slots=True)
class Identity:
    """What never changes in a session (the transcript id: only together with the transcript)."""

    session_id: str
    transcript_id: str
    driver: str
    spec: Spec


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds the core keeps; bytes, and items."""

    max_event_bytes: int = 1024 * 1024
    max_queue_length: int = 100


@dataclass(slots=True)
class Product:
    """What one step made. `state` and `driver_state` are None when unchanged.

    `time` is that of its events, `settled` are unqueue outcomes with the seq to tell, `stop_plan` asks
    the actor to end the process.
    """

    time: int
    first_seq: int
    records: list[bytes]
    outbox: list[tuple[int, int, bytes]]
    blobs: list[tuple[session_pb2.Attachment, bytes]]
    state: bytes | None
    driver_state: bytes | None
    settled: list[tuple[str, session_service_pb2.UnqueueOutcome.ValueType, int]]
    stop_plan: StopPlan | None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        changed = self.state is not None or self.driver_state is not None
        return not (self.records or self.outbox or changed)


@dataclass(slots=True)
class Collected:
    """What a running step has made so far; the fields are those of Product."""

    records: list[bytes] = field(default_factory=list)
    outbox: list[tuple[int, int, bytes]] = field(default_factory=list)
    blobs: list[tuple[session_pb2.Attachment, bytes]] = field(default_factory=list)
    settled: list[tuple[str, session_service_pb2.UnqueueOutcome.ValueType, int]] = field(
        default_factory=list
    )
    stop_plan: StopPlan | None = None

    def sizes(self) -> tuple[int, int, int, int]:
        """Return how much there is of each, to come back to."""
        return len(self.records), len(self.outbox), len(self.blobs), len(self.settled)

    def cut(self, sizes: tuple[int, int, int, int]) -> None:
        """Forget what came after `sizes` were taken."""
        records, outbox, blobs, settled = sizes
        del self.records[records:], self.outbox[outbox:], self.blobs[blobs:], self.settled[settled:]
