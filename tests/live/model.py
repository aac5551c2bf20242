"""A scripted stand-in for a model's Messages API, on loopback.

A script is a list of replies, used up in order. A reply may wait for a `gate`, break off, or be an
error; `match` reserves it for requests whose newest user message holds that text, so that a sub-agent
and the main conversation can share one script. Requests that offer no tools (titles, summaries) take
only replies with `aux`, else a fixed text.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, TypeAlias

__all__ = ["Model", "Reply", "Request", "failing", "say", "think", "use"]

Block: TypeAlias = dict[str, Any]

_TICK = 0.02
_BOUND = 60.0
_USAGE = {
    "input_tokens": 100,
    "cache_creation_input_tokens": 20,
    "cache_read_input_tokens": 3000,
    "output_tokens": 10,
    "service_tier": "standard",
}
_EXHAUSTED = "the script has no more replies"


def say(text: str) -> Block:
    """Return a block of text."""
    return {"type": "text", "text": text}


def think(text: str) -> Block:
    """Return a block of reasoning."""
    return {"type": "thinking", "thinking": text, "signature": "c2lnbmF0dXJl"}


def use(tool: str, **given: Any) -> Block:
    """Return a tool call; its id is made when it is sent."""
    return {"type": "tool_use", "name": tool, "input": given}


@dataclass
class Reply:
    """What the model answers once (or `times` times).

    `gate`: wait for it before the delta number `gate_at` (0: before the first); the stream is open
    meanwhile. `drop_at`: cut the connection after that many deltas. `status`: an HTTP error with `error`
    (type, message) instead. `chunk`: characters in a delta.
    """

    blocks: Sequence[Block] = ()
    gate: threading.Event | None = None
    gate_at: int = 1
    drop_at: int = -1
    status: int = 0
    error: tuple[str, str] = ("api_error", "scripted error")
    headers: Mapping[str, str] = field(default_factory=dict)
    match: str = ""
    aux: bool = False
    chunk: int = 20
    stop_reason: str = ""
    times: int = 1


def failing(status: int, kind: str, message: str, times: int = 1) -> Reply:
    """Return an error of the API."""
    return Reply(status=status, error=(kind, message), times=times)


@dataclass
class Request:
    """One request as it came."""

    number: int
    body: dict[str, Any]

    @property
    def messages(self) -> str:
        """The conversation as JSON."""
        return json.dumps(self.body.get("messages", []), ensure_ascii=False)

    @property
    def newest(self) -> str:
        """The newest user message as JSON."""
        users = [m for m in self.body.get("messages", []) if m.get("role") == "user"]
        return json.dumps(users[-1:], ensure_ascii=False)


class Model:
    """The endpoint. As a context manager it serves."""

    def __init__(self, *script: Reply) -> None:
        self.script = list(script)
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is printed."""

            def do_GET(self) -> None:
                _Answer(model, self, {}).send()

            do_HEAD = do_GET

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                _Answer(model, self, json.loads(self.rfile.read(length) or b"{}")).send()

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that goes away is an everyday thing here."""

        self._server = Server(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(_TICK,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reply in self.script:
            if reply.gate is not None:
                reply.gate.set()
        self._server.shutdown()
        self._server.server_close()

    def asked(self, text: str) -> int:
        """Return how many requests hold `text` in their conversation."""
        return sum(text in request.messages for request in self.requests)

    def take(self, body: dict[str, Any]) -> tuple[Request, Reply]:
        """Note a request and choose its reply."""
        with self._lock:
            request = Request(len(self.requests), body)
            self.requests.append(request)
            aux = not body.get("tools")
            for reply in self.script:
                if reply.times > 0 and reply.aux == aux and reply.match in request.newest:
                    reply.times -= 1
                    return request, reply
        return request, Reply([say(_EXHAUSTED)])


class _Answer:
    """One exchange."""

    def __init__(self, model: Model, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        self.model = model
        self.handler = handler
        self.body = body
        self.sent = 0

    def send(self) -> None:
        path = self.handler.path.split("?")[0]
        if path.endswith("/count_tokens"):
            self._json(200, {"input_tokens": 1234})
        elif not path.endswith("/v1/messages"):
            self._json(404, _error("not_found_error", "nothing here"))
        else:
            request, reply = self.model.take(self.body)
            if reply.status:
                self._json(reply.status, _error(*reply.error), reply.headers)
            elif self.body.get("stream"):
                self._stream(request, reply)
            else:
                self._json(200, self._message(request, reply) | {"content": _blocks(request, reply)})

    def _json(self, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self._head(
            status, {"content-type": "application/json", "content-length": str(len(data))}, headers
        )
        if self.handler.command != "HEAD":
            self.handler.wfile.write(data)

    def _head(self, status: int, *headers: Mapping[str, str] | None) -> None:
        self.handler.send_response(status)
        for group in headers:
            for name, value in (group or {}).items():
                self.handler.send_header(name, value)
        self.handler.end_headers()

    def _message(self, request: Request, reply: Reply) -> dict[str, Any]:
        tools = any(block["type"] == "tool_use" for block in reply.blocks)
        return {
            "id": f"msg_{request.number:04d}",
            "type": "message",
            "role": "assistant",
            "model": self.body.get("model", "scripted"),
            "content": [],
            "stop_reason": reply.stop_reason or ("tool_use" if tools else "end_turn"),
            "stop_sequence": None,
            "usage": dict(_USAGE),
        }

    def _stream(self, request: Request, reply: Reply) -> None:
        self.handler.close_connection = True
        self._head(200, {"content-type": "text/event-stream", "connection": "close"}, reply.headers)
        message = self._message(request, reply)
        stop_reason, message["stop_reason"] = message["stop_reason"], None
        message["usage"]["output_tokens"] = 1
        self._event({"type": "message_start", "message": message})
        for index, block in enumerate(_blocks(request, reply)):
            if not self._block(index, block, reply):
                return
        self._event({
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": None},
            "usage": {"output_tokens": _USAGE["output_tokens"]},
        })  # fmt: skip
        self._event({"type": "message_stop"})

    def _block(self, index: int, block: Block, reply: Reply) -> bool:
        start, field_name, text, delta = _pieces(block)
        self._event({"type": "content_block_start", "index": index, "content_block": start})
        for at in range(0, len(text), reply.chunk):
            if reply.gate is not None and self.sent == reply.gate_at:
                self._wait(reply.gate)
            piece = {"type": delta, field_name: text[at : at + reply.chunk]}
            self._event({"type": "content_block_delta", "index": index, "delta": piece})
            self.sent += 1
            if self.sent == reply.drop_at:
                self.handler.connection.shutdown(socket.SHUT_RDWR)
                return False
        if delta == "thinking_delta":
            signature = {"type": "signature_delta", "signature": block["signature"]}
            self._event({"type": "content_block_delta", "index": index, "delta": signature})
        self._event({"type": "content_block_stop", "index": index})
        return True

    def _event(self, event: dict[str, Any]) -> None:
        self.handler.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        self.handler.wfile.flush()

    def _wait(self, gate: threading.Event) -> None:
        end = time.monotonic() + _BOUND
        while not gate.wait(_TICK):
            if self._gone() or time.monotonic() > end:
                raise BrokenPipeError

    def _gone(self) -> bool:
        connection: socket.socket = self.handler.connection
        connection.setblocking(False)
        try:
            return not connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True
        finally:
            connection.setblocking(True)


def _blocks(request: Request, reply: Reply) -> list[Block]:
    made: list[Block] = []
    for index, block in enumerate(reply.blocks):
        number = f"toolu_{request.number:04d}{index}"
        made.append({**block, "id": number} if block["type"] == "tool_use" else block)
    return made


def _pieces(block: Block) -> tuple[Block, str, str, str]:
    if block["type"] == "tool_use":
        start = {**block, "input": {}}
        return start, "partial_json", json.dumps(block["input"]), "input_json_delta"
    if block["type"] == "thinking":
        start = {"type": "thinking", "thinking": "", "signature": ""}
        return start, "thinking", block["thinking"], "thinking_delta"
    return {"type": "text", "text": ""}, "text", block["text"], "text_delta"


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}
