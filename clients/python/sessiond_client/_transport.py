"""One channel to the daemon: how it is made, authenticated and retried."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message
from grpc import aio

from ._endpoint import AddressError, Endpoint, Tls
from ._errors import SessiondError, from_rpc_error

__all__ = ["Backoff", "ChannelOption", "Metadata", "Transport", "closed_elsewhere", "closed_error"]

ChannelOption = tuple[str, int | str]
Metadata = tuple[tuple[str, str], ...]

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

_TRANSIENT = grpc.StatusCode.UNAVAILABLE


class Backoff:
    """Delays between attempts, in seconds: doubling up to a cap, each anywhere in its upper half.

    The spread keeps many clients of a restarted daemon from returning at the same instant.
    """

    def __init__(self, first: float = 0.1, cap: float = 5.0, rng: random.Random | None = None) -> None:
        self._first = first
        self._cap = cap
        self._random = rng or random.Random()
        self._ceiling = first

    def next(self) -> float:
        """Return the next delay."""
        ceiling = self._ceiling
        self._ceiling = min(self._cap, ceiling * 2)
        return self._random.uniform(ceiling / 2, ceiling)

    def reset(self) -> None:
        """Start over: the last attempt did well."""
        self._ceiling = self._first


class Transport:
    """A channel with the daemon's credentials. Lives from `open` to `close`, in one event loop.

    `patience`: seconds a unary call is tried again while the daemon is away, within its own deadline.
    """

    def __init__(
        self, endpoint: Endpoint, *, patience: float, options: Sequence[ChannelOption] = ()
    ) -> None:
        self.endpoint = endpoint
        self._patience = patience
        self._options = options
        self._channel: aio.Channel | None = None
        self._token = _Token(endpoint)

    def open(self) -> None:
        """Make the channel; it connects with the first call. Needs a running loop."""
        if self._channel is None:
            self._channel = _make_channel(self.endpoint, self._options)

    async def close(self) -> None:
        """Cancel what runs and close the connection."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    @property
    def channel(self) -> aio.Channel:
        """The open channel."""
        if self._channel is None:
            raise RuntimeError("the client is not open: use `async with SessiondClient(...) as client`")
        return self._channel

    def metadata(self) -> Metadata:
        """Return what every call must carry. Raises AddressError when the token can't be read."""
        token = self._token.read()
        return (("authorization", f"Bearer {token}"),) if token else ()

    async def unary(
        self,
        method: aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        timeout: float,
    ) -> Response:
        """Call, and call again while the daemon is away. Raises SessiondError.

        Sending the same request again is safe: what changes anything carries a request_id.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        until = min(deadline, clock() + self._patience)
        backoff = Backoff()
        first: SessiondError | None = None
        while True:
            limit = (deadline if first is None else until) - clock()
            try:
                return await method(
                    request, timeout=limit, metadata=self.metadata(), wait_for_ready=first is not None
                )
            except aio.AioRpcError as error:
                failure = from_rpc_error(error)
            except asyncio.CancelledError:
                if closed_elsewhere():
                    raise closed_error() from None
                raise
            if failure.code is not _TRANSIENT:
                gave_up = first is not None and failure.code is grpc.StatusCode.DEADLINE_EXCEEDED
                raise (first if first is not None and gave_up else failure) from None
            first = first or failure
            delay = max(backoff.next(), failure.retry_after or 0.0)
            if clock() + delay >= until:
                raise failure
            await asyncio.sleep(delay)


def closed_elsewhere() -> bool:
    """Whether the CancelledError at hand means a call that another task closed, not this task's end.

    grpc raises the same exception for both.
    """
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def closed_error() -> SessiondError:
    """Return the error for a call that was still running when its client was closed."""
    return SessiondError(grpc.StatusCode.CANCELLED, "the client was closed during the call")


class _Token:
    """The bearer token, read again when its file changes: a new daemon may have written a new one."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._value = endpoint.token
        self._file = None if endpoint.token else endpoint.token_file
        self._seen: tuple[int, int, int] | None = None

    def read(self) -> str:
        if self._file is None:
            return self._value
        try:
            stat = self._file.stat()
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen != self._seen:
                self._value = self._file.read_text(encoding="ascii").strip()
                self._seen = seen
        except (OSError, UnicodeDecodeError) as error:
            # While a daemon replaces the file, the token of before is as good a guess as any.
            if not self._value:
                raise _no_token(f"the token file can't be read: {error}") from error
        if not self._value:
            raise _no_token(f"the token file is empty: {self._file}")
        return self._value


def _no_token(text: str) -> AddressError:
    return AddressError(text, grpc.StatusCode.UNAUTHENTICATED)


def _make_channel(endpoint: Endpoint, extra: Sequence[ChannelOption]) -> aio.Channel:
    # A local daemon costs nothing to try; a distant one is not to be hammered.
    slowest = 1_000 if endpoint.is_local else 5_000
    options: list[ChannelOption] = [
        # A peer that vanished without a word is noticed within 30 s, on idle streams too. The daemon
        # allows a ping every 10 s; servers that keep grpc's default of 5 min would answer GOAWAY.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", slowest),
        ("grpc.max_reconnect_backoff_ms", slowest),
        # The contract keeps messages under grpc's default of 4 MiB; room for one that grew.
        ("grpc.max_receive_message_length", 8 << 20),
        # Retries are ours: they keep to `patience` and reach past a restart of the daemon.
        ("grpc.enable_retries", 0),
        # Each client has its own connection, so that closing one never touches another.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if endpoint.is_unix:
        options.append(("grpc.default_authority", "localhost"))
    elif endpoint.is_local:
        options.append(("grpc.enable_http_proxy", 0))
    options.extend(extra)
    if endpoint.tls is None:
        return aio.insecure_channel(endpoint.target, options=options)
    return aio.secure_channel(endpoint.target, _credentials(endpoint.tls), options=options)


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    if (tls.cert_file is None) != (tls.key_file is None):
        raise AddressError("a client certificate needs its key and the key its certificate: give both")
    return grpc.ssl_channel_credentials(
        root_certificates=_read_pem(tls.ca_file),
        private_key=_read_pem(tls.key_file),
        certificate_chain=_read_pem(tls.cert_file),
    )


def _read_pem(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise AddressError(f"the certificate file can't be read: {error}") from error
