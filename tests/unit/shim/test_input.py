"""Input: each one reaches the agent once and whole; what makes no sense ends the connection only."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import signal
import socket

import pytest

from sessiond_server.shim import Acked, Exited, InputClosed, LinkLost, program
from tests.unit.shim.support import ECHO, Home, until


def _raw(home: Home) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(10)
    # Through the descriptor, as a test's own path may be too long for a socket address.
    folder = os.open(home.folder(), os.O_RDONLY)
    sock.connect(f"/proc/self/fd/{folder}/{program.SOCKET_NAME}")
    os.close(folder)
    return sock


def _hung_up(sock: socket.socket) -> bool:
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


async def test_an_id_that_was_taken_is_dropped_and_acked(home: Home) -> None:
    stream = await home.session(ECHO)
    for input_id, text in [(1, b"a\n"), (2, b"b\n"), (2, b"b again\n"), (1, b"a again\n"), (5, b"c\n")]:
        stream.link.send_input(input_id, text)
    assert [await stream.line() for _ in range(3)] == [b"a", b"b", b"c"]
    assert [(await stream.notice(Acked)).input_id for _ in range(5)] == [1, 2, 2, 1, 5]
    again = await home.attach(stream.offset)
    assert again.link.hello.last_input_id == 5
    again.link.send_input(5, b"c again\n")
    again.link.send_input(6, b"d\n")
    assert await again.line() == b"d"


async def test_a_torn_frame_dies_with_its_connection(home: Home) -> None:
    await home.start(ECHO)
    payload = b"x" * 300_000 + b"\n"
    frame = program.encode({"kind": "input", "id": 1, "len": len(payload)}) + payload
    for cut in (1, 20, 40, 100_000, len(frame) - 1):
        with _raw(home) as sock:
            sock.sendall(frame[:cut])
    stream = await home.attach()
    assert stream.link.hello.last_input_id == 0
    stream.link.send_input(1, payload)
    assert await stream.line() == payload[:-1]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff\xfe" * 3000,
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b"[" * 4000 + b"\n",
        b'{"kind":"input","id":"one","len":1}\nx',
        b'{"kind":"input","id":true,"len":1}\nx',
        b'{"kind":"input","id":1,"len":-1}\n',
        b'{"kind":"input","id":1,"len":999999999999}\n',
        b'{"kind":"attach"}\n',
        b'{"kind":"attach","offset":1}\n',
        b'{"kind":"attach","offset":0}\n{"kind":"attach","offset":0}\n',
        b'{"kind":"committed","offset":77}\n',
        b'{"kind":"signal","signal":4000}\n',
    ],
)
async def test_garbage_ends_the_connection_and_nothing_else(home: Home, garbage: bytes) -> None:
    await home.start(ECHO)
    with _raw(home) as sock:
        sock.sendall(garbage)
        assert _hung_up(sock)
    stream = await home.attach()
    stream.link.send_input(1, b"alive\n")
    assert await stream.line() == b"alive"


async def test_a_kind_the_shim_does_not_know_is_skipped_with_its_content(home: Home) -> None:
    await home.start(ECHO)
    with _raw(home) as sock:
        sock.sendall(b'{"kind":"sing","len":5}\n{"ki\n{"kind":"dance"}\n{"kind":"ping"}\n')
        reader = sock.makefile("rb")
        assert json.loads(reader.readline())["kind"] == "hello"
        assert json.loads(reader.readline()) == {"kind": "pong"}
        reader.close()


async def test_an_agent_that_does_not_read_holds_nothing_up(home: Home) -> None:
    stream = await home.session(
        "import sys, hashlib, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "print('up', flush=True)\nsignal.sigwait([signal.SIGUSR1])\n"
        "print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest(), flush=True)"
    )
    assert await stream.line() == b"up"
    for input_id in range(1, 11):
        stream.link.send_input(input_id, b"y" * (1 << 20))
    stream.link.close_stdin(11)
    assert [(await stream.notice(Acked)).input_id for _ in range(11)] == list(range(1, 12))
    stream.link.signal(signal.SIGUSR1)
    assert await stream.line() == hashlib.sha256(b"y" * (10 << 20)).hexdigest().encode()


async def test_input_for_an_agent_that_closed_its_stdin_is_acked(home: Home) -> None:
    stream = await home.session(
        "import os, time\nos.close(0)\nprint('closed', flush=True)\ntime.sleep(100)"
    )
    assert await stream.line() == b"closed"
    for input_id in (1, 2, 3):
        stream.link.send_input(input_id, b"z" * (1 << 20))
        assert await stream.notice(Acked) == Acked(input_id)
    stream.link.kill()
    assert (await stream.notice(Exited)).signal == 9


async def test_an_agent_that_closed_its_stdin_is_noticed(home: Home) -> None:
    stream = await home.session("import os, time\nos.close(0)\nprint('up', flush=True)\ntime.sleep(100)")
    assert await stream.line() == b"up"
    stream.link.send_input(1, b"hello?\n")
    await stream.notice(InputClosed)
    again = await home.attach(stream.offset)
    await again.notice(InputClosed)
    again.link.kill()
    assert (await again.notice(Exited)).signal == 9


async def test_an_agent_that_ends_is_not_said_to_have_closed_its_input(home: Home) -> None:
    stream = await home.session("import os\nos.close(0)\nprint('up', flush=True)\nos._exit(0)")
    assert await stream.line() == b"up"
    stream.link.send_input(1, b"hello?\n")
    while not any(isinstance(notice, Exited) for notice in stream.notices):
        await stream.take()
    assert InputClosed() not in stream.notices


async def test_close_stdin_comes_after_the_input_before_it(home: Home) -> None:
    stream = await home.session("import sys\nsys.stdout.write(str(len(sys.stdin.read())))")
    stream.link.send_input(1, b"x" * (3 << 20))
    stream.link.close_stdin(2)
    stream.link.send_input(3, b"too late")
    assert (await stream.notice(Exited)).exit_code == 0
    assert bytes(stream.data) == b"%d" % (3 << 20)


async def test_too_long_an_input_is_refused(home: Home) -> None:
    stream = await home.session(ECHO)
    with pytest.raises(ValueError, match="at most 67108864 bytes"):
        stream.link.send_input(1, bytes(program.MAX_INPUT_BYTES + 1))


async def test_a_shim_that_talks_nonsense_is_a_lost_link(home: Home) -> None:
    folder = home.folder()
    folder.mkdir(parents=True)
    lock = (home.directory / program.LOCK_NAME).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    with lock, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        short = os.open(folder, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{short}/{program.SOCKET_NAME}")
        os.close(short)
        listener.listen()
        listener.setblocking(False)
        connecting = asyncio.create_task(home.connect())
        sock, _ = await asyncio.get_running_loop().sock_accept(listener)
        with sock:
            hello = {"kind": "hello", "protocol": 1, "run": 1, "shim_pid": 1, "agent_pid": 1}
            hello |= {"base": 0, "size": 0, "last_input_id": 0, "exit": None, "paused": ""}
            sock.sendall(program.encode(hello))
            link = await connecting
            sock.sendall(b"\x00 nonsense \n")
            with pytest.raises(LinkLost, match="can't be understood"):
                await link.receive()


async def test_ping_shows_in_heard(home: Home) -> None:
    stream = await home.session(ECHO)
    before = stream.link.heard
    stream.link.ping()
    stream.link.send_input(1, b"\n")
    await stream.line()
    await until(lambda: stream.link.heard > before)
