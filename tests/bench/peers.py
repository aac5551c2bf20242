"""What Subscribe is compared with: the same events as JSON over SSE, and one gRPC message per event.

Run as a process of its own: `python -m tests.bench.peers sse|one FILE`, where FILE holds a response's
bytes of all events; it prints its port and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web
from google.protobuf.json_format import MessageToDict

from sessiond.v1 import event_pb2
from sessiond.v1 import session_service_pb2 as api

METHOD = "/bench.Peer/One"


def _events(file: Path) -> list[event_pb2.Event]:
    return list(api.SubscribeResponse.FromString(file.read_bytes()).events)


async def serve_sse(file: Path) -> None:
    """As agent servers do it: an object per event, encoded when it is sent, one chunk each."""
    objects: list[dict[str, Any]] = [MessageToDict(event) for event in _events(file)]

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for item in objects:
            await response.write(
                b"id: %s\ndata: %s\n\n" % (item["seq"].encode(), json.dumps(item).encode())
            )
        await response.write_eof()
        return response

    application = web.Application()
    application.router.add_get("/events", stream)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


async def serve_one(file: Path) -> None:
    """The plain way with gRPC: `stream Event`, one message each."""
    payloads = [event.SerializeToString() for event in _events(file)]

    async def stream(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        for payload in payloads:
            await context.write(payload)

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(stream)
    service, method = METHOD.strip("/").split("/")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    serve = serve_sse if sys.argv[1] == "sse" else serve_one
    asyncio.run(serve(Path(sys.argv[2])))
