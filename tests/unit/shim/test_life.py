"""Life and death: of the agent, of the shim, of the server's end, and what each leaves."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from sessiond_server.shim import (
    AlreadyRunning,
    Exited,
    LaunchFailed,
    Link,
    LinkLost,
    ShimGone,
    ShimUnreachable,
    discard,
    find_leftovers,
    is_alive,
    kill_leftovers,
    launch,
    program,
    raw_size,
    read_exit,
    read_rest,
    stderr_tail,
    supports,
    wait_gone,
)
from tests.unit.shim.support import ECHO, PATIENCE, Home, is_dead, is_named, kill, parent, until

SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(1000)"
# A process of its own session, with another below it, that let go of the agent's pipes.
WANDERER = (
    "import os, sys, time\n"
    "def away(depth):\n"
    "    if os.fork(): return\n"
    "    os.setsid()\n"
    "    if depth: away(depth - 1)\n"
    "    sys.stdout.write('%d\\n' % os.getpid()); sys.stdout.flush()\n"
    "    null = os.open('/dev/null', os.O_RDWR)\n"
    "    for fd in range(3): os.dup2(null, fd)\n"
    "    time.sleep(1000); os._exit(0)\n"
    "away(2)\n"
    "sys.stdin.read()\n"
)


async def test_the_exit_code_waits_for_a_server(home: Home) -> None:
    await home.start("import sys\nprint('done'); print('why', file=sys.stderr); sys.exit(3)")
    await until(lambda: read_exit(home.directory, 1) is not None)
    assert read_exit(home.directory, 1) == Exited(3, None, 5)
    assert is_alive(home.directory), "it lingers until the exit is collected"
    assert stderr_tail(home.directory, 1) == "why\n"
    stream = await home.attach()
    assert stream.link.hello.exited
    assert await stream.notice(Exited) == Exited(3, None, 5)
    assert bytes(stream.data) == b"done\n"
    with pytest.raises(ValueError, match="alive"):
        discard(home.directory, 1)
    stream.link.collected()
    with pytest.raises(LinkLost):
        await stream.take()
    assert await wait_gone(home.directory)
    assert read_rest(home.directory, 1, 1, 100) == b"one\n"
    assert not (home.folder() / program.SOCKET_NAME).exists()
    discard(home.directory, 1)
    assert not home.folder().exists()
    assert read_exit(home.directory, 1) is None
    assert raw_size(home.directory, 1) == 0
    discard(home.directory, 1)


async def test_an_exit_that_nobody_collects_is_left_in_files(home: Home) -> None:
    await home.start("print('done')", linger=0.1)
    await until(lambda: read_exit(home.directory, 1) is not None and not is_alive(home.directory))
    with pytest.raises(ShimGone):
        await home.connect()
    assert read_rest(home.directory, 1, 0, 100) == b"done\n"


async def test_an_agent_killed_by_a_signal(home: Home) -> None:
    stream = await home.session(SLEEPER)
    await stream.line()
    kill(stream.link.hello.agent_pid)
    assert await stream.notice(Exited) == Exited(None, signal.SIGKILL, 3)


async def test_a_signal_reaches_the_agents_whole_group(home: Home) -> None:
    stream = await home.session(
        "import os, time, signal\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "if os.fork() == 0:\n"
        "    signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "    print('up', flush=True)\n"
        "    time.sleep(1000)\n"
        "print('child', os.waitstatus_to_exitcode(os.wait()[1]), flush=True)\n"
    )
    await stream.line()
    stream.link.signal(signal.SIGINT)
    assert await stream.line() == b"child -2"


async def test_a_killed_shim_takes_the_agent_with_it(home: Home) -> None:
    stream = await home.session(SLEEPER)
    await stream.line()
    kill(stream.link.hello.shim_pid)
    await until(lambda: is_dead(stream.link.hello.agent_pid))
    with pytest.raises(LinkLost):
        await stream.take()
    assert await wait_gone(home.directory)
    with pytest.raises(ShimGone):
        await home.connect()
    assert read_exit(home.directory, 1) is None
    assert read_rest(home.directory, 1, 0, 10) == b"up\n"
    discard(home.directory, 1)


async def test_kill_reaches_processes_that_left_the_group(home: Home) -> None:
    stream = await home.session(WANDERER)
    pids = [int(await stream.line()) for _ in range(3)]
    assert not any(is_dead(pid) for pid in pids)
    stream.link.kill()
    assert (await stream.notice(Exited)).signal == signal.SIGKILL
    assert all(is_dead(pid) for pid in [*pids, stream.link.hello.agent_pid])
    assert find_leftovers(home.directory.name) == []


async def test_a_kill_that_the_server_did_not_live_to_see_is_done(home: Home) -> None:
    stream = await home.session("while True: print('x' * 1000)")
    await stream.take()
    link = stream.link
    link.kill()
    await link.close()
    await until(lambda: is_dead(link.hello.agent_pid))


async def test_an_agent_that_ends_leaves_its_children_until_kill(home: Home) -> None:
    stream = await home.session(WANDERER)
    pids = [int(await stream.line()) for _ in range(3)]
    stream.link.close_stdin(1)
    assert (await stream.notice(Exited)).exit_code == 0
    assert not any(is_dead(pid) for pid in pids)
    assert find_leftovers(home.directory.name) == [], "they have a shim still"
    stream.link.kill()
    stream.link.collected()
    assert await wait_gone(home.directory)
    assert all(is_dead(pid) for pid in pids)


async def test_children_that_hold_the_pipe_do_not_hold_up_the_exit(home: Home) -> None:
    stream = await home.session("import os, time\nif os.fork() == 0: time.sleep(1000)\nprint('bye')")
    async with asyncio.timeout(10):
        assert await stream.notice(Exited) == Exited(0, None, 4)


async def test_leftovers_of_a_lost_shim_are_found_and_killed(home: Home) -> None:
    stream = await home.session(WANDERER)
    pids = [int(await stream.line()) for _ in range(3)]
    session = home.directory.name
    assert find_leftovers(session) == []
    kill(stream.link.hello.shim_pid)
    await until(lambda: is_dead(stream.link.hello.agent_pid))
    left = find_leftovers(session)
    assert sorted(leftover.pid for leftover in left) == sorted(pids)
    assert {leftover.session_id for leftover in left} == {session}
    assert left[0] in find_leftovers()
    assert find_leftovers("another session") == []
    assert await kill_leftovers("another session") == []
    assert not any(is_dead(pid) for pid in pids)
    assert await kill_leftovers(session) == []
    assert all(is_dead(pid) for pid in pids)


async def test_a_second_start_is_refused(home: Home) -> None:
    stream = await home.session(ECHO)
    with pytest.raises(AlreadyRunning):
        await home.start(ECHO, run=2)
    stream.link.send_input(1, b"alive\n")
    assert await stream.line() == b"alive"


async def test_two_starts_at_once_give_one_shim(home: Home) -> None:
    starts = [home.start(ECHO, run=run) for run in (1, 2)]
    results = await asyncio.gather(*starts, return_exceptions=True)
    assert {type(result) for result in results} == {type(None), AlreadyRunning}


async def test_a_run_number_is_used_once_and_the_next_starts_right_after(home: Home) -> None:
    stream = await home.session("print('one')")
    await stream.notice(Exited)
    stream.link.collected()
    with pytest.raises(LinkLost):
        await stream.take()
    await home.start("print('two')", run=2)
    stream = await home.attach(run=2)
    await stream.notice(Exited)
    stream.link.collected()
    assert is_alive(home.directory, 2)
    assert not is_alive(home.directory, 1)
    with pytest.raises(ShimGone):
        await home.connect(run=1)
    discard(home.directory, 1)
    assert await wait_gone(home.directory)
    with pytest.raises(LaunchFailed, match="was started before"):
        await home.start("print('two again')", run=2)
    assert read_rest(home.directory, 2, 0, 100) == b"two\n"


@pytest.mark.parametrize(
    ("argv", "cwd", "text"),
    [
        (["no-such-program"], "/", "'no-such-program' was not found"),
        (["/dev/null"], "/", "Permission denied"),
        (["cat"], "/no/such/folder", "working directory '/no/such/folder' can't be entered"),
        (["cat", "a\0b"], "/", "null byte"),
        (["cat", "x" * 3_000_000], "/", "shorten the system prompt"),
        ([], "/", "no program"),
    ],
)
async def test_an_agent_that_cannot_start(home: Home, argv: list[str], cwd: str, text: str) -> None:
    with pytest.raises(LaunchFailed, match=text) as caught:
        await launch(home.directory, 1, argv=argv, env={"PATH": os.defpath}, cwd=cwd)
    assert not isinstance(caught.value, AlreadyRunning)
    assert await wait_gone(home.directory)
    # The same run number will do, as no agent ran under it.
    stream = await home.session(ECHO)
    assert stream.link.hello.size == 0


async def test_stale_files_of_a_start_that_never_got_ready_do_not_matter(home: Home) -> None:
    home.folder().mkdir(parents=True)
    for name in (program.SOCKET_NAME, program.EXIT_NAME, program.STDERR_NAME, program.segment_name(0)):
        (home.folder() / name).write_bytes(b"old")
    (home.directory / program.LOCK_NAME).touch()
    with pytest.raises(ShimGone):
        await home.connect()
    stream = await home.session("print('new')")
    await stream.notice(Exited)
    assert bytes(stream.data) == b"new\n"


async def test_a_start_that_takes_too_long_leaves_nothing(home: Home) -> None:
    home.directory.mkdir()
    with (home.directory / program.LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LaunchFailed, match=r"within 0\.2 seconds"):
            await launch(home.directory, 1, argv=["cat"], env={"PATH": os.defpath}, cwd="/", timeout=0.2)
    # The lock came free while the shim was still trying: it finds that nobody waits for it, and ends.
    await until(lambda: not is_named(home.directory.name))
    assert find_leftovers(home.directory.name) == []
    await home.session(ECHO)


async def test_the_lock_is_the_truth_about_life(home: Home) -> None:
    assert not is_alive(home.directory)
    stream = await home.session(WANDERER)
    for _ in range(3):
        await stream.line()
    assert is_alive(home.directory)
    # Neither children of the agent nor tests of the lock hold it.
    kill(stream.link.hello.shim_pid)
    assert await wait_gone(home.directory)


async def test_a_stopped_shim_is_unreachable_and_comes_back(home: Home) -> None:
    stream = await home.session(ECHO)
    shim = stream.link.hello.shim_pid
    await stream.link.close()
    kill(shim, signal.SIGSTOP)
    try:
        with pytest.raises(ShimUnreachable, match="did not answer"):
            await home.connect(timeout=0.3)
    finally:
        kill(shim, signal.SIGCONT)
    again = await home.attach()
    again.link.send_input(1, b"back\n")
    assert await again.line() == b"back"


async def test_a_path_too_long_for_a_socket_address(tmp_path: Path) -> None:
    home = Home(tmp_path / ("long-" * 30) / ("longer-" * 20))
    stream = await home.session(ECHO)
    stream.link.send_input(1, b"far\n")
    assert await stream.line() == b"far"
    await home.end()


async def test_secrets_stay_out_of_arguments_environment_and_files(home: Home) -> None:
    await launch(
        home.directory,
        1,
        argv=["sh", "-c", 'echo "$TOKEN"; read -r _', "argument-5a17"],
        env={"PATH": os.defpath, "TOKEN": "token-5a17"},
        cwd="/",
    )
    stream = await home.attach()
    assert await stream.line() == b"token-5a17"
    proc = Path(f"/proc/{stream.link.hello.shim_pid}")
    assert b"5a17" not in (proc / "cmdline").read_bytes()
    assert (proc / "environ").read_bytes() == b""
    for path in home.directory.rglob("*"):
        if path.is_file() and not path.name.startswith("out."):
            assert b"5a17" not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0
    assert home.directory.stat().st_mode & 0o077 == 0


async def test_the_agent_sees_its_own_environment_and_a_marker(home: Home) -> None:
    await launch(
        home.directory,
        1,
        argv=[sys.executable, "-I", "-c", "import os, json; print(json.dumps(dict(os.environ)))"],
        env={"A": "1", "B": "\udcff"},
        cwd="/",
        session_id="s-marked",
    )
    stream = await home.attach()
    environment = json.loads(await stream.line())
    assert environment[program.SESSION_MARKER] == "s-marked"
    assert {"A": "1", "B": "\udcff"}.items() <= environment.items()


async def test_the_agent_gets_default_signals_and_no_other_files(home: Home) -> None:
    stream = await home.session(
        "import os, signal\n"
        "print(sorted(os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')))\n"
        "print([s.name for s in signal.valid_signals()"
        " if signal.getsignal(s) is signal.SIG_IGN and s not in (signal.SIGPIPE, signal.SIGXFSZ)])\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "print(os.getpid() == os.getsid(0) == os.getpgid(0))\n"
    )
    assert await stream.line() == b"['0', '1', '2'] 4"
    assert await stream.line() == b"[]"
    assert await stream.line() == b"set()"
    assert await stream.line() == b"True"


async def test_init_is_the_parent_of_the_shim(home: Home) -> None:
    stream = await home.session(ECHO)
    shim = stream.link.hello.shim_pid
    assert parent(shim) != os.getpid()
    state = json.loads((home.folder() / program.STATE_NAME).read_bytes())
    assert state["shim_pid"] == shim
    assert state["agent_pid"] == stream.link.hello.agent_pid
    assert state["agent_start_time"] == program.start_time(state["agent_pid"]) > 0
    assert state["protocol"] == program.PROTOCOL


async def test_stderr_keeps_its_end(home: Home) -> None:
    await home.start(
        "import sys\nfor n in range(100000): sys.stderr.write('%08d\\n' % n)\nsys.stderr.flush()",
        stderr_cap=64 << 10,
    )
    await until(lambda: read_exit(home.directory, 1) is not None)
    size = (home.folder() / program.STDERR_NAME).stat().st_size
    assert 32 << 10 <= size <= 64 << 10
    assert stderr_tail(home.directory, 1, 18) == "00099998\n00099999\n"
    assert stderr_tail(home.directory, 2) == ""


async def test_terminating_the_shim_terminates_the_agent_in_its_own_way(home: Home) -> None:
    stream = await home.session(
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit('saved'))\n"
        "print('up', flush=True)\nsignal.pause()"
    )
    await stream.line()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        kill(stream.link.hello.shim_pid, number)
    assert (await stream.notice(Exited)).exit_code == 1
    assert stderr_tail(home.directory, 1) == "saved\n"


async def test_a_server_that_is_killed_in_a_launch_leaves_a_session_to_adopt(home: Home) -> None:
    source = (
        "import asyncio, os, pathlib, signal, sys\n"
        "from sessiond_server.shim import launch, link\n"
        "async def main():\n"
        "    start = asyncio.create_subprocess_exec\n"
        "    async def and_die(*a, **k):\n"
        "        p = await start(*a, **k)\n"
        "        communicate = p.communicate\n"
        "        async def send(order):\n"
        "            p.stdin.write(order); p.stdin.close(); await p.stdin.wait_closed()\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        p.communicate = send\n"
        "        return p\n"
        "    asyncio.create_subprocess_exec = and_die\n"
        f"    await launch(pathlib.Path({str(home.directory)!r}), 1, argv=['cat'],"
        " env={'PATH': os.defpath}, cwd='/')\n"
        "asyncio.run(main())\n"
    )
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", source)
    async with asyncio.timeout(PATIENCE):
        assert await server.wait() == -signal.SIGKILL
    await until(lambda: is_alive(home.directory))
    stream = await home.attach()
    stream.link.send_input(1, b"adopted\n")
    assert await stream.line() == b"adopted"


async def test_no_threads_are_started(home: Home) -> None:
    before = threading.active_count()
    stream = await home.session(ECHO)
    assert threading.active_count() <= before
    assert isinstance(stream.link, Link)


@pytest.mark.parametrize(
    ("protocol", "supported"), [(program.PROTOCOL, True), (program.PROTOCOL + 1, False), (0, False)]
)
def test_protocol_versions(protocol: int, supported: bool) -> None:
    assert supports(protocol) is supported
