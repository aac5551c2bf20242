"""Output: what the agent wrote is what the server reads, whatever cuts the connection."""

from __future__ import annotations

import asyncio
import hashlib
import random
import resource
import signal

import pytest

from sessiond_server.shim import (
    Acked,
    Exited,
    LinkLost,
    Output,
    OutputClosed,
    Paused,
    Resumed,
    raw_size,
    read_exit,
    read_rest,
    wait_gone,
)
from tests.unit.shim.support import ECHO, PATIENCE, Home, Stream, peak_memory, until


def _numbered(count: int) -> str:
    return (
        f"import sys\nfor n in range({count}): sys.stdout.write('%08d %s\\n' % (n, 'x' * (n % 150)))\n"
    )


def _expected(count: int) -> bytes:
    return b"".join(b"%08d %s\n" % (n, b"x" * (n % 150)) for n in range(count))


async def test_an_input_comes_back_through_the_agent(home: Home) -> None:
    stream = await home.session(ECHO)
    stream.link.send_input(1, b"hello\n")
    assert await stream.line() == b"hello"
    assert await stream.notice(Acked) == Acked(1)


async def test_nothing_is_sent_before_attach_and_any_offset_can_be_attached_at(home: Home) -> None:
    await home.start("print('0123456789', flush=True); input()")
    await until(lambda: raw_size(home.directory, 1) == 11)
    link = await home.connect()
    assert link.hello.size == 11
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await link.receive()
    for offset in range(12):
        stream = await home.attach(offset)
        await stream.upto(11)
        assert bytes(stream.data) == b"0123456789\n"[offset:]
    for offset in (-1, 12):
        link = await home.connect()
        with pytest.raises(ValueError, match="not in the raw log"):
            await link.attach(offset)


async def test_bytes_are_identical_over_many_cuts(home: Home) -> None:
    count = 150_000
    await home.start(_numbered(count))
    got = bytearray()
    dice = random.Random(7)
    exited = None
    cuts = 0
    while exited is None:
        stream = await home.attach(len(got))
        # Commits before it breaks off, like a server that is killed between two steps.
        for _ in range(dice.randrange(1, 3)):
            await stream.take()
            if stream.notices:
                exited = await stream.notice(Exited)
                break
        got += stream.data
        stream.link.committed(len(got))
        if exited is None:
            cuts += 1
            await stream.link.close()
    assert cuts > 3
    assert bytes(got) == _expected(count)
    assert exited == Exited(0, None, len(got))


async def test_a_new_connection_replaces_the_old_one(home: Home) -> None:
    first = await home.session(ECHO)
    second = await home.attach()
    with pytest.raises(LinkLost):
        await first.take()
    second.link.send_input(1, b"still here\n")
    assert await second.line() == b"still here"


async def test_a_receive_can_be_cancelled_without_losing_anything(home: Home) -> None:
    count = 3_000
    stream = await home.session(
        f"import sys\nfor n in range({count}): sys.stdout.write('%d\\n' % n); sys.stdout.flush()\n"
    )
    dice = random.Random(3)
    expected = b"".join(b"%d\n" % n for n in range(count))
    while len(stream.data) < len(expected):
        task = asyncio.create_task(stream.link.receive())
        await asyncio.sleep(dice.random() * 0.001)
        task.cancel()
        try:
            batch = await task
        except asyncio.CancelledError:
            continue
        for received in batch:
            if isinstance(received, Output):
                stream.data += received.data
    assert bytes(stream.data) == expected


@pytest.mark.parametrize("megabytes", [2, 100])
async def test_a_long_line_passes_with_little_memory(home: Home, megabytes: int) -> None:
    size = megabytes << 20
    stream = await home.session(
        "import os, sys, hashlib\n"
        "sys.stdin.readline()\n"
        f"block = bytes(range(11, 75)) * 16384\n"
        f"for _ in range({megabytes}): sys.stdout.buffer.write(block)\n"
        "sys.stdout.buffer.write(b'\\n'); sys.stdout.flush()\n"
        "sys.stdin.read()"
    )
    stream.keep = False
    stream.link.send_input(1, b"go\n")
    digest = hashlib.sha256()
    while stream.offset < size + 1:
        for received in await stream.link.receive():
            if isinstance(received, Output):
                assert len(received.data) <= 2 << 20
                digest.update(received.data)
                stream.offset += len(received.data)
        stream.link.committed(stream.offset)
    whole = hashlib.sha256()
    for _ in range(megabytes):
        whole.update(bytes(range(11, 75)) * 16384)
    whole.update(b"\n")
    assert digest.digest() == whole.digest()
    assert peak_memory(stream.link.hello.shim_pid) < 24 << 10


async def test_segments_are_let_go_of_once_committed(home: Home) -> None:
    stream = await home.session(
        _numbered(20_000) + "sys.stdout.flush(); sys.stdin.read()", segment_bytes=64 << 10
    )
    size = len(_expected(20_000))
    await stream.upto(size)
    segments = sorted(int(path.name.split(".")[1]) for path in home.folder().glob("out.*.log"))
    assert segments == list(range(0, size, 64 << 10))
    stream.link.committed(segments[2])
    await until(lambda: len(list(home.folder().glob("out.*.log"))) == len(segments) - 2)
    assert not (home.folder() / "out.0.log").exists()
    assert read_rest(home.directory, 1, segments[2], size) == _expected(20_000)[segments[2] :]
    with pytest.raises(ValueError, match="not in its raw log"):
        read_rest(home.directory, 1, segments[2] - 1, 10)
    again = await home.connect()
    assert again.hello.base == segments[2]
    with pytest.raises(ValueError, match="not in the raw log"):
        await again.attach(0)
    again.committed(size)
    await until(lambda: len(list(home.folder().glob("out.*.log"))) == 1)


