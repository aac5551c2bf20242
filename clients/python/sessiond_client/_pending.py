"""What a session is waiting for, folded from its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sessiond.v1 import event_pb2, session_pb2

from ._client import SessiondClient

__all__ = ["Pending", "Waiting", "context_tokens", "pending"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message, or a command (then `is_command`), that the agent has not read yet."""

    item_id: str
    text: str
    revision: int = 0
    is_command: bool = False


@dataclass(slots=True)
class Pending:
    """Open questions and waiting items of a session. A fold: `apply` takes its events in order.

    `questions`: by question_id, oldest first. `queue`: in the order in which the agent will read them.
    Events about what was asked or queued before the first applied event are passed over.
    """

    questions: dict[str, event_pb2.QuestionAsked] = field(default_factory=dict)
    queue: list[Waiting] = field(default_factory=list)

    def apply(self, event: event_pb2.Event) -> None:
        """Take the next event."""
        match event.WhichOneof("body"):
            case "question_asked":
                self.questions[event.question_asked.question_id] = event.question_asked
            case "question_answered":
                self.questions.pop(event.question_answered.question_id, None)
            case "question_withdrawn":
                self.questions.pop(event.question_withdrawn.question_id, None)
            case "message_queued":
                queued = event.message_queued
                self.queue.append(Waiting(queued.message_id, queued.text, queued.revision))
            case "message_edited":
                edited = event.message_edited
                self._replace(Waiting(edited.message_id, edited.text, edited.revision))
            case "message_moved":
                self._move(event.message_moved)
            case "command_queued":
                command = event.command_queued
                self.queue.append(Waiting(command.command_id, command.text, is_command=True))
            case _:
                if ended := resolved_item(event):
                    self.queue = [item for item in self.queue if item.item_id != ended]

    def _replace(self, waiting: Waiting) -> None:
        self.queue = [waiting if item.item_id == waiting.item_id else item for item in self.queue]

    def _move(self, moved: event_pb2.MessageMoved) -> None:
        item = next((item for item in self.queue if item.item_id == moved.message_id), None)
        if item is None:
            return
        rest = [other for other in self.queue if other is not item]
        ids = [other.item_id for other in rest]
        before = moved.before_message_id
        at = ids.index(before) if before in ids else len(rest)
        self.queue = [*rest[:at], Waiting(item.item_id, item.text, moved.revision), *rest[at:]]


def resolved_item(event: event_pb2.Event) -> str:
    """Return the id of the message or command that stops waiting with this event, or nothing."""
    match event.WhichOneof("body"):
        case "user_message":
            return event.user_message.message_id
        case "message_dropped":
            return event.message_dropped.message_id
        case "command_sent":
            return event.command_sent.command_id
        case "command_dropped":
            return event.command_dropped.command_id
        case _:
            return ""


def context_tokens(before: int | None, event: event_pb2.Event) -> int | None:
    """Return the size of the agent's context after `event`, None when nobody can say.

    The fold that daemon and clients share: a report of usage with a context sets it, a compaction sets
    it to what is left or to unknown, clearing makes it unknown, everything else leaves it.
    """
    match event.WhichOneof("body"):
        case "usage_reported" if event.usage_reported.HasField("context_tokens"):
            return event.usage_reported.context_tokens
        case "compacted":
            compacted = event.compacted
            return compacted.post_tokens if compacted.HasField("post_tokens") else None
        case "cleared":
            return None
        case _:
            return before


async def pending(client: SessiondClient, session: session_pb2.Session) -> Pending:
    """Return what `session` waits for, reading its history backwards only as far as needed."""
    wanted = session.open_question_count + session.queue_length
    closed: set[str] = set()
    needed: list[event_pb2.Event] = []
    if wanted:
        async for event in client.history(session.session_id, page_size=1000):
            if event.seq > session.head_seq:
                continue
            wanted -= _opens(event, closed)
            needed.append(event)
            if wanted <= 0:
                break
    return _folded(reversed(needed))


def _opens(event: event_pb2.Event, closed: set[str]) -> bool:
    """Whether this event opened something that is still open; notes in `closed` what it closes."""
    match event.WhichOneof("body"):
        case "question_asked":
            return event.question_asked.question_id not in closed
        case "message_queued":
            return event.message_queued.message_id not in closed
        case "command_queued":
            return event.command_queued.command_id not in closed
        case "question_answered":
            closed.add(event.question_answered.question_id)
        case "question_withdrawn":
            closed.add(event.question_withdrawn.question_id)
        case _:
            closed.add(resolved_item(event))
    return False


def _folded(events: Iterable[event_pb2.Event]) -> Pending:
    found = Pending()
    for event in events:
        found.apply(event)
    return found
