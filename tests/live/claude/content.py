"""What goes in and out beside text: images, files, lines of megabytes."""

from __future__ import annotations

import base64
import hashlib

from sessiond.v1 import attachment_service_pb2, attachment_service_pb2_grpc, session_pb2
from sessiond.v1 import event_pb2 as ev
from tests.live.claude.registry import scenario
from tests.live.claude.rig import Rig, Talk
from tests.live.model import Model, Reply, say, use
from tests.support.session import TIMEOUT

_BYPASS = session_pb2.Settings(permission_mode="bypassPermissions")
# 64 x 48 pixels of one red.
_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAAAwCAIAAAAuKetIAAAAZElEQVR4nO3PUQkAIBTAwJfEJPbHWIbw4xAGC3Cb"
    "s/bXDRc0oAUNaEEDWtCAFjSgBQ1oQQNa0IAWNKAFDWhBA1rQgBY0oAUNaEEDWtCAFjSgBQ1oQQNa0IAWNKAFDWhB"
    "A1rw2AVe1ZjEV51EkwAAAABJRU5ErkJggg=="
)


async def _upload(rig: Rig, talk: Talk, data: bytes, media_type: str, filename: str) -> str:
    digest = hashlib.sha256(data).hexdigest()
    request = attachment_service_pb2.WriteAttachmentRequest(
        session_id=talk.session_id,
        upload_id=digest,
        data=data,
        finish=True,
        sha256=digest,
        media_type=media_type,
        filename=filename,
    )
    async with rig.daemon.channel() as channel:
        stub = attachment_service_pb2_grpc.AttachmentServiceStub(channel)
        await stub.WriteAttachment(request, timeout=TIMEOUT)
    return digest


async def _read(rig: Rig, talk: Talk, ref: str) -> bytes:
    async with rig.daemon.channel() as channel:
        stub = attachment_service_pb2_grpc.AttachmentServiceStub(channel)
        request = attachment_service_pb2.ReadAttachmentRequest(session_id=talk.session_id, ref=ref)
        return b"".join([r.data async for r in stub.ReadAttachment(request, timeout=TIMEOUT)])


@scenario
async def an_image_in(rig: Rig) -> None:
    async with rig.talk(Reply([say("It is red.")])) as talk:
        ref = await _upload(rig, talk, _PNG, "image/png", "red.png")
        sent = await talk.send("look", attachment_refs=[ref])
        await talk.end(sent.seq)
        (message,) = talk.bodies("user_message")
        assert [a.ref for a in message.attachments] == [ref]
        assert talk.model.asked(base64.b64encode(_PNG).decode()) == 1


@scenario
async def a_file_in(rig: Rig) -> None:
    async with rig.talk(Reply([say("A list.")])) as talk:
        ref = await _upload(rig, talk, b"a,b\n1,2\n", "text/csv", "numbers.csv")
        sent = await talk.send("read it", attachment_refs=[ref])
        await talk.end(sent.seq)
        assert talk.model.asked("numbers.csv") == 1


@scenario
async def an_image_out(rig: Rig) -> None:
    with Model() as model:
        home = rig.new_home()
        (home.workspace / "pic.png").write_bytes(_PNG)
        model.script += [
            Reply([use("Read", file_path=str(home.workspace / "pic.png"))]),
            Reply([say("Red again.")]),
        ]
        async with rig.session(model, home) as talk:
            await talk.ready()
            await talk.run("read the picture")
            (added,) = talk.bodies("attachment_added")
            assert added.attachment.media_type == "image/png"
            assert added.tool_id == talk.bodies("tool_started")[0].tool_id
            assert await _read(rig, talk, added.attachment.ref) == _PNG
            assert talk.seq("attachment_added") < talk.seq("tool_ended")


@scenario
async def a_long_message(rig: Rig) -> None:
    async with rig.talk(Reply([say("Long.")])) as talk:
        await talk.run("z" * 500_000 + " the end")
        assert talk.text() == "Long."
        assert talk.model.asked("z the end") == 1


@scenario
async def a_line_of_two_megabytes(rig: Rig) -> None:
    words = "y" * 2_100_000
    # The program repeats the whole text in one line, and once more in the result.
    async with rig.talk(Reply([say(words)], chunk=100_000)) as talk:
        await talk.run("at length")
        assert talk.text() == words
        session = await talk.get()
        assert session.head_seq == talk.events[-1].seq


@scenario
async def a_tool_with_much_output(rig: Rig) -> None:
    with Model() as model:
        home = rig.new_home()
        lines = "".join(f"{n:06d} {'x' * 80}\n" for n in range(2_000))
        (home.workspace / "big.txt").write_text(lines)
        read = use("Read", file_path=str(home.workspace / "big.txt"))
        model.script += [Reply([read]), Reply([say("Much.")])]
        async with rig.session(model, home, settings=_BYPASS) as talk:
            await talk.ready()
            await talk.run("read it")
            (ended,) = talk.bodies("tool_ended")
            assert ended.outcome in (ev.TOOL_OUTCOME_SUCCEEDED, ev.TOOL_OUTCOME_FAILED)
            assert ended.output
            assert talk.text() == "Much."
