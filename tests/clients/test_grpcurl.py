"""The two command-line tools for gRPC, as people debug with them: by reflection, over socket and TCP."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf import json_format, message_factory

from sessiond.v1 import attachment_service_pb2, server_service_pb2, session_service_pb2
from tests.support.daemon import Daemon
from tests.support.session import Watched, watched

_LIMIT = 30.0
_PROTO = Path(__file__).resolve().parents[2] / "proto"
_STREAMS = {"Subscribe", "ReadAttachment"}
_SERVICES = [
    service
    for module in (session_service_pb2, attachment_service_pb2, server_service_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]


@dataclass(frozen=True)
class Said:
    """What a tool wrote, and how it ended."""

    out: str
    err: str
    code: int

    def objects(self) -> list[Any]:
        """Return the JSON values of its output, which follow each other without commas."""
        decoder, rest, found = json.JSONDecoder(), self.out.lstrip(), []
        while rest:
            value, end = decoder.raw_decode(rest)
            found.append(value)
            rest = rest[end:].lstrip()
        return found


class _Tool(ABC):
    """One tool over one transport. Without a `schema` it asks the daemon's reflection."""

    def __init__(self, daemon: Daemon, transport: str, schema: tuple[str, ...] = ()) -> None:
        self.schema = schema
        self.daemon = daemon
        self.unix = transport == "unix"
        self.header = f"authorization: Bearer {daemon.token}"

    async def _run(self, *command: str) -> Said:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(_LIMIT):
            out, err = await process.communicate()
        return Said(out.decode(), err.decode(), process.returncode or 0)

    @abstractmethod
    def streaming(self, method: str, data: dict[str, Any]) -> list[str]:
        """Return the command that makes a streaming call."""

    async def follow(self, method: str, data: dict[str, Any], until: str) -> Said:
        """Read a stream until `until` was printed, then end the tool as Ctrl-C does."""
        process = await asyncio.create_subprocess_exec(
            *self.streaming(method, data),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        out = ""
        async with asyncio.timeout(_LIMIT):
            while until not in out:
                data_read = await process.stdout.read(65536)
                assert data_read, out
                out += data_read.decode()
            process.send_signal(signal.SIGINT)
            rest, err = await process.communicate()
        return Said(out + rest.decode(), err.decode(), process.returncode or 0)


class Grpcurl(_Tool):
    # It knows nothing of how protobuf's JSON writes a field mask.
    labels_mask: object = {"paths": ["labels"]}

    def command(self, verb: str, data: dict[str, Any] | None = None) -> list[str]:
        access = [] if self.unix else ["-H", self.header]
        body = [] if data is None else ["-d", json.dumps(data)]
        where = self.daemon.unix if self.unix else self.daemon.tcp
        return ["grpcurl", "-plaintext", *access, *body, where, *verb.split()]

    async def run(self, verb: str, data: dict[str, Any] | None = None) -> Said:
        return await self._run(*self.command(verb, data))

    async def call(self, method: str, data: dict[str, Any]) -> Said:
        return await self.run(method, data=data)

    def streaming(self, method: str, data: dict[str, Any]) -> list[str]:
        return self.command(method, data=data)

    async def methods(self) -> list[str]:
        services = (await self.run("list")).out.split()
        listed = [(await self.run(f"list {s}")).out.split() for s in services if "sessiond" in s]
        return [method for methods in listed for method in methods]


class BufCurl(_Tool):
    labels_mask: object = "labels"

    def command(self, path: str, *options: str) -> list[str]:
        program = str(Path(sys.executable).with_name("buf"))
        access = ["--unix-socket", self.daemon.unix.removeprefix("unix:")]
        if not self.unix:
            access = ["-H", self.header]
            access += [] if self.schema else ["--reflect-header", "*"]
        base = "http://localhost" if self.unix else f"http://{self.daemon.tcp}"
        fixed = ["--protocol", "grpc", "--http2-prior-knowledge"]
        return [program, "curl", *fixed, *access, *options, f"{base}{path}"]

    async def call(self, method: str, data: dict[str, Any]) -> Said:
        return await self._run(*self.streaming(method, data))

    def streaming(self, method: str, data: dict[str, Any]) -> list[str]:
        service, _, name = method.rpartition(".")
        return self.command(f"/{service}/{name}", *self.schema, "-d", json.dumps(data))

    async def methods(self) -> list[str]:
        listed = (await self._run(*self.command("", "--list-methods"))).out.split()
        return [method.replace("/", ".") for method in listed if method.startswith("sessiond.")]


_TOOLS: dict[str, type[Grpcurl | BufCurl]] = {"grpcurl": Grpcurl, "buf curl": BufCurl}


@pytest_asyncio.fixture(scope="module")
async def daemon() -> AsyncIterator[Daemon]:
    async with Daemon() as started:
        yield started


@pytest_asyncio.fixture
async def session(daemon: Daemon) -> AsyncIterator[Watched]:
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as opened:
        yield opened


needs_grpcurl = pytest.mark.skipif(shutil.which("grpcurl") is None, reason="grpcurl is not installed")


@pytest.fixture(params=[(name, by) for name in _TOOLS for by in ("unix", "tcp")], ids=" over ".join)
def tool(request: pytest.FixtureRequest, daemon: Daemon) -> Grpcurl | BufCurl:
    name, transport = request.param
    if name == "grpcurl" and shutil.which("grpcurl") is None:
        pytest.skip("grpcurl is not installed")
    return _TOOLS[name](daemon, transport)


_METHODS = {f"{s.full_name}.{m.name}": m for s in _SERVICES for m in s.methods}


async def test_lists_every_call(tool: Grpcurl | BufCurl) -> None:
    assert set(await tool.methods()) == set(_METHODS)


@pytest.mark.parametrize("transport", ["unix", "tcp"])
@needs_grpcurl
async def test_describes_the_contract(daemon: Daemon, transport: str) -> None:
    tool = Grpcurl(daemon, transport)
    service = await tool.run("describe sessiond.v1.SessionService")
    assert "rpc Subscribe ( .sessiond.v1.SubscribeRequest ) returns ( stream .sessiond.v1" in service.out
    event = await tool.run("describe .sessiond.v1.Event")
    assert "oneof body" in event.out
    assert ".sessiond.v1.ErrorRaised error_raised = 45;" in event.out


async def test_makes_every_unary_call(tool: Grpcurl | BufCurl, session: Watched) -> None:
    """One life of a session, told by a tool; each answer is checked for what only that call can say."""
    made: set[str] = set()

    async def call(name: str, **request: Any) -> Any:
        method = next(m for m in _METHODS if m.endswith(f".{name}"))
        said = await tool.call(method, request)
        assert said.code == 0, said.err
        made.add(method)
        # grpcurl writes the names of the proto file, buf curl those of JSON: a message knows both.
        answer = message_factory.GetMessageClass(_METHODS[method].output_type)()
        return json_format.ParseDict(said.objects()[0], answer)

    await _make_calls(call, session, tool.labels_mask)
    assert made == {m for m in _METHODS if m.rpartition(".")[2] not in _STREAMS}


async def _make_calls(call: Any, session: Watched, mask: object) -> None:
    workspace = (await session.get()).workspace
    own = (await call("CreateSession", driver="echo", workspace=workspace, title="by hand")).session
    mine = own.session_id
    info = await call("GetServerInfo")
    assert "echo" in [driver.name for driver in info.drivers]
    labels = {"by": "hand", "id": mine}
    await call("UpdateSession", session={"sessionId": mine, "labels": labels}, updateMask=mask)
    assert [s.session_id for s in (await call("ListSessions", labels=labels)).sessions] == [mine]
    assert (await call("GetSession", sessionId=mine)).session.labels == labels
    assert (await call("Control", sessionId=mine, setTitle={"title": "still by hand"})).seq > 0

    target = {"sessionId": session.session_id}
    busy = await call("Send", **target, text='!ask "Go on?" [Yes|No]')
    asked = await session.until("question_asked")
    first = await call("Send", **target, text="one", delivery="DELIVERY_NEXT_TURN")
    second = await call("Send", **target, text="two", delivery="DELIVERY_NEXT_TURN")
    edited = await call("EditMessage", **target, messageId=first.message_id, text="ONE")
    assert edited.seq > second.seq > first.seq > busy.seq
    moved = {"messageId": second.message_id, "beforeMessageId": first.message_id}
    assert (await call("MoveMessage", **target, **moved)).seq > edited.seq
    dropped = await call("Unqueue", **target, messageId=second.message_id)
    assert dropped.outcome == session_service_pb2.UNQUEUE_OUTCOME_DROPPED
    await call("Answer", **target, questionId=asked.question_asked.question_id, answers=["Yes"])
    await session.until("turn_ended", after=busy.seq)
    assert len((await call("ListEvents", **target, pageSize=3)).events) == 3

    # "hello", its digest, and its bytes as the JSON of protobuf writes them.
    digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    chunk = {"uploadId": "u", "data": "aGVsbG8=", "finish": True, "sha256": digest}
    assert (await call("WriteAttachment", **target, **chunk)).attachment.size_bytes == 5
    assert (await call("GetAttachment", **target, ref=digest)).attachment.ref == digest
    await call("DeleteSession", sessionId=mine)


async def test_shows_why_a_call_was_refused(tool: Grpcurl | BufCurl) -> None:
    said = await tool.call("sessiond.v1.SessionService.GetSession", {"sessionId": "nobody"})
    assert said.code != 0
    if isinstance(tool, BufCurl):
        failure = json.loads(said.err[said.err.index("{") :])
        assert failure["code"] == "not_found"
        assert failure["details"][0]["type"] == "google.rpc.ErrorInfo"
    else:
        assert "Code: NotFound" in said.err
        assert '"reason": "SESSION_NOT_FOUND"' in said.err
        assert '"domain": "sessiond"' in said.err


async def test_follows_a_session(tool: Grpcurl | BufCurl, session: Watched) -> None:
    await session.run("one two three")
    seen = len(session.events)
    request = {"sessionId": session.session_id, "afterSeq": "1"}
    last = f'"seq": "{seen}"'
    said = await tool.follow("sessiond.v1.SessionService.Subscribe", request, until=last)
    events = [event for response in said.objects() for event in response.get("events", [])]
    assert [int(event["seq"]) for event in events] == list(range(2, seen + 1))
    # grpcurl writes the names of the proto file, buf curl those of JSON.
    text = "".join(e.get("assistantText", e.get("assistant_text", {})).get("delta", "") for e in events)
    assert text.split() == ["one", "two", "three"]


async def test_reads_an_attachment(tool: Grpcurl | BufCurl, session: Watched) -> None:
    await session.run("!file bytes=10 type=text/plain ten.txt")
    added = await session.until("attachment_added")
    request = {"sessionId": session.session_id, "ref": added.attachment_added.attachment.ref}
    said = await tool.call("sessiond.v1.AttachmentService.ReadAttachment", request)
    assert said.code == 0, said.err
    assert len(said.objects()) == 1


async def test_tcp_wants_the_token(daemon: Daemon) -> None:
    for name, kind in _TOOLS.items():
        if name == "grpcurl" and shutil.which("grpcurl") is None:
            continue
        schema = ("--schema", str(_PROTO)) if kind is BufCurl else ()
        tool = kind(daemon, "tcp", schema)
        tool.header = "authorization: Bearer guessed"
        said = await tool.call("sessiond.v1.ServerService.GetServerInfo", {})
        assert said.code != 0
        assert "unauthenticated" in said.err.lower()