async def test_a_slow_server_makes_nothing_grow(home: Home) -> None:
    stream = await home.session(_numbered(400_000))
    expected = _expected(400_000)
    # Nobody receives: all of it is in the log in the end, and the shim holds next to nothing.
    await until(lambda: read_exit(home.directory, 1) is not None)
    assert peak_memory(stream.link.hello.shim_pid) < 24 << 10
    await stream.notice(Exited)
    assert bytes(stream.data) == expected


async def test_the_agent_waits_when_too_much_is_not_committed(home: Home) -> None:
    count = 40_000
    cap = 256 << 10
    stream = await home.session(_numbered(count), log_cap=cap)
    paused = await stream.notice(Paused)
    assert str(cap) in paused.reason
    assert not paused.disk
    size = raw_size(home.directory, 1)
    assert cap <= size <= cap + (1 << 20)
    again = await home.connect()
    assert again.hello.paused
    assert again.hello.size == size
    await again.attach(0)
    stream = Stream(again, 0)
    assert isinstance(await stream.notice(Paused), Paused)
    await stream.upto(size)
    again.committed(size)
    await stream.notice(Resumed)
    while not any(isinstance(notice, Exited) for notice in stream.notices):
        # First: the batch that told of the resumption may have brought all up to the next pause.
        again.committed(stream.offset)
        await stream.take()
    assert bytes(stream.data) == _expected(count)


async def test_a_log_that_cannot_be_written_pauses_the_agent_and_loses_nothing(home: Home) -> None:
    count = 20_000
    stream = await home.session("import sys\nsys.stdin.readline()\n" + _numbered(count))
    shim = stream.link.hello.shim_pid
    # A file size limit fails like a full disk: a part of the write goes in, then none.
    soft = 300_001
    _, hard = resource.prlimit(shim, resource.RLIMIT_FSIZE)
    resource.prlimit(shim, resource.RLIMIT_FSIZE, (soft, hard))
    stream.link.send_input(1, b"go\n")
    paused = await stream.notice(Paused)
    assert "can't be written" in paused.reason
    assert paused.disk
    await stream.upto(soft)
    assert raw_size(home.directory, 1) == soft
    resource.prlimit(shim, resource.RLIMIT_FSIZE, (hard, hard))
    await stream.notice(Resumed)
    await stream.notice(Exited)
    assert bytes(stream.data) == _expected(count)


async def test_an_exit_that_cannot_be_written_down_waits_for_room(home: Home) -> None:
    stream = await home.session("input()")
    shim = stream.link.hello.shim_pid
    _, hard = resource.prlimit(shim, resource.RLIMIT_FSIZE)
    resource.prlimit(shim, resource.RLIMIT_FSIZE, (0, hard))
    stream.link.send_input(1, b"end\n")
    await stream.notice(Paused)
    assert read_exit(home.directory, 1) is None
    resource.prlimit(shim, resource.RLIMIT_FSIZE, (hard, hard))
    await stream.notice(Resumed)
    assert await stream.notice(Exited) == Exited(0, None, 0) == read_exit(home.directory, 1)


async def test_a_kill_does_not_wait_for_room(home: Home) -> None:
    stream = await home.session(
        "print('up', flush=True)\nwhile True: input(); print('x' * 100, flush=True)"
    )
    await stream.line()
    shim = stream.link.hello.shim_pid
    _, hard = resource.prlimit(shim, resource.RLIMIT_FSIZE)
    resource.prlimit(shim, resource.RLIMIT_FSIZE, (0, hard))
    stream.link.send_input(1, b"go\n")
    await stream.notice(Paused)
    stream.link.kill()
    assert await stream.notice(Exited) == Exited(None, signal.SIGKILL, 3)
    stream.link.collected()
    assert await wait_gone(home.directory)


async def test_an_agent_without_stdout_is_noticed_and_can_still_be_signalled(home: Home) -> None:
    stream = await home.session(
        "import os, sys, time\nprint('last', flush=True)\nos.close(1)\nsys.stdin.read(); time.sleep(100)"
    )
    await stream.notice(OutputClosed)
    assert bytes(stream.data) == b"last\n"
    again = await home.attach()
    await again.notice(OutputClosed)
    again.link.signal(signal.SIGTERM)
    assert await again.notice(Exited) == Exited(None, signal.SIGTERM, 5)


async def test_an_agent_that_ends_is_not_said_to_have_closed_its_output(home: Home) -> None:
    stream = await home.session("print('bye')")
    await stream.notice(Exited)
    assert stream.notices == []
    stream = await home.attach(2)
    async with asyncio.timeout(PATIENCE):
        assert await stream.link.receive() == [Output(2, b"e\n"), Exited(0, None, 4)]
