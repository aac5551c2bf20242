"""The gRPC server: its options, its addresses, health and reflection beside the contract's services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from sessiond_server import directories
from sessiond_server.config import Config, ConfigError, ListenAddress, TcpAddress, Tls, UnixAddress
from sessiond_server.drain import Drain
from sessiond_server.rpc import Gate, service_handler

__all__ = ["CannotServe", "Server", "Services"]

# The servicer of each service of the contract.
Services = Mapping[ServiceDescriptor, object]

# Seconds for what was written to reach its reader; health watchers would stay for ever.
_LAST_WORDS = 0.2
_MIB = 1024 * 1024
_REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"


class CannotServe(Exception):
    """An address can't be served on; the text says why and what to change."""


def _options(max_subscribers: int) -> list[tuple[str, int]]:
    return [
        # Without this two daemons on one TCP port both seem to succeed (grpc/grpc#16920).
        ("grpc.so_reuseport", 0),
        # Peers that vanished (a closed lid, a NAT that forgot) are noticed on idle streams.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Clients that look after their connection are not cut off for it (grpc/grpc#9902).
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client's calls queue silently behind its streams where this is reached.
        ("grpc.max_concurrent_streams", max_subscribers + 1000),
        # gRPC cancels new calls at random, without a reason, once 1,000 of them wait for the event loop:
        # as many as may come at once after a restart must not be cut down to chance.
        ("grpc.server.max_pending_requests", max_subscribers + 1000),
        ("grpc.server.max_pending_requests_hard_limit", max_subscribers + 2000),
        ("grpc.max_receive_message_length", 8 * _MIB),
    ]


class Server:
    """The gRPC server with health and reflection beside the services of the contract."""

    def __init__(self, config: Config, gate: Gate, drain: Drain, services: Services) -> None:
        self._config = config
        self._gate = gate
        self._drain = drain
        self._names = [service.full_name for service in services]
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            interceptors=[gate], options=_options(config.limits.max_subscribers)
        )
        self._server.add_generic_rpc_handlers(
            [service_handler(service, servicer) for service, servicer in services.items()]
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        _add_reflection(self._server, [*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME])

    async def start(self) -> list[ListenAddress]:
        """Bind every address and serve; return them with the ports that were given.

        Raises CannotServe, ConfigError, directories.InUse.
        """
        credentials = _credentials(self._config.tls)
        bound: list[ListenAddress] = []
        try:
            for address in self._config.addresses():
                bound.append(self._bind(address, credentials))
        except CannotServe:
            for address in bound:
                if isinstance(address, UnixAddress):
                    address.path.unlink(missing_ok=True)
            raise
        await self._server.start()
        for name in self._names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return bound

    def _bind(self, address: ListenAddress, credentials: grpc.ServerCredentials | None) -> ListenAddress:
        try:
            if isinstance(address, UnixAddress):
                directories.clear_socket(address.path)
                self._server.add_insecure_port(str(address))
                return address
            if credentials is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), credentials)
            return TcpAddress(address.host, port)
        except RuntimeError as error:
            raise CannotServe(
                f"listen: can't bind {address}: probably another program uses it; choose others "
                "with --listen (port 0 picks a free one)"
            ) from error

    async def stop(self) -> None:
        """Tell health checks and streams, let running calls finish within `drain_grace`, then end."""
        await self._health.enter_graceful_shutdown()
        self._drain.begin()
        # Until then new calls still get an answer that says when to come back.
        await self._gate.settle(self._config.drain_grace)
        await self._server.stop(_LAST_WORDS)


def _add_reflection(server: grpc.aio.Server, names: Sequence[str]) -> None:
    servicer = reflection.aio.ReflectionServicer(names)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    # The library knows v1alpha; v1 is the same on the wire under another name.
    for name in (reflection.SERVICE_NAME, _REFLECTION_V1):
        generic = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
        server.add_generic_rpc_handlers([generic])


def _credentials(tls: Tls) -> grpc.ServerCredentials | None:
    if tls.cert is None or tls.key is None:
        return None
    client_ca = None if tls.client_ca is None else _read_pem("tls.client_ca", tls.client_ca)
    return grpc.ssl_server_credentials(
        [(_read_pem("tls.key", tls.key), _read_pem("tls.cert", tls.cert))],
        root_certificates=client_ca,
        require_client_auth=client_ca is not None,
    )


def _read_pem(key: str, path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror}") from error
    if b"-----BEGIN " not in data:
        raise ConfigError(f"{key}: {path} is no PEM file")
    return data
