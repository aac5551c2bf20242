"""The daemon as a process: start, restart, kill, drain, second start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from typing import TypeAlias, cast

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_status import rpc_status

from sessiond.v1 import server_service_pb2, server_service_pb2_grpc
from sessiond.v1 import session_service_pb2 as api
from sessiond.v1 import session_service_pb2_grpc as api_grpc
from tests.support.daemon import Daemon
from tests.support.waiting import until

Subscription: TypeAlias = "grpc.aio.UnaryStreamCall[api.SubscribeRequest, api.SubscribeResponse]"


def reason_of(error: grpc.aio.AioRpcError) -> str:
    status = rpc_status.from_call(cast(grpc.Call, error))
    info = error_details_pb2.ErrorInfo()
    assert status is not None, error
    assert status.details[0].Unpack(info)
    assert info.domain == "sessiond"
    return str(info.reason)


async def create(daemon: Daemon, channel: grpc.aio.Channel) -> str:
    sessions = api_grpc.SessionServiceStub(channel)
    request = api.CreateSessionRequest(driver="echo", workspace=str(daemon.workspace))
    return (await sessions.CreateSession(request, timeout=20)).session.session_id


async def drained(stream: Subscription) -> list[api.SubscribeResponse]:
    """Read a stream to its end."""
    return [response async for response in stream]


async def test_it_tells_what_it_is_over_both_addresses(daemon: Daemon) -> None:
    authorization = (("authorization", f"Bearer {daemon.token}"),)
    for target, metadata in ((daemon.unix, ()), (daemon.tcp, authorization)):
        async with daemon.channel(target) as channel:
            stub = server_service_pb2_grpc.ServerServiceStub(channel)
            request = server_service_pb2.GetServerInfoRequest()
            info = await stub.GetServerInfo(request, metadata=metadata, timeout=10)
        assert info.server_id
        assert [(d.name, d.available) for d in info.drivers if d.name == "echo"] == [("echo", True)]
        assert info.limits.max_queue_length == 100


async def test_the_server_id_stays_over_a_restart(daemon: Daemon) -> None:
    async def server_id() -> str:
        async with daemon.channel() as channel:
            stub = server_service_pb2_grpc.ServerServiceStub(channel)
            request = server_service_pb2.GetServerInfoRequest()
            return (await stub.GetServerInfo(request, timeout=10)).server_id

    before = await server_id()
    await daemon.restart()
    assert await server_id() == before


async def test_a_second_daemon_refuses_and_the_first_goes_on(daemon: Daemon) -> None:
    command = daemon.command()
    second = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE, env=daemon.env)
    async with asyncio.timeout(20):
        _, said = await second.communicate()
    assert second.returncode == 1
    assert f"another sessiond (pid {daemon.pid}) uses {daemon.data_dir}".encode() in said
    async with daemon.channel() as channel:
        await create(daemon, channel)


async def test_a_killed_daemon_leaves_nothing_in_the_way(daemon: Daemon) -> None:
    for _ in range(3):
        await daemon.restart(signal.SIGKILL)
    async with daemon.channel() as channel:
        assert await create(daemon, channel)


async def test_drain_ends_subscribers_with_a_time_to_retry_and_keeps_the_agent(daemon: Daemon) -> None:
    async with daemon.channel() as channel:
        session_id = await create(daemon, channel)
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        health = watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert (await anext(aiter(health))).status == health_pb2.HealthCheckResponse.SERVING
        stub = api_grpc.SessionServiceStub(channel)
        stream = stub.Subscribe(api.SubscribeRequest(session_id=session_id), timeout=60)
        assert (await anext(aiter(stream))).events
        began = asyncio.get_running_loop().time()
        stopping = asyncio.create_task(daemon.stop())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await drained(stream)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert reason_of(caught.value) == "SERVER_DRAINING"
        assert (await anext(aiter(health))).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await stopping == 0
        # Neither the stream nor the health watcher made it wait for its grace period.
        assert asyncio.get_running_loop().time() - began < 4
    assert not (daemon.runtime_dir / "address.json").exists()
    await daemon.start()
    async with daemon.channel() as channel:
        stub = api_grpc.SessionServiceStub(channel)
        stream = stub.Subscribe(api.SubscribeRequest(session_id=session_id), timeout=30)
        kinds: list[str | None] = []
        while "process_adopted" not in kinds:
            kinds += [event.WhichOneof("body") for event in (await anext(aiter(stream))).events]
        stream.cancel()
        assert kinds.count("process_started") == 1
        assert "process_exited" not in kinds


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_other_signals_stop_it_gently_too(daemon: Daemon, number: signal.Signals) -> None:
    os.kill(daemon.pid, number)
    await until(lambda: not daemon.running, "it has ended")
    assert await daemon.stop() == 0
    assert "stopped" in daemon.log().splitlines()[-1]


async def test_a_second_signal_ends_it_at_once() -> None:
    async with Daemon(settings={"drain_grace": "600"}) as daemon, daemon.channel() as channel:
        # A call that goes on: it has the whole grace period.
        reflect: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        )
        call = reflect(timeout=60)
        await call.write(b"\x3a\x00")
        assert await call.read()
        stopping = asyncio.create_task(daemon.stop())
        await until(lambda: "draining" in daemon.log(), "it drains")
        assert await daemon.stop() == -signal.SIGTERM
        await stopping
        call.cancel()


@pytest.mark.parametrize("level", ["info", "debug"])
async def test_an_address_in_use_is_named(daemon: Daemon, level: str) -> None:
    taken = daemon.tcp
    other = Daemon()
    other.settings |= {"listen": f'["{other.unix}", "{taken}"]', "log.level": f'"{level}"'}
    command = [part for part in other.command() if not part.startswith("--listen")]
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=other.env
        )
        async with asyncio.timeout(20):
            _, said = await process.communicate()
        left = [path.name for path in other.runtime_dir.glob("*.sock")]
    finally:
        await other.close()
    assert process.returncode == 1
    assert said.decode().splitlines()[-1].startswith(f"sessiond: listen: can't bind {taken}")
    assert left == []


async def test_doctor_sees_the_daemon_and_the_driver(daemon: Daemon) -> None:
    def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from sessiond_server.main import main; main()", "doctor"]
        directories = [f"--data-dir={daemon.data_dir}", f"--runtime-dir={daemon.runtime_dir}"]
        return subprocess.run(
            [*command, *directories, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env=daemon.env,
        )

    healthy = await asyncio.to_thread(doctor)
    assert healthy.returncode == 0, healthy.stdout
    assert f"ok    daemon: running, pid {daemon.pid}" in healthy.stdout
    assert "ok    driver echo:" in healthy.stdout
    sick = await asyncio.to_thread(doctor, "--set=drivers.echo.binary=no-such-program")
    assert sick.returncode == 1
    assert "wrong driver echo: no-such-program was not found" in sick.stdout


async def test_logs_never_hold_what_was_said(daemon: Daemon) -> None:
    async with daemon.channel() as channel:
        session_id = await create(daemon, channel)
        stub = api_grpc.SessionServiceStub(channel)
        request = api.SendRequest(session_id=session_id, text="a-secret-text")
        await stub.Send(request, timeout=10)
    async with daemon.channel(daemon.tcp) as channel:
        stub = api_grpc.SessionServiceStub(channel)
        metadata = (("authorization", "Bearer a-secret-token"),)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stub.GetSession(
                api.GetSessionRequest(session_id=session_id), metadata=metadata, timeout=10
            )
    await daemon.stop()
    log = daemon.log()
    assert "UNAUTHENTICATED" in log
    assert "a-secret" not in log
    assert daemon.token not in log
