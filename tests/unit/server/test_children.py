"""Children are waited for in whichever loop started them."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

from sessiond_server import children


async def _start(code: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-Sc", code, stdin=asyncio.subprocess.PIPE
    )


async def _exit_code(code: int) -> int:
    child = await _start(f"raise SystemExit({code})")
    return await asyncio.wait_for(child.wait(), 30)


def test_a_loop_keeps_its_children_when_another_has_come_and_gone() -> None:
    with asyncio.Runner() as first:
        children.watch()
        assert first.run(_exit_code(3)) == 3
        asyncio.run(_exit_code(0))
        assert first.run(_exit_code(4)) == 4


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="asyncio needs no watcher there")
def test_a_number_used_again_after_its_loop_was_closed_is_no_trouble() -> None:
    async def wait_for(pid: int) -> None:
        asyncio.get_event_loop_policy().get_child_watcher().add_child_handler(pid, print)

    async def stop_waiting_for(pid: int) -> bool:
        await wait_for(pid)
        return asyncio.get_event_loop_policy().get_child_watcher().remove_child_handler(pid)

    children.watch()
    asyncio.run(wait_for(os.getpid()))
    assert asyncio.run(stop_waiting_for(os.getpid()))


async def test_waiting_needs_no_thread() -> None:
    children.watch()
    before = threading.active_count()
    child = await _start("input()")
    assert threading.active_count() == before
    child.kill()
    assert await asyncio.wait_for(child.wait(), 30) == -9


async def test_an_end_that_someone_else_has_read_is_an_end_too() -> None:
    children.watch()
    child = await _start("input()")
    child.kill()
    os.waitpid(child.pid, 0)  # noqa: ASYNC222 - the loop must not be the first to see it
    assert await asyncio.wait_for(child.wait(), 30) == 255
