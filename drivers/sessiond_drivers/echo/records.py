"""The lines of the echo agent, typed. Their meaning stands in the docstring of the package `agent`."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from sessiond_drivers import jsonl

_INT64 = (1 << 63) - 1
# The last second that google.protobuf.Timestamp can hold, and the most seconds of a Duration.
_LAST_SECOND = 253_402_300_799
_LONGEST_MS = 315_576_000_000 * 1000

Count = Annotated[int, Meta(ge=0, le=_INT64)]
Small = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Seconds = Annotated[int, Meta(ge=0, le=_LAST_SECOND)]
Milliseconds = Annotated[int, Meta(ge=0, le=_LONGEST_MS)]


class _Line(msgspec.Struct, tag_field="kind", tag=str.lower, gc=False):
    parent: str = ""


class Text(_Line, kw_only=True):
    """A piece of what it says."""

    delta: str
    block: str = ""
    mark: str = ""


class Think(_Line, kw_only=True):
    """A piece of what it thinks."""

    delta: str
    block: str = ""
    mark: str = ""


class Retract(_Line, kw_only=True):
    """What came since a mark is void."""

    mark: str


class Tool(_Line, kw_only=True):
    """A tool call begins; the input stays the JSON text it is."""

    id: str
    name: str
    input: msgspec.Raw = msgspec.Raw(b"{}")
    title: str = ""


class ToolOutput(_Line, kw_only=True, tag="tool_output"):
    """A tool call says something."""

    id: str
    output: str
    replace: bool = False


class ToolEnd(_Line, kw_only=True, tag="tool_end"):
    """A tool call is over."""

    id: str
    output: str = ""
    outcome: str = "ok"


class File(_Line, kw_only=True):
    """A file it made, in base64."""

    data: str
    media_type: str
    name: str = ""
    tool: str = ""


class Turn(_Line, kw_only=True):
    """A turn begins."""

    origin: str


class End(_Line, kw_only=True):
    """The turn is over."""

    outcome: str
    reason: str = ""
    message: str = ""
    ms: Milliseconds | None = None
    steps: Count = 0
    request: str = ""


class Read(_Line, kw_only=True):
    """It starts reading a message."""

    id: str


class Dropped(_Line, kw_only=True):
    """It will never read a message."""

    id: str


class Unqueued(_Line, kw_only=True):
    """What became of a message that was asked back."""

    id: str
    outcome: str


class AskOption(msgspec.Struct):
    """One answer on offer."""

    label: str
    description: str = ""
    preview: str = ""
    kind: str = ""


class Ask(_Line, kw_only=True):
    """A question, or the permission for a tool call."""

    id: str
    prompt: str
    header: str = ""
    options: list[AskOption] = []
    multi: bool = False
    text: bool = False
    secret: bool = False
    group: str = ""
    tool: str = ""
    expires: Seconds = 0


class AskEnd(_Line, kw_only=True, tag="ask_end"):
    """A question is over without an answer."""

    id: str
    reason: str


class Usage(_Line, kw_only=True):
    """Tokens since the last report, and the context."""

    input: Count = 0
    cache_read: Count = 0
    cache_write: Count = 0
    output: Count = 0
    context: Count | None = None
    window: Count | None = None
    cost: float | None = None


class Compacting(_Line):
    """It compacts its context now."""


class Compacted(_Line, kw_only=True):
    """The context is compacted."""

    pre: Count | None = None
    post: Count | None = None
    trigger: str | None = None


class Cleared(_Line, kw_only=True):
    """The context is empty."""

    request: str = ""


class PlanItem(msgspec.Struct):
    """One line of a plan."""

    text: str
    state: str = "todo"


class Plan(_Line, kw_only=True):
    """The whole plan."""

    items: list[PlanItem]


class Retry(_Line, kw_only=True):
    """It waits before it tries again."""

    attempt: Small = 0
    max: Small = 0
    delay_ms: Milliseconds = 0
    reason: str = ""


class Limit(_Line, kw_only=True):
    """A limit of use."""

    limit: str
    reached: bool = False
    used: float | None = None
    resets: Seconds | None = None


class Option(msgspec.Struct):
    """Something on offer."""

    id: str
    label: str = ""
    description: str = ""


class Offer(msgspec.Struct):
    """What is on offer at the start."""

    models: list[Option] = []
    modes: list[Option] = []
    efforts: list[Option] = []
    commands: list[Option] = []


class Options(_Line, kw_only=True):
    """What is on offer now."""

    models: list[Option] = []
    modes: list[Option] = []
    efforts: list[Option] = []
    commands: list[Option] = []


class Settings(_Line, kw_only=True):
    """Settings as they are now."""

    model: str | None = None
    mode: str | None = None
    effort: str | None = None
    title: str | None = None
    request: str = ""


class Hello(_Line, kw_only=True):
    """It is ready."""

    version: str
    session: str
    model: str = ""
    mode: str = ""
    effort: str = ""
    title: str = ""
    options: Offer = msgspec.field(default_factory=Offer)


class Status(_Line, kw_only=True):
    """How things are."""

    busy: bool
    questions: list[str] = []
    model: str = ""
    mode: str = ""
    effort: str = ""
    title: str = ""


class Refused(_Line, kw_only=True):
    """A request is refused."""

    request: str
    message: str


class Output(_Line, kw_only=True):
    """Output of a command."""

    text: str
    request: str = ""


class Peer(_Line, kw_only=True):
    """Another agent says something."""

    id: str
    sender: str
    text: str


class Notice(_Line, kw_only=True):
    """A remark."""

    text: str
    level: str = "info"


class Error(_Line, kw_only=True):
    """Something failed."""

    message: str
    reason: str = ""


class BadInput(_Line, kw_only=True, tag="bad_input"):
    """It could not understand a line."""

    message: str
    line: str = ""


Record: TypeAlias = (
    Text | Think | Retract | Tool | ToolOutput | ToolEnd | File | Turn | End | Read | Dropped | Unqueued
    | Ask | AskEnd | Usage | Compacting | Compacted | Cleared | Plan | Retry | Limit | Options | Settings
    | Hello | Status | Refused | Output | Peer | Notice | Error | BadInput
)  # fmt: skip

_typed = msgspec.json.Decoder(Record).decode
# What the strict decoder or protobuf would raise for absurd numbers, bad text or deep nesting.
_BAD = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)


def decode(line: bytes) -> Record | None:
    """Return the record on a line, None when it is none of the known ones. Never raises."""
    try:
        return _typed(line)
    except _BAD:
        pass
    value = jsonl.decode(line)
    if value is None:
        return None
    try:
        return _typed(jsonl.encode(value))
    except _BAD:
        return None
