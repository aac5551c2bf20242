"""A backup of a daemon that is busy, put back elsewhere."""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

from sessiond.v1 import (
    attachment_service_pb2,
    attachment_service_pb2_grpc,
    session_pb2,
    session_service_pb2_grpc,
)
from sessiond.v1 import session_service_pb2 as api
from tests.support.daemon import Daemon
from tests.support.session import TIMEOUT, Watched, failing, watched
from tests.support.waiting import until

_MAIN = "from sessiond_server.main import main; main()"


async def _sessiond(*words: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _MAIN, *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(TIMEOUT):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_a_busy_daemon_is_backed_up_and_restored(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "saved.tar"
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.run("!huge as=tool 3\nbefore the backup")
        sent = await session.send("!burst @1000 8000")
        await session.until("assistant_text", after=sent.seq)
        code, output = await _sessiond("backup", str(file), f"--data-dir={daemon.data_dir}")
        assert code == 0, output
        assert "1 sessions and 1 attachments" in output
        await session.until("turn_ended", after=sent.seq)
        code, output = await _sessiond("restore", str(file), f"--data-dir={daemon.data_dir}")
        assert code == 1
        assert "another sessiond" in output
        other = Daemon(settings={"workspace_roots": f'["{daemon.folder}"]'})
        try:
            code, output = await _sessiond("restore", str(file), f"--data-dir={other.data_dir}")
            assert code == 0, output
            await other.start()
            await _goes_on(other, session, sent.seq)
        finally:
            await other.close()


async def test_a_backup_put_back_where_agents_still_live_ends_them(
    daemon: Daemon, tmp_path: Path
) -> None:
    file = tmp_path / "saved.tar"
    async with daemon.channel() as channel, watched(channel, str(daemon.workspace)) as session:
        await session.run("before")
        agent = (await session.until("process_started")).process_started.pid
        code, output = await _sessiond("backup", str(file), f"--data-dir={daemon.data_dir}")
        assert code == 0, output
        for number in range(3):
            await session.run(f"after {number}")
        await daemon.kill()
        await session.close()
        for path in daemon.data_dir.glob("sessiond.db*"):
            path.unlink()
        code, output = await _sessiond("restore", str(file), f"--data-dir={daemon.data_dir}")
        assert code == 0, output
        await daemon.start()
        restored = Watched(session.stub, session.session_id)
        try:
            exited = await restored.until_state("EXITED")
            await until(lambda: not Path(f"/proc/{agent}").exists(), "the agent is gone")
            assert "process_adopted" not in restored.kinds()
            assert "after" not in restored.text()
            await restored.control(restart=api.Restart())
            await restored.until_state("IDLE", after=exited.seq)
            await restored.run("going on")
        finally:
            await restored.close()


async def _goes_on(other: Daemon, original: Watched, sent_seq: int) -> None:
    async with other.channel() as channel:
        stub: session_service_pb2_grpc.SessionServiceAsyncStub
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        restored = Watched(stub, original.session_id)
        try:
            # The turn that ran is cut off in the copy, and its agent is another machine's affair.
            exited = await restored.until_state("EXITED")
            pairs = zip(original.events, restored.events, strict=False)
            same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
            assert same > sent_seq
            lost = restored.events[same]
            assert lost.HasField("state_changed") or lost.HasField("error_raised")
            assert "before the backup" in restored.text()
            shown = await restored.get()
            assert shown.transcript_id != (await original.get()).transcript_id
            stale = api.SubscribeRequest(
                session_id=original.session_id,
                transcript_id=(await original.get()).transcript_id,
            )
            async with failing("FAILED_PRECONDITION", "TRANSCRIPT_CHANGED"):
                await anext(aiter(stub.Subscribe(stale, timeout=TIMEOUT)))
            await _has_its_attachment(
                restored, attachment_service_pb2_grpc.AttachmentServiceStub(channel)
            )
            await restored.control(restart=api.Restart())
            await restored.until_state("IDLE", after=exited.seq)
            await restored.run("going on")
            assert (await original.get()).state == session_pb2.SESSION_STATE_IDLE
        finally:
            await restored.close()


async def _has_its_attachment(
    session: Watched, stub: attachment_service_pb2_grpc.AttachmentServiceAsyncStub
) -> None:
    full = (await session.until("tool_ended")).tool_ended.full_output
    request = attachment_service_pb2.ReadAttachmentRequest(session_id=session.session_id, ref=full.ref)
    size = 0
    async for response in stub.ReadAttachment(request, timeout=TIMEOUT):
        size += len(response.data)
    assert size == full.size_bytes > 1_000_000
