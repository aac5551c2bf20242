"""What one client saw of one session, kept in a file that survives the client.

A record is a file of JSON lines, appended as things happen: the client may be killed at any byte, and a
last line that was torn does not count. It holds one entry for each Subscribe call, in the order made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_service_pb2 as api

# How a stream ended, beside reasons and status codes: the session was deleted, the client had all it
# wanted, it went away, it heard nothing for too long, it was killed.
DELETED, COMPLETE, LEFT, SILENT, KILLED = "deleted", "complete", "left", "silent", "killed"


@dataclass(frozen=True, slots=True)
class Seen:
    """One event as a client got it; the digest stands for all its content."""

    seq: int
    digest: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One SubscribeResponse."""

    head_seq: int
    first_seq: int
    transcript_id: str
    events: tuple[Seen, ...]


@dataclass(slots=True)
class Stream:
    """One Subscribe call: what was asked, all that came, and how it ended."""

    after_seq: int
    answers: list[Answer] = field(default_factory=list)
    end: str = KILLED

    @property
    def seqs(self) -> list[int]:
        """The seqs of all its events, as they came."""
        return [seen.seq for answer in self.answers for seen in answer.events]

    @property
    def events(self) -> list[Seen]:
        """All its events, as they came."""
        return [seen for answer in self.answers for seen in answer.events]


@dataclass(slots=True)
class Record:
    """All calls of one client for one session."""

    client: str
    session_id: str
    streams: list[Stream] = field(default_factory=list)


def seen(event: ev.Event) -> Seen:
    """Return what a record keeps of an event."""
    data = event.SerializeToString(deterministic=True)
    return Seen(event.seq, hashlib.blake2b(data, digest_size=8).hexdigest())


def answer(response: api.SubscribeResponse) -> Answer:
    """Return what a record keeps of a response."""
    return Answer(
        response.head_seq,
        response.first_seq,
        response.transcript_id,
        tuple(seen(event) for event in response.events),
    )


class Writer:
    """Appends to a record's file; each line goes to the system at once."""

    def __init__(self, path: Path) -> None:
        """Continue the file at `path`, or begin it; a torn last line is cut off."""
        if path.exists():
            data = path.read_bytes()
            path.write_bytes(data[: data.rfind(b"\n") + 1])
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def opened(self, after_seq: int) -> None:
        """A call is made."""
        self._line({"after": after_seq})

    def got(self, response: api.SubscribeResponse) -> None:
        """A response came."""
        kept = answer(response)
        events = [[event.seq, event.digest] for event in kept.events]
        self._line(
            {
                "head": kept.head_seq,
                "first": kept.first_seq,
                "transcript": kept.transcript_id,
                "events": events,
            }
        )

    def ended(self, how: str) -> None:
        """The call is over."""
        self._line({"end": how})

    def _line(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path, client: str, session_id: str) -> Record:
    """Return the record kept at `path`; an empty one when there is no file."""
    record = Record(client, session_id)
    for entry in _entries(path):
        if "after" in entry:
            record.streams.append(Stream(entry["after"]))
        elif "end" in entry:
            record.streams[-1].end = entry["end"]
        else:
            events = tuple(Seen(seq, digest) for seq, digest in entry["events"])
            record.streams[-1].answers.append(
                Answer(entry["head"], entry["first"], entry["transcript"], events)
            )
    return record


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)
