"""The translator of the echo agent's dialect."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sessiond.v1 import error_reason_pb2, session_pb2, session_service_pb2
from sessiond.v1 import event_pb2 as ev
from sessiond_drivers import jsonl, notices
from sessiond_drivers.base import (
    Driver,
    DriverConfig,
    DriverType,
    Effect,
    Emit,
    ExitStatus,
    Launch,
    LaunchSpec,
    Message,
    Program,
    Refused,
    StopPlan,
    Write,
)
from sessiond_drivers.echo import records
from sessiond_drivers.echo.state import SETTINGS, State, error
from sessiond_drivers.echo.translate import TRANSLATE

AGENT = Path(__file__).parent / "agent" / "__main__.py"
_ISOLATED = ("-I", "-S")
_GRACE = 2.0
_UNQUEUE_DROPPED = session_service_pb2.UNQUEUE_OUTCOME_DROPPED

_CAPABILITIES = session_pb2.DriverCapabilities(
    steer=True,
    append=True,
    unqueue_after_handover=True,
    interrupt=True,
    set_model=True,
    set_permission_mode=True,
    set_effort=True,
    compact=True,
    clear=True,
    native_title=True,
    raw_commands=True,
    images=True,
    resume=True,
    usage=True,
)


class EchoConfig(DriverConfig, kw_only=True, forbid_unknown_fields=True):
    """The table `[drivers.echo]`. `binary`: the Python that runs the agent (the daemon's own).

    `script`: file to play, a block for each message. `state_dir`: where conversations are kept (default:
    in the temporary folder). `read_log`: file that gets a line for each message read. `start_delay`:
    seconds before the agent is ready. `rate`: deltas per second of plain text, 0 for flat out. `seed`:
    for random text.
    """

    script: str = ""
    state_dir: str = ""
    read_log: str = ""
    start_delay: float = 0.0
    rate: float = 0.0
    seed: int = 0


class EchoDriver(Driver):
    """One session of the echo agent."""

    def __init__(self, config: EchoConfig) -> None:
        self._config = config
        self._state = State()
        self._snapshot: bytes | None = None

    @property
    def capabilities(self) -> session_pb2.DriverCapabilities:
        """Everything the echo agent can do; it never changes."""
        return _CAPABILITIES

    @property
    def between_turns(self) -> bool:
        """Ready, no turn open, and nothing on its way that will start one."""
        return self._state.between_turns

    # --- the process ---

    def launch(self, spec: LaunchSpec, resume: bool) -> Launch:
        """Start the agent, on the conversation of the session or on a former one."""
        self._change()
        resume = resume and bool(spec.native_session_id)
        self._state = self._state.next_process(resume)
        config = self._config
        flags: dict[str, Any] = {
            "session": "" if resume else f"echo-{spec.session_id}",
            "resume": spec.native_session_id if resume else "",
            "model": spec.model,
            "mode": spec.permission_mode,
            "effort": spec.effort,
            "title": spec.title,
            "system-prompt": spec.system_prompt,
            "script": config.script,
            "state-dir": config.state_dir,
            "read-log": config.read_log,
            "start-delay": config.start_delay,
            "rate": config.rate,
            "seed": config.seed,
        }
        words = [word for name, value in flags.items() if value for word in (f"--{name}", str(value))]
        argv = (config.binary or sys.executable, *_ISOLATED, str(AGENT), *words, *config.args)
        return Launch(argv, config.env)

    def exited(self, status: ExitStatus) -> list[Effect]:
        """Close what is open; requests that nobody will confirm any more have failed."""
        self._change()
        state = self._state
        effects: list[Effect] = []
        if not state.ready:
            reason, what = error_reason_pb2.ERROR_REASON_LAUNCH_FAILED, "start"
            if state.resuming:
                reason, what = error_reason_pb2.ERROR_REASON_RESUME_FAILED, "go on with its conversation"
            said = status.stderr_tail.strip() or "it said nothing"
            effects.append(error(reason, f"the agent did not {what}: {said}"))
        effects += state.ledger.end_turn(
            ev.TURN_OUTCOME_FAILED,
            ev.TURN_END_REASON_AGENT_EXITED,
            withdraw=ev.WITHDRAW_REASON_AGENT_EXITED,
        )
        effects += [state.failed(request, "the agent exited first") for request in list(state.requests)]
        effects += [state.settle(message_id, _UNQUEUE_DROPPED) for message_id in list(state.unqueues)]
        self._state = state.next_process()
        return effects

    def adopted(self) -> list[Effect]:
        """Ask how things are; the answer ends what the agent does not know of."""
        return [self._write("status")]

    def stop(self) -> StopPlan:
        """Ask the agent to quit, and close its stdin."""
        return StopPlan((self._write("quit"),), close_stdin=True, grace=_GRACE)

    # --- lines ---

    def line(self, line: bytes) -> list[Effect]:
        """Translate one line."""
        record = records.decode(line)
        # Streamed text changes no state: it is by far the most, and the snapshot stays as it is.
        if type(record) is records.Text:
            text = ev.AssistantText(delta=record.delta, block_id=record.block)
            return [Emit(ev.Event(assistant_text=text, parent_tool_id=record.parent), record.mark)]
        if type(record) is records.Think:
            reasoning = ev.Reasoning(delta=record.delta, block_id=record.block)
            return [Emit(ev.Event(reasoning=reasoning, parent_tool_id=record.parent), record.mark)]
        effects: list[Effect] | None = None
        if type(record) is records.ToolOutput:
            if record.id in self._state.ledger.tools:
                update = ev.ToolUpdated(tool_id=record.id, output=record.output, replace=record.replace)
                return [Emit(ev.Event(tool_updated=update, parent_tool_id=record.parent))]
        elif record is not None:
            self._change()
            effects = TRANSLATE[type(record)](self._state, record)
        if effects is not None:
            return effects
        return [notices.unmapped(line, "kind")] if line.strip() else []

    # --- verbs ---

    def message(self, message: Message) -> list[Effect]:
        """Hand a message over; the files of its attachments are named, not copied."""
        self._change()
        self._state.pending[message.message_id] = message.append
        files = [
            {
                "name": file.filename,
                "media_type": file.media_type,
                "path": file.path,
                "size": len(file.data),
            }
            for file in message.attachments
        ]
        return [
            self._write(
                "message", id=message.message_id, text=message.text, files=files, append=message.append
            )
        ]

    def unqueue(self, message_id: str) -> list[Effect]:
        """Ask for a message back, unless it was read already."""
        if message_id not in self._state.pending:
            return super().unqueue(message_id)
        self._change()
        self._state.unqueues.append(message_id)
        return [self._write("unqueue", id=message_id)]

    def answer(self, question_id: str, answers: list[str], note: str) -> list[Effect]:
        """Pass the answer on; running again after the last one."""
        if question_id not in self._state.ledger.questions:
            raise Refused(
                error_reason_pb2.ERROR_REASON_QUESTION_NOT_FOUND,
                "no such question is open; see the session's open questions",
                "question_id",
            )
        self._change()
        written = self._write("answer", id=question_id, answers=answers, note=note)
        return [written, *self._state.answered(question_id)]

    def interrupt(self) -> list[Effect]:
        """End the turn that runs or that a message on its way will start."""
        state = self._state
        if state.between_turns or not state.ready:
            raise Refused(
                error_reason_pb2.ERROR_REASON_TURN_NOT_RUNNING,
                "no turn is running; there is nothing to interrupt",
            )
        self._change()
        effects = state.ledger.withdraw_questions(ev.WITHDRAW_REASON_INTERRUPTED)
        return [*effects, *state.say_state(), self._write("interrupt")]

    def set_model(self, model: str) -> list[Effect]:
        """Ask for a model."""
        return self._set("model", model)

    def set_permission_mode(self, permission_mode: str) -> list[Effect]:
        """Ask for a permission mode."""
        return self._set("mode", permission_mode)

    def set_effort(self, effort: str) -> list[Effect]:
        """Ask for an effort."""
        return self._set("effort", effort)

    def set_title(self, title: str) -> list[Effect]:
        """Tell the title."""
        return self._set("title", title)

    def compact(self, command_id: str, instructions: str) -> list[Effect]:
        """Ask for a compaction: a turn of its own."""
        return [self._request("compact", command_id, instructions=instructions)]

    def clear(self, command_id: str) -> list[Effect]:
        """Ask to forget everything."""
        return [self._request("clear", command_id)]

    def check_command(self, text: str) -> None:
        """Accept the commands on offer, with or without arguments."""
        name = text.removeprefix("/").split(" ", 1)[0]
        if not text.startswith("/") or name not in self._state.commands:
            known = ", ".join(f"/{name}" for name in self._state.commands) or "none yet"
            raise Refused(
                error_reason_pb2.ERROR_REASON_INVALID_FIELD,
                f"not a command of this agent; it has: {known}",
                "run_command.text",
            )

    def run_command(self, command_id: str, text: str) -> list[Effect]:
        """Run a command: a turn of its own."""
        return [self._request("command", command_id, text=text)]

    # --- state ---

    def snapshot(self) -> bytes:
        """Encode the state, unless nothing has changed since the last time."""
        if self._snapshot is None:
            self._snapshot = _encode(self._state)
        return self._snapshot

    def restore(self, snapshot: bytes) -> None:
        """Take the state back."""
        self._state = _decode(snapshot)
        self._snapshot = None

    def _change(self) -> None:
        self._snapshot = None

    def _set(self, name: str, value: str) -> list[Effect]:
        return [self._request("set", "", SETTINGS[name], **{name: value})]

    def _request(self, kind: str, command_id: str, what: str = "", **fields: str) -> Write:
        self._change()
        request = self._state.open_request(what or kind, command_id)
        return self._write(kind, request=request, **fields)

    def _write(self, kind: str, **fields: Any) -> Write:
        return Write(jsonl.encode({"kind": kind, **fields}))


_encode: Callable[[State], bytes] = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], State] = msgspec.msgpack.Decoder(State).decode


def _parse_version(output: str) -> str:
    words = output.split()
    return words[-1] if words[:3] == ["sessiond", "echo", "agent"] else ""


def _program(config: EchoConfig) -> Program:
    return Program(
        executable=config.binary or sys.executable,
        version_args=(*_ISOLATED, str(AGENT), "--version"),
        parse_version=_parse_version,
        install_hint="it comes with sessiond; set drivers.echo.binary to a Python 3.11 or newer",
    )


DRIVER: DriverType[EchoConfig] = DriverType(
    name="echo",
    display_name="Echo",
    config_type=EchoConfig,
    capabilities=_CAPABILITIES,
    create=EchoDriver,
    program=_program,
)
