"""A driver for Claude Code, spoken to in its agent's records."""

from __future__ import annotations

import json
from typing import Any

from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import Effect, LaunchSpec, Write
from tests.conformance.drivers import create
from tests.conformance.host import SPEC, DriverHost

__all__ = ["Talk"]

_USAGE = {"input_tokens": 10, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 1}


class Talk(DriverHost):
    """A host that says what the program would. `lifecycle`: as newer versions do."""

    def __init__(self, lifecycle: bool = True, **config: Any) -> None:
        super().__init__(lambda: create("claude", **config))
        self.lifecycle = lifecycle
        self.native = "11111111-0000-4000-8000-000000000000"

    # --- from the program ---

    def say(self, **record: Any) -> list[Effect]:
        """Feed one record."""
        return self.line(json.dumps(record).encode())

    def system(self, subtype: str, **fields: Any) -> list[Effect]:
        """Feed a system record."""
        return self.say(type="system", subtype=subtype, **fields)

    def respond(
        self, subtype: str, failed: str = "", beside: Any = None, **payload: Any
    ) -> list[Effect]:
        """Answer the newest request of that subtype; `failed` is the error instead."""
        request_id = [r["request_id"] for r in self.requests(subtype)][-1]
        body: dict[str, Any] = {"subtype": "success", "request_id": request_id, "response": payload}
        if failed:
            body = {"subtype": "error", "request_id": request_id, "error": failed}
        return self.say(type="control_response", response=body | (beside or {}))

    def ready(self, spec: LaunchSpec = SPEC, resume: bool = False, **payload: Any) -> None:
        """Start the program and let it answer the opening request."""
        self.launch(spec, resume)
        self.respond("initialize", **payload)
        self.respond("get_settings", failed="not now")

    def idle(self) -> None:
        """Say that it is idle."""
        self.system("session_state_changed", state="idle")

    def begin(self, message_id: str = "", **fields: Any) -> None:
        """Begin a turn, of a message if one is named."""
        self.system("session_state_changed", state="running")
        if self.lifecycle and message_id:
            native = self.users()[-1]["uuid"] if message_id == "newest" else message_id
            self.say(type="command_lifecycle", command_uuid=native, state="started")
        init = {"session_id": self.native, "model": "opus", "permissionMode": "default"}
        self.system("init", **(init | fields))

    def turn(self, message_id: str = "m1") -> None:
        """Hand a message over and begin its turn."""
        self.send(message_id, "hello")
        self.begin("newest")

    def stream(self, text: str, message_id: str = "msg", index: int = 0) -> None:
        """Begin a message of the model and say a piece of it."""
        message = {"id": message_id, "usage": _USAGE}
        self.event(type="message_start", message=message)
        self.delta(text, index)

    def event(self, **event: Any) -> list[Effect]:
        """Feed a stream event."""
        return self.say(type="stream_event", event=event, parent_tool_use_id=None)

    def delta(self, text: str, index: int = 0) -> None:
        """Say a piece of text."""
        delta = {"type": "text_delta", "text": text}
        self.event(type="content_block_delta", index=index, delta=delta)

    def assistant(self, *blocks: dict[str, Any], message_id: str = "msg", **fields: Any) -> list[Effect]:
        """Feed a whole line of the model."""
        message = {"id": message_id, "model": fields.pop("model", "opus"), "content": list(blocks)}
        return self.say(type="assistant", message=message, **fields)

    def use(
        self, tool_id: str = "t1", tool: str = "Bash", parent: str = "", **given: Any
    ) -> list[Effect]:
        """Feed a tool call."""
        block = {"type": "tool_use", "id": tool_id, "name": tool, "input": given}
        return self.assistant(block, message_id=f"msg-{tool_id}", parent_tool_use_id=parent or None)

    def used(self, tool_id: str = "t1", content: Any = "done", **fields: Any) -> list[Effect]:
        """Feed a tool's result."""
        block = {"type": "tool_result", "tool_use_id": tool_id, "content": content}
        block |= {"is_error": fields.pop("is_error", False)}
        return self.say(type="user", message={"role": "user", "content": [block]}, **fields)

    def asks(
        self, request_id: str = "q1", tool_id: str = "t1", tool: str = "Bash", **fields: Any
    ) -> None:
        """Feed a permission request."""
        request = {"subtype": "can_use_tool", "tool_name": tool, "tool_use_id": tool_id, "input": {}}
        self.say(type="control_request", request_id=request_id, request=request | fields)

    def result(self, **fields: Any) -> list[Effect]:
        """Feed a turn's end."""
        default = {"subtype": "success", "is_error": False, "num_turns": 1, "duration_ms": 5}
        return self.say(type="result", **(default | fields))

    def end(self, **fields: Any) -> None:
        """Feed a turn's end and be idle."""
        self.result(**fields)
        self.idle()

    # --- to the program ---

    def sent(self) -> list[dict[str, Any]]:
        """All lines written so far."""
        return [json.loads(effect.line) for effect in self.effects if isinstance(effect, Write)]

    def users(self) -> list[dict[str, Any]]:
        """The user lines written so far."""
        return [record for record in self.sent() if record["type"] == "user"]

    def requests(self, subtype: str) -> list[dict[str, Any]]:
        """The control requests of that subtype written so far."""
        records = [r for r in self.sent() if r["type"] == "control_request"]
        return [r for r in records if r["request"]["subtype"] == subtype]

    def replies(self) -> list[dict[str, Any]]:
        """The answers to control requests written so far."""
        return [r["response"] for r in self.sent() if r["type"] == "control_response"]

    def text(self) -> str:
        """All assistant text so far."""
        return "".join(body.delta for body in self.bodies("assistant_text"))

    def ended(self) -> ev.TurnEnded:
        """The last turn's end."""
        body: ev.TurnEnded = self.bodies("turn_ended")[-1]
        return body
