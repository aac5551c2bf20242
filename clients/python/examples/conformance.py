"""Carry out the steps of one conformance document; see tests/clients/README.md, section 3.

python conformance.py [FILE]
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf import json_format
from google.protobuf.message import Message

from sessiond.v1 import attachment_service_pb2, event_pb2, server_service_pb2, session_service_pb2
from sessiond_client import (
    Endpoint,
    SessiondClient,
    SessiondError,
    Subscription,
    Tls,
    discover,
    new_request_id,
)

Json: TypeAlias = dict[str, Any]
_CONTRACT = (session_service_pb2, attachment_service_pb2, server_service_pb2)
_DEADLINE_MS = 30_000
_STREAM_DEADLINE_MS = 60_000


class Undoable(Exception):
    """The document asks for something that this program does not know."""


def say(line: Json) -> None:
    """Print one line of JSON, at once."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def to_json(message: Message) -> Json:
    """Return a message in the standard mapping, with the names of the proto file."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def event_json(event: event_pb2.Event) -> Json:
    """Return an event in the shape that results have."""
    kind = event.WhichOneof("body")
    return {
        "seq": str(event.seq),
        "kind": kind or "unknown",
        "request_id": event.request_id,
        "ignorable": event.ignorable,
        "actor": event.actor,
        "body": to_json(getattr(event, kind)) if kind else {},
    }


def give_up(error: SessiondError) -> None:
    """End a subscription that would be resumed."""
    raise error


def error_json(error: SessiondError) -> Json:
    """Return an error in the shape that results have."""
    found: Json = {
        "code": error.code.name,
        "message": error.message,
        "reason": error.reason,
        "metadata": dict(error.metadata),
        "violations": [{"field": v.field, "description": v.description} for v in error.violations],
    }
    if error.retry_after is not None:
        found["retry_delay_ms"] = round(error.retry_after * 1000)
    return found


def resolved(value: Any, results: Json) -> Any:
    """Replace every `$path` by the value that stands there in the results so far."""
    if isinstance(value, dict):
        return {k: resolved(v, results) for k, v in value.items()}
    if isinstance(value, list):
        return [resolved(v, results) for v in value]
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    found: Any = results
    for part in value[1:].split("."):
        try:
            found = found[int(part)] if isinstance(found, list) else found[part]
        except (LookupError, ValueError, TypeError):
            raise Undoable(f"nothing stands at {value}") from None
    return found


class Watch:
    """One `subscribe` step: what it counts, and when it has seen enough."""

    def __init__(self, step: Json, subscription: Subscription) -> None:
        self._step = step
        self._until: Json = step.get("until", {})
        self._subscription = subscription
        self._announce = list(step.get("announce", []))
        self._keep: int = step.get("keep", 0)
        self._seq = self._after = int(step.get("after_seq", "0"))
        self._kinds: dict[str, int] = {}
        self._text = hashlib.sha256()
        self._last: event_pb2.Event | None = None
        self._totals = {"count": 0, "gaps": 0, "repeats": 0, "heartbeats": 0, "text_bytes": 0}
        self._first: str | None = None
        self._events: list[Json] = []
        self.cancelled = False

    async def run(self) -> Json:
        """Read until enough, cancelled, out of time, or the end; return the result."""
        end, error = "OK", None
        try:
            async with asyncio.timeout(self._step.get("deadline_ms", _STREAM_DEADLINE_MS) / 1000):
                if await self._read():
                    end = "DONE"
        except TimeoutError:
            end = "DEADLINE_EXCEEDED"
        except SessiondError as caught:
            end, error = caught.code.name, error_json(caught)
        if self.cancelled and end == "OK":
            end = "CANCELLED"
        return self._result(end, error)

    async def _read(self) -> bool:
        if self._enough(""):
            return True
        async for batch in self._subscription.batches():
            if not batch.events:
                self._totals["heartbeats"] += 1
            for event in batch.events:
                if self._take(event):
                    return True
            if self._subscription.caught_up and "caught_up" in self._announce:
                self._announce.remove("caught_up")
                say({"progress": {"step": self._step["id"], "caught_up": True}})
            if self._enough("") or self._caught_up():
                return True
        return False

    def _take(self, event: event_pb2.Event) -> bool:
        kind = event.WhichOneof("body") or "unknown"
        totals = self._totals
        totals["count"] += 1
        totals["repeats"] += event.seq <= self._seq
        begun = self._first is not None or self._after != 0
        totals["gaps"] += begun and event.seq > self._seq + 1
        self._first = self._first or str(event.seq)
        self._seq = event.seq
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        if kind == "assistant_text":
            text = event.assistant_text.delta.encode()
            self._text.update(text)
            totals["text_bytes"] += len(text)
        if totals["count"] <= self._keep:
            self._events.append(event_json(event))
        self._last = event
        if totals["count"] in self._announce:
            say({"progress": {"step": self._step["id"], "events": totals["count"]}})
        if totals["count"] == self._step.get("cancel_after"):
            self.cancelled = True
            self._subscription.close()
        return self._enough(kind)

    def _enough(self, kind: str) -> bool:
        until = self._until
        return (
            self._totals["count"] >= until.get("count", self._totals["count"] + 1)
            or self._seq >= int(until.get("seq", self._seq + 1))
            or (kind != "" and kind == until.get("kind"))
            or ("heartbeats" in until and self._totals["heartbeats"] >= until["heartbeats"])
            or ("reconnects" in until and self._subscription.reconnects >= until["reconnects"])
        )

    def _caught_up(self) -> bool:
        return bool(self._until.get("caught_up")) and self._subscription.caught_up

    def _result(self, end: str, error: Json | None) -> Json:
        subscription = self._subscription
        result: Json = {
            "end": end,
            **self._totals,
            "last_seq": str(self._seq),
            "head_seq": str(subscription.head_seq),
            "first_seq": str(subscription.first_seq),
            "transcript_id": subscription.transcript_id,
            "caught_up": subscription.caught_up,
            "reconnects": subscription.reconnects,
            "kinds": self._kinds,
            "text_sha256": self._text.hexdigest(),
            "last": event_json(self._last) if self._last is not None else {},
            "events": self._events,
        }
        if self._first is not None:
            result["first"] = self._first
        if error is not None:
            result["error"] = error
        return result


class Program:
    """Two clients of one daemon: one that retries calls, one that never does."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._results: Json = {}
        self._actions: dict[str, Callable[[Json], Awaitable[Json]]] = {
            "call": self._do_call,
            "subscribe": self._do_subscribe,
            "upload": self._do_upload,
            "download": self._do_download,
            "sleep": self._do_sleep,
        }

    async def run(self, steps: list[Json]) -> Json:
        """Carry out the steps in order; return their results."""
        async with (
            SessiondClient(self._endpoint) as self._client,
            SessiondClient(self._endpoint, patience=0) as self._once,
        ):
            for raw in steps:
                step = resolved(raw, self._results)
                if step["do"] not in self._actions:
                    raise Undoable(f"unknown action {step['do']!r}")
                started = time.monotonic()
                result = await self._actions[step["do"]](step)
                result["elapsed_ms"] = round((time.monotonic() - started) * 1000)
                self._results[step["id"]] = result
        return self._results

    async def _do_call(self, step: Json) -> Json:
        client = self._client if step.get("retry") else self._once
        name: str = step["method"]
        request = _request(name)
        json_format.ParseDict(step.get("request", {}), request)
        if step.get("retry") and not getattr(request, "request_id", "set"):
            json_format.ParseDict({"request_id": new_request_id()}, request)
        seconds = step.get("deadline_ms", _DEADLINE_MS) / 1000
        try:
            return {"response": to_json(await client.call(name, request, timeout=seconds))}
        except SessiondError as error:
            return {"error": error_json(error)}

    async def _do_subscribe(self, step: Json) -> Json:
        watchdog = step.get("watchdog_ms")
        subscription = self._client.subscribe(
            step["session_id"],
            int(step.get("after_seq", "0")),
            step.get("transcript_id", ""),
            watchdog=None if watchdog is None else watchdog / 1000,
            on_lost=None if step.get("resume", True) else give_up,
        )
        async with subscription:
            return await Watch(step, subscription).run()

    async def _do_upload(self, step: Json) -> Json:
        size: int = step["size"]
        content = bytes(i % 251 for i in range(size))
        try:
            stored = await self._client.upload_attachment(
                step["session_id"],
                content,
                media_type=step.get("media_type", ""),
                filename=step.get("filename", ""),
            )
        except SessiondError as error:
            return {"error": error_json(error)}
        return {"ref": stored.ref, "size_bytes": str(stored.size_bytes)}

    async def _do_download(self, step: Json) -> Json:
        digest, size, chunks = hashlib.sha256(), 0, 0
        try:
            async for data in self._client.download_attachment(step["session_id"], step["ref"]):
                digest.update(data)
                size, chunks = size + len(data), chunks + 1
        except SessiondError as error:
            return {"error": error_json(error)}
        return {"size_bytes": str(size), "sha256": digest.hexdigest(), "chunks": chunks}

    async def _do_sleep(self, step: Json) -> Json:
        await asyncio.sleep(step["ms"] / 1000)
        return {}


def _request(name: str) -> Message:
    for module in _CONTRACT:
        for service in module.DESCRIPTOR.services_by_name.values():
            method = service.methods_by_name.get(name)
            if method is not None and not method.server_streaming:
                message: Message = getattr(module, method.input_type.name)()
                return message
    raise Undoable(f"there is no unary call {name!r}")


def _endpoint(connection: Json) -> Endpoint:
    ca = connection.get("tls_ca")
    return discover(
        connection.get("address") or None,
        token=connection.get("token") or None,
        token_file=connection.get("token_file") or None,
        tls=Tls(ca_file=Path(ca)) if ca else None,
    )


def main() -> int:
    """Read the document, carry it out, print the results; return the exit code."""
    text = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else sys.stdin.read()
    try:
        document: Json = json.loads(text)
        program = Program(_endpoint(document.get("connection", {})))
        say({"results": asyncio.run(program.run(document["steps"]))})
    except (Undoable, ValueError, KeyError) as error:
        sys.stderr.write(f"conformance: {error!r}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
