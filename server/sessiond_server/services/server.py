"""ServerService: what this daemon is and what it offers."""

from __future__ import annotations

import asyncio

from google.protobuf.duration_pb2 import Duration

from sessiond.v1 import server_service_pb2 as pb
from sessiond_server.config import Config
from sessiond_server.drivers import Drivers
from sessiond_server.rpc import Context

__all__ = ["CONTRACT_REVISION", "ServerService"]

# Rises with every additive change of the contract.
CONTRACT_REVISION = 1


class ServerService:
    """The calls of `sessiond.v1.ServerService`."""

    def __init__(self, config: Config, drivers: Drivers, server_id: str, version: str) -> None:
        self._config = config
        self._drivers = drivers
        self._server_id = server_id
        self._version = version

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        """Tell versions, limits, and each driver with whether its program is there."""
        drivers = await asyncio.gather(*(self._driver(name) for name in self._drivers.names()))
        return pb.GetServerInfoResponse(
            server_version=self._version,
            contract_revision=CONTRACT_REVISION,
            server_id=self._server_id,
            drivers=drivers,
            limits=_limits(self._config),
        )

    async def _driver(self, name: str) -> pb.DriverInfo:
        probed = await self._drivers.probe(name)
        return pb.DriverInfo(
            name=name,
            display_name=self._drivers.display_name(name),
            available=probed.available,
            unavailable_reason=probed.reason,
            agent_version=probed.version,
            capabilities=self._drivers.capabilities(name),
        )


def _limits(config: Config) -> pb.Limits:
    heartbeat = Duration()
    heartbeat.FromMicroseconds(int(config.heartbeat_interval * 1_000_000))
    limits = config.limits
    return pb.Limits(
        max_text_bytes=limits.max_text_bytes,
        max_attachment_bytes=limits.max_attachment_bytes,
        max_chunk_bytes=limits.max_chunk_bytes,
        max_event_bytes=limits.max_event_bytes,
        max_queue_length=limits.max_queue_length,
        max_sessions=limits.max_sessions,
        max_subscribers=limits.max_subscribers,
        heartbeat_interval=heartbeat,
    )
