"""What the server knows of a session beside its transcript: one value, stored with every step.

Pure data. It is the fold of the events so far plus what waits (the queue, open questions), encoded as
msgpack, so that a session can go on without reading its transcript.
"""

from __future__ import annotations

from copy import copy as copy_struct

import msgspec

from sessiond.v1 import session_pb2

MESSAGE, COMPACT, CLEAR, RUN = "message", "compact", "clear", "run"


class Attached(msgspec.Struct, frozen=True):
    """An attachment of a waiting message; fields as in sessiond.v1.Attachment."""

    ref: str
    media_type: str
    filename: str
    size_bytes: int

    def to_proto(self) -> session_pb2.Attachment:
        """Return it as it is sent."""
        return session_pb2.Attachment(
            ref=self.ref,
            media_type=self.media_type,
            filename=self.filename,
            size_bytes=self.size_bytes,
        )


class Item(msgspec.Struct):
    """A waiting message or command. `handed`: the driver has it and the agent has not read it.

    `kind` is MESSAGE, or COMPACT, CLEAR, RUN for a command whose `text` is its argument. `taking_back`:
    the agent was asked to give it back and has not said whether it does.
    """

    item_id: str
    kind: str
    text: str
    attachments: tuple[Attached, ...] = ()
    delivery: int = session_pb2.DELIVERY_NEXT_TURN
    revision: int = 1
    sender: str = ""
    actor: str = ""
    request_id: str = ""
    handed: bool = False
    taking_back: bool = False


class Question(msgspec.Struct, omit_defaults=True):
    """A question that was asked, and how it may be answered while it is open.

    `answer` is the digest of the answer that was given, empty before; kept to recognise a repeat. `seq`
    is that of its last event.
    """

    labels: tuple[str, ...] = ()
    multi_select: bool = False
    allow_text: bool = False
    secret: bool = False
    answer: bytes = b""
    seq: int = 0
    withdrawn: bool = False

    @property
    def open(self) -> bool:
        """Whether it waits for an answer."""
        return not self.answer and not self.withdrawn


class Usage(msgspec.Struct):
    """Tokens by kind, as in sessiond.v1.Tokens."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0


class State(msgspec.Struct):
    """The session itself. Times are nanoseconds since the epoch.

    `unusable` are the settings that the agent gave a value which can't be given back to it.

    `said` is the state the agent's driver last said; `state` is what clients see, which differs while
    the process is starting, unreachable or gone. `became` tells of the last messages and commands that
    left the queue the seq at which they were dropped, 0 for those the agent got. `marks` are the places
    that a Retract may name. `stopped`: the last process was told to end, with all that it had started.
    `awaited` and `pending_settings` belong to causes.py.
    """

    state: int = session_pb2.SESSION_STATE_UNKNOWN
    said: int = session_pb2.SESSION_STATE_UNKNOWN
    title: str = ""
    labels: dict[str, str] = {}
    model: str = ""
    permission_mode: str = ""
    effort: str = ""
    native_session_id: str = ""
    agent_version: str = ""
    turn_id: str = ""
    total: Usage = msgspec.field(default_factory=Usage)
    context_tokens: int | None = None
    context_window: int | None = None
    total_cost_usd: float | None = None
    queue: list[Item] = []
    questions: dict[str, Question] = {}
    became: dict[str, int] = {}
    marks: dict[str, int] = {}
    unusable: list[str] = []
    awaited: dict[str, str] = {}
    pending_settings: list[tuple[str, str]] = []
    models: list[str] = []
    permission_modes: list[str] = []
    efforts: list[str] = []
    announced_run: int = 0
    stopping: bool = False
    restarting: bool = False
    stopped: bool = False
    create_time: int = 0
    update_time: int = 0

    def usable(self, name: str) -> str:
        """Return a setting as an agent may be started with it, empty when it may not."""
        value: str = getattr(self, name)
        return "" if name in self.unusable else value


class Spec(msgspec.Struct, frozen=True):
    """What CreateSession asked for, as needed to start the process again. Holds secrets.

    `request_id` is that call's own, and forgotten together with the session.
    """

    workspace: str
    model: str = ""
    permission_mode: str = ""
    effort: str = ""
    system_prompt: str = ""
    environment: dict[str, str] = {}
    ephemeral: bool = False
    request_id: str = ""


_CONTAINERS = tuple(
    field.name for field in msgspec.structs.fields(State) if field.default_factory in (list, dict)
)


def copied(state: State) -> State:
    """Return a copy that no later change of `state` reaches."""
    copy = copy_struct(state)
    for name in _CONTAINERS:
        setattr(copy, name, getattr(state, name).copy())
    copy.total = copy_struct(state.total)
    copy.queue = [copy_struct(item) for item in state.queue]
    return copy


def keep_last(entries: dict[str, int], most: int) -> None:
    """Forget the oldest entries of a dict beyond `most`."""
    while len(entries) > most:
        del entries[next(iter(entries))]


encode = msgspec.msgpack.Encoder().encode
decode_state = msgspec.msgpack.Decoder(State).decode
decode_spec = msgspec.msgpack.Decoder(Spec).decode
