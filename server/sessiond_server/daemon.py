"""The daemon from start to end: lock, open, adopt, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.metadata import version
from types import ModuleType

import structlog
from google.protobuf.descriptor import ServiceDescriptor

from sessiond.v1 import attachment_service_pb2, server_service_pb2, session_service_pb2
from sessiond_server import directories, recovery, resources
from sessiond_server.attachments import Attachments
from sessiond_server.auth import Authenticator, check_exposure, load_token
from sessiond_server.config import Config, ListenAddress
from sessiond_server.drain import Drain
from sessiond_server.drivers import Drivers
from sessiond_server.roster import Roster
from sessiond_server.rpc import Gate
from sessiond_server.server import Server, Services
from sessiond_server.services.attachment import AttachmentService
from sessiond_server.services.server import ServerService
from sessiond_server.services.session import SessionService
from sessiond_server.store import Store

__all__ = ["Announce", "serve"]

# Called once, when calls are answered, with the addresses in the order of `listen`.
Announce = Callable[[Sequence[ListenAddress]], None]

# SIGHUP: the terminal it was started from was closed.
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TIDY_PAUSE = 3600.0
_logger = structlog.get_logger(__name__)


async def serve(config: Config, announce: Announce) -> None:
    """Run the daemon until SIGTERM, SIGINT or SIGHUP; a second signal ends it at once. Agents live on.

    Raises ConfigError, directories.InUse, server.CannotServe or store.StoreTooNew before anything is
    served.
    """
    resources.give_back_early()
    resources.allow_open_files()
    stop = _stop_signal()
    drain = Drain()
    async with _held(config) as token, _rooms(config, drain) as services:
        gate = Gate(Authenticator(token), drain)
        server = Server(config, gate, drain, services)
        try:
            addresses = await server.start()
            _publish(config, addresses)
            announce(addresses)
            await stop.wait()
            _logger.info("draining")
        finally:
            # Before the streams end: who looks for the daemon now must not find this one.
            directories.address_file(config.runtime_dir).unlink(missing_ok=True)
            await server.stop()
    _logger.info("stopped")


@contextlib.asynccontextmanager
async def _held(config: Config) -> AsyncIterator[str]:
    """Own both directories; yield the token."""
    check_exposure(config.addresses(), config.tls.cert is not None)
    async with contextlib.AsyncExitStack() as stack:
        for directory in dict.fromkeys((config.data_dir, config.runtime_dir)):
            directories.prepare(directory)
            await stack.enter_async_context(directories.locked(directory))
        directories.address_file(config.runtime_dir).unlink(missing_ok=True)
        yield load_token(config.token_file)


@contextlib.asynccontextmanager
async def _rooms(config: Config, drain: Drain) -> AsyncIterator[Services]:
    """Open the store and all sessions; yield the servicers. On the way out agents are let go."""
    drivers = Drivers.load(config.drivers)
    full_sync = config.store.synchronous == "full"
    with contextlib.closing(Store(config.data_dir / "sessiond.db", full_sync=full_sync)) as store:
        attachments = Attachments(config.data_dir, config.limits)
        roster = await Roster.open(config, store, drivers, attachments)
        drain.wakes(roster.drain)
        server_id = await recovery.server_id(store)
        tidying = asyncio.create_task(_tidy(attachments, store), name="tidy")
        try:
            yield {
                _service(session_service_pb2): SessionService(config, roster, drain),
                _service(attachment_service_pb2): AttachmentService(attachments, roster.rows),
                _service(server_service_pb2): ServerService(
                    config, drivers, server_id, version("sessiond")
                ),
            }
        finally:
            tidying.cancel()
            await asyncio.wait((tidying,))
            await roster.close()


async def _tidy(attachments: Attachments, store: Store) -> None:
    """Remove what nobody needs any more, at the start and then every hour."""
    while True:
        try:
            uploads = attachments.remove_old_uploads()
            files = await attachments.collect(store.attachment_refs())
        except OSError as error:
            _logger.warning("tidying_failed", error=str(error))
        else:
            _logger.info("tidied", uploads=uploads, files=files)
        await asyncio.sleep(_TIDY_PAUSE)


def _service(module: ModuleType) -> ServiceDescriptor:
    """Return the one service that a module of the contract describes."""
    (descriptor,) = module.DESCRIPTOR.services_by_name.values()
    found: ServiceDescriptor = descriptor
    return found


def _publish(config: Config, addresses: Sequence[ListenAddress]) -> None:
    tls = config.tls
    directories.write_addresses(config.runtime_dir, addresses, config.token_file, tls.ca or tls.cert)
    _logger.info("serving", addresses=[str(address) for address in addresses])


def _stop_signal() -> asyncio.Event:
    """Return an event that the first signal to stop sets; the second ends the process at once."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def first() -> None:
        stop.set()
        for number in _STOPPING:
            loop.remove_signal_handler(number)
            # Nothing is lost by it: what was answered is durable, and what was not is asked again.
            signal.signal(number, signal.SIG_DFL)

    for number in _STOPPING:
        loop.add_signal_handler(number, first)
    return stop
