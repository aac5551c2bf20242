"""All that the driver remembers between two inputs: its snapshot."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import field

from sessiond_drivers.ledger import Ledger

__all__ = [
    "Ask",
    "Command",
    "Counts",
    "Entry",
    "Part",
    "Pending",
    "Settings",
    "State",
    "Stream",
    "Turn",
    "Usage",
    "Verb",
    "Waiting",
]

WaitingKind: TypeAlias = Literal["message", "append", "command"]
CommandKind: TypeAlias = Literal["compact", "clear", "raw"]
AskKind: TypeAlias = Literal["permission", "plan", "questions", "form", "link"]
Verb: TypeAlias = Literal[
    "initialize", "interrupt", "unqueue", "model", "mode", "effort", "title", "applied"
]


class Waiting(msgspec.Struct):
    """A line that was written and that the agent has not begun to read."""

    native_id: str
    message_id: str
    kind: WaitingKind


class Command(msgspec.Struct):
    """The command that was handed over; at most one.

    `running`: its turn began. `done`: what it is for has happened. `failure`: the agent's words when it
    did not.
    """

    command_id: str
    native_id: str
    kind: CommandKind
    name: str
    running: bool = False
    done: bool = False
    failed: bool = False
    output: str = ""


class Pending(msgspec.Struct):
    """A control request of ours that waits for its response.

    `subject`: the value asked for, or the message to take back. `times`: how many calls it serves.
    `settled`: another line confirmed it already.
    """

    verb: Verb
    subject: str = ""
    times: int = 1
    settled: bool = False


class Part(msgspec.Struct):
    """One question of a request. `name`: the key of its answer. `schema`: of a form's field, JSON."""

    question_id: str
    name: str
    schema: str = ""
    previews: dict[str, str] = {}
    answered: bool = False
    answers: list[str] = []
    note: str = ""


class Ask(msgspec.Struct):
    """A control request of the agent that waits for people.

    `input`: the tool's input, JSON. `choices`: what the options beyond allow and deny grant, JSON, by
    label.
    """

    kind: AskKind
    parts: list[Part]
    tool_id: str = ""
    input: str = "{}"
    choices: dict[str, str] = {}


class Entry(msgspec.Struct):
    """One thing to do; `status` in the program's words."""

    text: str
    status: str


class Settings(msgspec.Struct):
    """As last confirmed; "" is not known. `models_due`: requests for a model that were accepted, and
    what came of them is not known yet.
    """

    model: str = ""
    permission_mode: str = ""
    effort: str = ""
    title: str = ""
    models_due: int = 0


class Stream(msgspec.Struct):
    """The model's message that streams at the top level.

    `blocks`: indexes of the blocks with text that was emitted. `open`: those of them that no whole
    line has confirmed, with their kind, in order.
    """

    message_id: str = ""
    blocks: list[int] = []
    open: list[tuple[int, str]] = []


class Counts(msgspec.Struct):
    """Tokens by kind."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0


class Usage(msgspec.Struct):
    """`call`: of the model call that runs. `live`: reported since the last result. `process`: what the
    process told in its last result. `process_cost`, `session_cost`: US dollars.
    """

    call: Counts = field(default_factory=Counts)
    live: Counts = field(default_factory=Counts)
    process: Counts = field(default_factory=Counts)
    process_cost: float = 0.0
    session_cost: float = 0.0
    context_tokens: int | None = None
    context_window: int | None = None


class Turn(msgspec.Struct):
    """What is known of the running turn beside the ledger.

    `appending`: the agent only takes something into its context. `echoed`: a message of this turn was
    echoed before the turn's init, so the init tells of a further one. `cleared`: that was said already.
    """

    interrupting: bool = False
    appending: bool = False
    cleared: bool = False
    echoed: bool = False
    error: str = ""
    refused: bool = False
    limit_reached: bool = False


class State(msgspec.Struct):
    """The driver's snapshot.

    `process` and `requests` count, so that ids of ours never repeat.

    Of the process: `ready`, it answered the first request; `spoken`, it has begun a turn; `failed`, it
    said that it can't start; `bypass`, it was started to act without any asking; `stopping`, it was
    asked to end; `busy`, a turn is about to begin; `told`, the state that it said last; `state_events`
    and `lifecycle`, it has shown that it writes session states and the life of each message; `woken`, it
    just said that work in the background ended.

    Of the conversation: `named`, the id that the program itself told last; `unsaved`, an id that nothing
    can resume, for it has not been written down; `asked`, there is a message in it.

    `denied`: tool calls that were refused. `plans`: what the model wrote as its plan, by tool call.
    `planning`: calls that may change `todo`, the list of things to do by the program's ids.
    """

    process: int = 0
    requests: int = 0
    ready: bool = False
    spoken: bool = False
    failed: bool = False
    bypass: bool = False
    stopping: bool = False
    busy: bool = False
    told: str = ""
    state_events: bool = False
    lifecycle: bool = False
    woken: bool = False
    native_session_id: str = ""
    named: str = ""
    unsaved: str = ""
    asked: bool = False
    agent_version: str = ""
    commands: list[str] = []
    modes: list[str] = []
    waiting: list[Waiting] = []
    command: Command | None = None
    pending: dict[str, Pending] = {}
    asks: dict[str, Ask] = {}
    denied: list[str] = []
    plans: dict[str, str] = {}
    planning: dict[str, str] = {}
    todo: dict[str, Entry] = {}
    ledger: Ledger = field(default_factory=Ledger)
    turn: Turn = field(default_factory=Turn)
    stream: Stream = field(default_factory=Stream)
    usage: Usage = field(default_factory=Usage)
    settings: Settings = field(default_factory=Settings)

    def request(self, verb: Verb, subject: str = "") -> str:
        """Return the id of a new control request and remember what it is for."""
        self.requests += 1
        request_id = f"s{self.process}-{self.requests}"
        self.pending[request_id] = Pending(verb, subject)
        return request_id
