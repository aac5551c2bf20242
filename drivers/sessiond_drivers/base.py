"""The contract between a driver and its host.

A driver translates one agent's dialect. It is a state machine without I/O, clock or randomness: each
input returns a list of effects, which the host carries out in order and commits in one transaction
together with the driver's snapshot. That is why a recording tests a driver completely, and why a host
that was killed can go on: it restores the snapshot and feeds the same bytes again.

Inputs are `launch`, `line`, `exited`, `adopted` and one method per verb of the contract. What the host
does around a driver (queue, durability, numbering, checks against what the agent offers) is not the
driver's concern.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import msgspec

from sessiond.v1 import error_reason_pb2, event_pb2, session_pb2, session_service_pb2

__all__ = [
    "Attach",
    "Content",
    "Driver",
    "DriverConfig",
    "DriverType",
    "Dropped",
    "Effect",
    "Emit",
    "ExitStatus",
    "Identified",
    "Launch",
    "LaunchSpec",
    "Message",
    "Program",
    "Refused",
    "Retract",
    "Settle",
    "StopPlan",
    "Taken",
    "Write",
]


# --- what the host tells the driver -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Content:
    """An attachment of a message, with its bytes.

    `ref` is the sha256 of `data` in hex; `path` names a file with the same bytes that the agent may
    read itself.
    """

    ref: str
    media_type: str
    filename: str
    path: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Message:
    """A message for the agent. `message_id` is a UUID in text form; `append` asks for no turn."""

    message_id: str
    text: str
    attachments: tuple[Content, ...] = ()
    append: bool = False


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What a session asks of its agent's process.

    `workspace` is an absolute path and the agent's working directory. Empty strings mean the agent's
    own default. `native_session_id` names the conversation to continue, in the agent's own terms.
    """

    session_id: str
    workspace: str
    model: str = ""
    permission_mode: str = ""
    effort: str = ""
    title: str = ""
    system_prompt: str = ""
    native_session_id: str = ""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How the process ended: an exit code, a signal number, or neither when nobody saw it.

    `stderr_tail` is the end of its standard error (a few KiB), made valid UTF-8.
    """

    exit_code: int | None = None
    signal: int | None = None
    stderr_tail: str = ""


# --- what the driver tells the host -------------------------------------------------------------


@dataclass(slots=True)
class Emit:
    """Append an event. The driver sets the body, `parent_tool_id` and `ignorable`, the host the rest.

    `mark` names the place of this event for a later `Retract`; the first event of a name counts.
    """

    event: event_pb2.Event
    mark: str = ""


@dataclass(slots=True)
class Write:
    """Write one whole line to the agent's stdin. `line` ends with a line feed."""

    line: bytes


@dataclass(slots=True)
class Taken:
    """The agent starts reading this message now. The host appends its UserMessage here."""

    message_id: str


@dataclass(slots=True)
class Dropped:
    """The agent will never read this message. The host appends MessageDropped."""

    message_id: str


@dataclass(slots=True)
class Settle:
    """The answer to `unqueue`, exactly one for each call; it may come with a later line.

    The host appends MessageDropped by itself when the outcome is DROPPED.
    """

    message_id: str
    outcome: session_service_pb2.UnqueueOutcome.ValueType


@dataclass(slots=True)
class Retract:
    """What was emitted since `mark` is void. The host appends Retracted with its seq."""

    mark: str


@dataclass(slots=True)
class Attach:
    """The agent produced a file or image. The host stores it and appends AttachmentAdded."""

    data: bytes
    media_type: str
    filename: str = ""
    tool_id: str = ""
    parent_tool_id: str = ""


@dataclass(slots=True)
class Identified:
    """The agent named its conversation (needed to resume it) or its version. Empty: no news."""

    native_session_id: str = ""
    agent_version: str = ""


Effect: TypeAlias = Emit | Write | Taken | Dropped | Settle | Retract | Attach | Identified


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start the process. `env` is added to the daemon's own environment.

    `effects` are carried out once the process runs: the opening lines (Write), if any.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class StopPlan:
    """How to end the process gently; after `grace` seconds its whole group is killed.

    First `effects` are carried out, then stdin is closed if `close_stdin`, then `signal` is sent to the
    process group unless 0.
    """

    effects: tuple[Effect, ...] = ()
    close_stdin: bool = False
    signal: int = 0
    grace: float = 5.0


