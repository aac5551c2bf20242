"""The web hook example between a real daemon and a callback, while both sides are killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from sessiond.v1 import session_service_pb2 as api
from sessiond.v1 import session_service_pb2_grpc
from tests.support.daemon import Daemon
from tests.support.waiting import until

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT = 30.0

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")


class Callback:
    """Takes the answers."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        application = web.Application()
        application.router.add_post("/answers", self._take)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/answers"

    async def _take(self, request: web.Request) -> web.Response:
        self.got.append(await request.json())
        return web.Response()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def answer_to(self, delivery: str) -> dict[str, Any]:
        await until(lambda: self.count(delivery), f"{delivery} is answered", _LIMIT)
        return next(a for a in self.got if delivery in a["deliveries"])

    def count(self, delivery: str) -> int:
        return sum(delivery in answer["deliveries"] for answer in self.got)


class Webhook:
    """The backend as a process; it can be killed and started again on the same state."""

    def __init__(self, program: Path, daemon: Daemon, callback: Callback) -> None:
        self._command = [
            str(program),
            "--listen=127.0.0.1:0",
            f"--callback={callback.url}",
            f"--state={daemon.folder / 'webhook.json'}",
            f"--workspace={daemon.workspace}",
        ]
        self._daemon = daemon
        self._url = ""
        self._process: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, env=self._daemon.env, stderr=asyncio.subprocess.PIPE
        )
        assert self._process.stderr is not None
        async with asyncio.timeout(_LIMIT):
            while b"deliveries=" not in (line := await self._process.stderr.readline()):
                assert line, "the backend ended"
        self._url = line.decode().partition("deliveries=")[2].split()[0]
        self._log = asyncio.create_task(self._drain(self._process.stderr))

    async def _drain(self, stream: asyncio.StreamReader) -> None:
        while await stream.readline():
            pass

    async def deliver(self, delivery: str, text: str) -> tuple[int, dict[str, Any]]:
        headers = {"X-Delivery-Id": delivery}
        timeout = aiohttp.ClientTimeout(total=_LIMIT)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(self._url, json={"text": text}, headers=headers) as response,
        ):
            return response.status, json.loads(await response.text())

    async def kill(self) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if self._log is not None:
            await self._log


@pytest_asyncio.fixture(scope="module")
async def program() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sdw") as folder:
        path = Path(folder) / "webhook"
        build = await asyncio.create_subprocess_exec(
            *("go", "build", "-o", str(path), "./clients/go/examples/webhook"), cwd=_ROOT, env=os.environ
        )
        assert await build.wait() == 0
        yield path


@pytest_asyncio.fixture
async def daemon() -> AsyncIterator[Daemon]:
    async with Daemon() as started:
        yield started


@pytest_asyncio.fixture
async def callback() -> AsyncIterator[Callback]:
    taken = Callback()
    await taken.start()
    yield taken
    await taken.stop()


@pytest_asyncio.fixture
async def webhook(program: Path, daemon: Daemon, callback: Callback) -> AsyncIterator[Webhook]:
    backend = Webhook(program, daemon, callback)
    await backend.start()
    yield backend
    await backend.kill()


async def test_a_delivery_is_answered_once(webhook: Webhook, callback: Callback) -> None:
    status, first = await webhook.deliver("d-1", "hello world")
    assert status == 202
    answer = await callback.answer_to("d-1")
    assert answer["text"].split() == ["hello", "world"]
    assert answer["outcome"] == "COMPLETED"

    assert await webhook.deliver("d-1", "hello world") == (202, first)
    status, refusal = await webhook.deliver("d-1", "something else")
    assert status == 409
    assert "request_id" in refusal["error"]
    # A delivery after them is answered, and they were not.
    await webhook.deliver("d-2", "and on")
    await callback.answer_to("d-2")
    assert callback.count("d-1") == 1


async def test_the_backend_is_killed_in_a_turn(webhook: Webhook, callback: Callback) -> None:
    await webhook.deliver("d-1", "first")
    await callback.answer_to("d-1")
    await webhook.deliver("d-2", "!sleep 1\nlate")
    await webhook.deliver("d-3", "waits for its turn")
    await webhook.kill()
    assert callback.count("d-2") == 0

    await webhook.start()
    assert (await callback.answer_to("d-2"))["text"] == "late"
    assert (await callback.answer_to("d-3"))["text"].split() == ["waits", "for", "its", "turn"]
    assert [callback.count(d) for d in ("d-1", "d-2", "d-3")] == [1, 1, 1]


async def test_the_daemon_is_killed_under_it(
    webhook: Webhook, callback: Callback, daemon: Daemon
) -> None:
    await webhook.deliver("d-1", "!sleep 1\nhere still")
    await daemon.kill()
    # It arrives while nobody is there, and waits; when that takes too long it is told to come again.
    delivery = asyncio.create_task(webhook.deliver("d-2", "and this"))
    await daemon.start()
    status, _ = await delivery
    if status == 503:
        status, _ = await webhook.deliver("d-2", "and this")
    assert status == 202
    assert (await callback.answer_to("d-1"))["text"] == "here still"
    assert (await callback.answer_to("d-2"))["text"].split() == ["and", "this"]
    assert [callback.count(d) for d in ("d-1", "d-2")] == [1, 1]


async def test_an_agent_that_exited_is_started_again(
    webhook: Webhook, callback: Callback, daemon: Daemon
) -> None:
    await webhook.deliver("d-1", "!exit")
    await callback.answer_to("d-1")
    await _until_exited(daemon)
    assert (await webhook.deliver("d-2", "and on"))[0] == 202
    assert (await callback.answer_to("d-2"))["text"].split() == ["and", "on"]
    assert [callback.count(d) for d in ("d-1", "d-2")] == [1, 1]


async def _until_exited(daemon: Daemon) -> None:
    async with daemon.channel() as channel, asyncio.timeout(_LIMIT):
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        async for response in stub.Subscribe(api.SubscribeRequest(session_id="webhook")):
            if any(event.HasField("process_exited") for event in response.events):
                return
