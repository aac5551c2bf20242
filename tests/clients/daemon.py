"""The real daemon of a scenario, with the echo driver: what `prepare` and `during` do to it.

Actions on `session`: `{"do": "create"}`, `{"do": "send", "text": SCRIPT}`, `{"do": "run", "text":
SCRIPT}` (and wait for the end of the turn), `{"do": "delete"}`. On the daemon: `{"do": "restart",
"how": "SIGKILL" or "SIGTERM"}`, `{"do": "stop"}`.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import grpc

from sessiond.v1 import session_service_pb2 as api
from sessiond.v1 import session_service_pb2_grpc
from tests.support.daemon import Daemon

__all__ = ["Place", "act"]

_TIMEOUT = 60.0


class Place:
    """Where a daemon is: what a client needs to know."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.unix = daemon.runtime_dir / "sessiond.sock"
        self.port = int(daemon.tcp.rpartition(":")[2])
        self.token_file = daemon.runtime_dir / "token"
        self.workspace: Path = daemon.workspace


async def act(daemon: Daemon, action: dict[str, Any]) -> None:
    """Carry out one action; raises what its call raises."""
    match action["do"]:
        case "restart":
            await daemon.restart(signal.Signals[action["how"]])
        case "stop":
            await daemon.stop()
        case _:
            async with daemon.channel() as channel:
                stub = session_service_pb2_grpc.SessionServiceStub(channel)
                await _on_session(stub, daemon, action)


async def _on_session(
    stub: session_service_pb2_grpc.SessionServiceAsyncStub, daemon: Daemon, action: dict[str, Any]
) -> None:
    session: str = action["session"]
    match action["do"]:
        case "create":
            create = api.CreateSessionRequest(
                session_id=session, driver="echo", workspace=str(daemon.workspace)
            )
            await stub.CreateSession(create, timeout=_TIMEOUT)
        case "delete":
            await stub.DeleteSession(api.DeleteSessionRequest(session_id=session), timeout=_TIMEOUT)
        case "send":
            await stub.Send(api.SendRequest(session_id=session, text=action["text"]), timeout=_TIMEOUT)
        case "run":
            send = api.SendRequest(session_id=session, text=action["text"])
            sent = await stub.Send(send, timeout=_TIMEOUT)
            await _until_turn_ended(stub, session, sent.seq)
        case unknown:
            raise ValueError(f"unknown action {unknown!r}")


async def _until_turn_ended(
    stub: session_service_pb2_grpc.SessionServiceAsyncStub, session: str, seq: int
) -> None:
    request = api.SubscribeRequest(session_id=session, after_seq=seq)
    call = stub.Subscribe(request, timeout=_TIMEOUT)
    async for response in call:
        if any(event.WhichOneof("body") == "turn_ended" for event in response.events):
            call.cancel()
            return
    raise grpc.RpcError(f"session {session} ended before its turn")
