"""A host for one driver, without I/O: it feeds inputs, keeps what comes out, checks every promise."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import (
    Driver,
    Effect,
    Emit,
    ExitStatus,
    Launch,
    LaunchSpec,
    Message,
    StopPlan,
    Write,
)
from tests.conformance.obligations import Broken, Obligations

__all__ = ["SPEC", "DriverHost", "plain"]

_BETWEEN_TURNS = ("compact", "clear", "run_command")
SPEC = LaunchSpec(session_id="0b0d7c1e-4b0f-4c55-9d0b-000000000001", workspace="/")


def plain(effect: Effect) -> tuple[Any, ...]:
    """Return an effect as something that can be compared."""
    if isinstance(effect, Emit):
        return ("emit", effect.event.SerializeToString(deterministic=True), effect.mark)
    fields = [getattr(effect, name) for name in type(effect).__slots__]
    return (type(effect).__name__.lower(), *fields)


class DriverHost:
    """Runs a driver. `effects` is all that it returned, `reload` has each input meet a restored driver.

    `inputs` is all that it was given, in the form of `steps` (a line as its bytes). Any broken promise
    raises `Broken`; so does an exception that is not a verb's `Refused`.
    """

    def __init__(self, create: Callable[[], Driver], reload: bool = False) -> None:
        self.driver = create()
        self.obligations = Obligations()
        self.effects: list[Effect] = []
        self.inputs: list[tuple[str, Any]] = []
        self._create = create
        self._reload = reload

    # --- what came out ---

    @property
    def events(self) -> list[ev.Event]:
        """All events so far."""
        return [effect.event for effect in self.effects if isinstance(effect, Emit)]

    @property
    def kinds(self) -> list[str]:
        """The kinds of all events so far."""
        return [event.WhichOneof("body") or "" for event in self.events]

    def bodies(self, kind: str) -> list[Any]:
        """Return the bodies of the events of a kind."""
        return [getattr(event, kind) for event in self.events if event.WhichOneof("body") == kind]

    # --- inputs ---

    def launch(self, spec: LaunchSpec = SPEC, resume: bool = False) -> Launch:
        """Start a process, as far as the driver knows."""
        self._input("launch", _launch_fields(spec, resume))
        launch = self.driver.launch(spec, resume)
        if not launch.argv:
            raise Broken("a launch names a program")
        self.obligations.launched()
        self._note(launch.effects)
        return launch

    def line(self, line: bytes) -> list[Effect]:
        """Feed one line of stdout."""
        self._input("line", line)
        try:
            effects = self.driver.line(line)
        except Exception as error:
            raise Broken(f"line() raised {error!r} on {line[:200]!r}") from error
        return self._note(effects)

    def exited(self, status: ExitStatus = ExitStatus(exit_code=0)) -> list[Effect]:  # noqa: B008
        """Tell that the process is gone."""
        self._input(
            "exited",
            {"exit_code": status.exit_code, "signal": status.signal, "stderr_tail": status.stderr_tail},
        )
        self.obligations.exiting()
        effects = self._note(self.driver.exited(status))
        self.obligations.exited()
        return effects

    def adopted(self) -> list[Effect]:
        """Tell that a new host has the living process."""
        self._input("adopted", True)
        return self._note(self.driver.adopted())

    def message(self, message: Message) -> list[Effect]:
        """Hand a message over."""
        self._input("message", _message_fields(message))
        effects = self.driver.message(message)
        self.obligations.handed_over(message.message_id, message.append)
        return self._note(effects)

    def send(self, message_id: str, text: str, append: bool = False) -> list[Effect]:
        """Hand over a message that is only text."""
        return self.message(Message(message_id, text, append=append))

    def unqueue(self, message_id: str) -> list[Effect]:
        """Ask a message back."""
        self._input("unqueue", message_id)
        self.obligations.asked_back(message_id)
        return self._note(self.driver.unqueue(message_id))

    def answer(self, question_id: str, answers: Sequence[str], note: str = "") -> list[Effect]:
        """Answer an open question."""
        self._input("answer", {"question_id": question_id, "answers": list(answers), "note": note})
        effects = self.driver.answer(question_id, list(answers), note)
        self.obligations.answered(question_id)
        return self._note(effects)

    def interrupt(self) -> list[Effect]:
        """Interrupt the turn; no question may be open afterwards."""
        self._input("interrupt", True)
        effects = self._note(self.driver.interrupt())
        if self.obligations.questions:
            raise Broken("interrupt withdraws open questions first")
        return effects

    def set(self, name: str, value: str) -> list[Effect]:
        """Change a setting; `name` is a field of SettingsChanged."""
        self._input("set", {name: value})
        effects: list[Effect] = getattr(self.driver, f"set_{name}")(value)
        self.obligations.asked_setting(name)
        return self._note(effects)

    def compact(self, command_id: str, instructions: str = "") -> list[Effect]:
        """Compact, between turns."""
        self._input("compact", {"command_id": command_id, "instructions": instructions})
        return self._note(self.driver.compact(command_id, instructions))

    def clear(self, command_id: str) -> list[Effect]:
        """Clear, between turns."""
        self._input("clear", {"command_id": command_id})
        effects = self.driver.clear(command_id)
        self.obligations.asked_clear(command_id)
        return self._note(effects)

    def run_command(self, command_id: str, text: str) -> list[Effect]:
        """Run a raw command, between turns."""
        self._input("run_command", {"command_id": command_id, "text": text})
        self.driver.check_command(text)
        return self._note(self.driver.run_command(command_id, text))

    def stop(self) -> StopPlan:
        """Ask how to end the process; carries out the plan's effects."""
        self._input("stop", True)
        plan = self.driver.stop()
        if not (plan.effects or plan.close_stdin or plan.signal):
            raise Broken("a stop plan does something")
        if not 0 < plan.grace <= 60:
            raise Broken(f"a stop plan's grace is bounded, not {plan.grace}")
        self._note(plan.effects)
        return plan

    # --- inside ---

    def _note(self, effects: Sequence[Effect]) -> list[Effect]:
        self.obligations.after(effects, self.driver.between_turns)
        self.effects += effects
        if self.driver.snapshot() != self.driver.snapshot():
            raise Broken("a snapshot is the same when nothing has happened")
        self.written(effects)
        return list(effects)

    def written(self, effects: Sequence[Effect]) -> None:
        """Do with the lines written what a process would; here nothing."""

    def lines_written(self) -> list[bytes]:
        """Return all lines written so far."""
        return [effect.line for effect in self.effects if isinstance(effect, Write)]

    def _input(self, verb: str, given: Any) -> None:
        self.inputs.append((verb, given))
        if self._reload:
            snapshot = self.driver.snapshot()
            self.driver = self._create()
            self.driver.restore(snapshot)
            if self.driver.snapshot() != snapshot:
                raise Broken("a restored driver has the state that was restored")
        if verb in _BETWEEN_TURNS and not self.driver.between_turns:
            raise ValueError("a command is only handed over between turns; the test is wrong")


def _launch_fields(spec: LaunchSpec, resume: bool) -> dict[str, Any]:
    given = {name: getattr(spec, name) for name in LaunchSpec.__slots__}
    return {**{name: value for name, value in given.items() if value}, "resume": resume}


def _message_fields(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"message_id": message.message_id, "text": message.text}
    fields["append"] = message.append
    if message.attachments:
        fields["attachments"] = [
            {
                "ref": file.ref,
                "media_type": file.media_type,
                "filename": file.filename,
                "path": file.path,
                "data": base64.b64encode(file.data).decode(),
            }
            for file in message.attachments
        ]
    return fields