class Refused(Exception):
    """A verb asks for what this agent can't do now; nothing was done and nothing is recorded.

    `reason` is one of sessiond.v1.ErrorReason; `field` names the request's field when one is at fault;
    the text says what to do instead.
    """

    def __init__(
        self, reason: error_reason_pb2.ErrorReason.ValueType, message: str, field: str = ""
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.field = field


class DriverConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[drivers.NAME]` table of the daemon's configuration. A driver may subclass it.

    `binary`: program to run (default: the driver's own idea). `args`: added at the end of its command
    line. `env`: added to its environment.
    """

    binary: str = ""
    args: list[str] = []
    env: dict[str, str] = {}


class Driver(ABC):
    """One agent's translator, for one session. Never raises on input from the agent, whatever bytes.

    Obligations: exactly one Taken per message that the agent reads, at the moment it starts reading it;
    a settings verb ends in SettingsChanged or ErrorRaised; `clear` ends in Cleared or ErrorRaised; every
    open tool and question is closed at the end of its turn and at exit; one TurnEnded per TurnStarted;
    unknown lines become Notice.
    """

    @property
    @abstractmethod
    def capabilities(self) -> session_pb2.DriverCapabilities:
        """What this session's agent can do, as far as known by now."""

    @property
    @abstractmethod
    def between_turns(self) -> bool:
        """Whether a message or command handed over now would start a turn of its own.

        False until the agent is ready and from the instant a line that starts a turn is written.
        """

    @abstractmethod
    def launch(self, spec: LaunchSpec, resume: bool) -> Launch:
        """Start a process; `resume` continues the conversation of `spec.native_session_id`.

        Resets everything that belonged to a former process.
        """

    @abstractmethod
    def line(self, line: bytes) -> list[Effect]:
        """Take one line of stdout, without its line feed."""

    @abstractmethod
    def exited(self, status: ExitStatus) -> list[Effect]:
        """The process is gone: close what is open. The host appends ProcessExited and the state.

        Messages handed over and never taken go back to the host's queue by themselves.
        """

    @abstractmethod
    def adopted(self) -> list[Effect]:
        """A new host took over the living process: write what is needed to learn the truth again."""

    @abstractmethod
    def message(self, message: Message) -> list[Effect]:
        """Hand a message over: between turns, or (capability `steer`) into the running turn."""

    def unqueue(self, message_id: str) -> list[Effect]:
        """Take a message back that was handed over and not taken (`unqueue_after_handover`)."""
        return [Settle(message_id, session_service_pb2.UNQUEUE_OUTCOME_ALREADY_SENT)]

    @abstractmethod
    def answer(self, question_id: str, answers: list[str], note: str) -> list[Effect]:
        """Answer an open question. The host checked the labels and appends QuestionAnswered first."""

    @abstractmethod
    def interrupt(self) -> list[Effect]:
        """End the running turn: withdraw open questions first; tools are closed as the turn ends."""

    def set_model(self, model: str) -> list[Effect]:
        """Change the model (`set_model`)."""
        raise self._unsupported("set_model")

    def set_permission_mode(self, permission_mode: str) -> list[Effect]:
        """Change the permission mode (`set_permission_mode`)."""
        raise self._unsupported("set_permission_mode")

    def set_effort(self, effort: str) -> list[Effect]:
        """Change the effort (`set_effort`); empty is the agent's default."""
        raise self._unsupported("set_effort")

    def set_title(self, title: str) -> list[Effect]:
        """Tell the agent the title (`native_title`)."""
        raise self._unsupported("set_title")

    def compact(self, command_id: str, instructions: str) -> list[Effect]:
        """Compact the context (`compact`). Only called between turns."""
        raise self._unsupported("compact")

    def clear(self, command_id: str) -> list[Effect]:
        """Forget the context (`clear`). Only called between turns."""
        raise self._unsupported("clear")

    def check_command(self, text: str) -> None:
        """Raise Refused when `run_command` would not accept `text` (`raw_commands`)."""
        raise self._unsupported("run_command")

    def run_command(self, command_id: str, text: str) -> list[Effect]:
        """Run a raw command (`raw_commands`). Only called between turns, after `check_command`."""
        raise self._unsupported("run_command")

    @abstractmethod
    def stop(self) -> StopPlan:
        """Say how to end the process gently."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """All state that the next input depends on. Cheap: it is asked after every step."""

    @abstractmethod
    def restore(self, snapshot: bytes) -> None:
        """Take back what `snapshot` returned, perhaps that of the previous version of this driver."""

    def _unsupported(self, verb: str) -> Refused:
        return Refused(
            error_reason_pb2.ERROR_REASON_DRIVER_UNSUPPORTED,
            f"this agent does not support {verb}; see the session's capabilities",
        )


@dataclass(frozen=True, slots=True)
class Program:
    """The program a driver needs, and how to ask its version.

    `executable`: a name to look up on PATH, or a path. `version_args`: arguments that make it print its
    version and exit. `parse_version`: takes that output, returns the version or "" when the program is
    not the right one. `install_hint`: what to do when it is missing.
    """

    executable: str
    version_args: tuple[str, ...]
    parse_version: Callable[[str], str]
    install_hint: str


C = TypeVar("C", bound=DriverConfig)


@dataclass(frozen=True, slots=True)
class DriverType(Generic[C]):
    """A driver as it is registered: what an entry point of the group `sessiond.drivers` names.

    `capabilities` is what a session may expect before its agent has said more. `create` makes the
    translator of one session.
    """

    name: str
    display_name: str
    config_type: type[C]
    capabilities: session_pb2.DriverCapabilities
    create: Callable[[C], Driver]
    program: Callable[[C], Program]
