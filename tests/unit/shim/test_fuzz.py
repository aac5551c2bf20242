"""Any bytes on the socket between server and shim, in both directions and any division."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond_server.shim import Link, LinkLost, program
from sessiond_server.shim.program import Header

_HELLO = {"kind": "hello", "protocol": 1, "run": 1, "shim_pid": 1, "agent_pid": 1, "base": 0, "size": 0}
_HELLO |= {"last_input_id": 0, "exit": None, "paused": ""}
_TO_SHIM = ("attach", "input", "close_stdin", "signal", "kill", "committed", "collected", "ping")
_TO_SERVER = ("out", "ack", "paused", "resumed", "eof", "deaf", "exit", "pong", "hello", "sing")
_VALUES = st.one_of(
    st.integers(),
    st.integers(0, 5),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)
_NAMES = ("id", "len", "offset", "signal", "size", "exit_code", "reason", "run", "protocol", "exit")
_HEADERS = st.builds(
    lambda kind, rest: {"kind": kind, **rest},
    st.one_of(st.sampled_from(_TO_SHIM + _TO_SERVER), _VALUES),
    st.dictionaries(st.sampled_from(_NAMES), _VALUES, max_size=3),
)
_BYTES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        _HEADERS.map(program.encode),
        st.just(b"\n"),
        st.just(b"[" * 3000),
        st.just(b'{"kind":"' + b"9" * 5000),
        st.integers(4000, 6000).map(lambda digits: b'{"kind":' + b"9" * digits + b"}\n"),
    ),
    max_size=6,
).map(b"".join)


def _divided(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def _heard(parts: Sequence[bytes]) -> tuple[list[tuple[Header, bytes]], bool]:
    """What a shim makes of what a server sends, and whether it hung up."""
    heard: list[tuple[Header, bytes]] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = program._Connection(theirs, lambda header, payload: heard.append((header, payload)))
        for part in parts:
            ours.sendall(part)
            try:
                while connection.read():
                    pass
            except (OSError, ValueError, RecursionError):
                # What the shim's loop expects of it; anything else would end the shim, and the agent.
                return heard, True
    return heard, False


@settings(max_examples=300, deadline=None)
@given(data=_BYTES, cuts=st.lists(st.integers(0), max_size=5))
def test_a_shim_survives_any_bytes_and_hears_the_same_in_any_division(
    data: bytes, cuts: list[int]
) -> None:
    assert repr(_heard(_divided(data, cuts))) == repr(_heard([data]))


@settings(max_examples=100, deadline=None)
@given(
    frames=st.lists(st.tuples(st.integers(0), st.binary(max_size=300)), max_size=5),
    cuts=st.lists(st.integers(0), max_size=8),
)
def test_frames_are_heard_whole(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    sent = [({"kind": "input", "id": n, "len": len(payload)}, payload) for n, payload in frames]
    data = b"".join(program.encode(header) + payload for header, payload in sent)
    assert _heard(_divided(data, cuts)) == (sent, False)


async def _received(parts: Sequence[bytes]) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        link = Link(ours)
        theirs.sendall(program.encode(_HELLO))
        await link._greet(1)
        try:
            async with asyncio.timeout(5):
                with contextlib.suppress(LinkLost):
                    for part in parts:
                        theirs.sendall(part)
                        # Nothing may come of it; whatever does is a notice.
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(0.001):
                                assert await link.receive()
                    theirs.close()
                    while True:
                        assert await link.receive()
        finally:
            await link.close()


@settings(max_examples=150, deadline=None)
@given(data=_BYTES, cuts=st.lists(st.integers(0), max_size=3))
def test_a_server_survives_any_bytes(data: bytes, cuts: list[int]) -> None:
    asyncio.run(_received(_divided(data, cuts)))
