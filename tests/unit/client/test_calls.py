"""Single calls: what they send, how they fail, when they are tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as wire
from sessiond_client import (
    AddressError,
    AlreadyExistsError,
    Endpoint,
    FieldViolation,
    NotFoundError,
    SessiondClient,
    SessiondError,
    UnauthenticatedError,
    UnavailableError,
)
from tests.unit.client.scripted import Context, Scripted, batch, fail, for_ever, socket_in

_C = grpc.StatusCode


def failing(code: grpc.StatusCode, reason: str = "", **more: Any) -> Any:
    async def reply(_: Message, context: Context) -> Message:
        await fail(context, code, reason, **more)
        raise AssertionError("the call went on after its end")

    return reply


async def test_an_error_carries_all_that_the_daemon_said(
    daemon: Scripted, client: SessiondClient
) -> None:
    daemon.replies["Send"] = failing(
        _C.INVALID_ARGUMENT,
        "INVALID_FIELD",
        message="the text is empty",
        metadata={"limit": "1"},
        field_name="text",
        retry_ms=1500,
    )
    with pytest.raises(SessiondError) as caught:
        await client.send("s", "")
    error = caught.value
    assert (error.code, error.reason, error.message) == (
        _C.INVALID_ARGUMENT,
        "INVALID_FIELD",
        "the text is empty",
    )
    assert error.metadata == {"limit": "1"}
    assert error.violations == (FieldViolation("text", "the text is empty"),)
    assert error.retry_after == 1.5
    assert str(error) == "INVALID_FIELD: the text is empty"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (_C.NOT_FOUND, NotFoundError),
        (_C.ALREADY_EXISTS, AlreadyExistsError),
        (_C.UNAUTHENTICATED, UnauthenticatedError),
    ],
)
async def test_errors_without_details_have_their_kind(
    daemon: Scripted, client: SessiondClient, code: grpc.StatusCode, kind: type[SessiondError]
) -> None:
    daemon.replies["GetSession"] = failing(code)
    with pytest.raises(kind) as caught:
        await client.get_session("s")
    assert caught.value.reason == ""
    assert str(caught.value).startswith(code.name)


async def test_details_that_cant_be_read_hide_nothing_else(
    daemon: Scripted, client: SessiondClient
) -> None:
    async def reply(_: Message, context: Context) -> Message:
        await context.abort(_C.NOT_FOUND, "no such session", (("grpc-status-details-bin", b"\xff\xff"),))

    daemon.replies["GetSession"] = reply
    with pytest.raises(NotFoundError, match="no such session"):
        await client.get_session("s")


async def test_a_retried_call_keeps_its_request_id(daemon: Scripted, client: SessiondClient) -> None:
    async def reply(request: wire.SendRequest, context: Context) -> Message:
        if len(daemon.of_type(wire.SendRequest)) < 3:
            await fail(context, _C.UNAVAILABLE, "SERVER_DRAINING")
        return wire.SendResponse(message_id="m", seq=3)

    daemon.replies["Send"] = reply
    assert (await client.send("s", "hello")).message_id == "m"
    ids = [request.request_id for request in daemon.of_type(wire.SendRequest)]
    assert len(ids) == 3
    assert len(set(ids)) == 1
    assert ids[0]


async def test_a_daemon_that_restarts_during_a_call_is_waited_for(
    daemon: Scripted, client: SessiondClient, folder: Path
) -> None:
    reached = asyncio.Event()

    async def reply(_: wire.SendRequest, context: Context) -> Message:
        if not reached.is_set():
            reached.set()
            await for_ever()
        return wire.SendResponse(message_id="m")

    daemon.replies["Send"] = reply
    sending = asyncio.create_task(client.send("s", "hello", request_id="mine"))
    await asyncio.wait_for(reached.wait(), 5)
    await daemon.stop()
    await daemon.start(socket_in(folder))
    assert (await asyncio.wait_for(sending, 10)).message_id == "m"
    assert {request.request_id for request in daemon.of_type(wire.SendRequest)} == {"mine"}


async def test_nobody_there_is_told_within_patience(folder: Path) -> None:
    async with SessiondClient(socket_in(folder), patience=0.4) as client:
        began = asyncio.get_running_loop().time()
        with pytest.raises(UnavailableError):
            await client.get_session("s")
        assert asyncio.get_running_loop().time() - began < 3


async def test_a_call_waits_as_long_as_the_daemon_asks(daemon: Scripted, client: SessiondClient) -> None:
    async def reply(_: Message, context: Context) -> Message:
        if len(daemon.requests) == 1:
            await fail(context, _C.UNAVAILABLE, "SERVER_DRAINING", retry_ms=700)
        return wire.GetSessionResponse()

    daemon.replies["GetSession"] = reply
    began = asyncio.get_running_loop().time()
    await client.get_session("s")
    assert asyncio.get_running_loop().time() - began >= 0.7


async def test_other_failures_are_not_tried_again(daemon: Scripted, client: SessiondClient) -> None:
    daemon.replies["Send"] = failing(_C.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    with pytest.raises(SessiondError, match="QUEUE_FULL"):
        await client.send("s", "hello")
    assert len(daemon.of_type(wire.SendRequest)) == 1


async def test_a_call_has_a_deadline(daemon: Scripted, folder: Path) -> None:
    async def reply(_: Message, context: Context) -> Message:
        await for_ever()
        raise AssertionError

    daemon.replies["GetSession"] = reply
    async with SessiondClient(socket_in(folder), timeout=0.2) as client:
        with pytest.raises(SessiondError) as caught:
            await client.get_session("s")
    assert caught.value.code is _C.DEADLINE_EXCEEDED


async def test_closing_the_client_ends_a_call_with_an_error(
    daemon: Scripted, client: SessiondClient
) -> None:
    reached = asyncio.Event()

    async def reply(_: Message, context: Context) -> Message:
        reached.set()
        await for_ever()
        raise AssertionError

    daemon.replies["GetSession"] = reply
    calling = asyncio.create_task(client.get_session("s"))
    await asyncio.wait_for(reached.wait(), 5)
    await client.close()
    with pytest.raises(SessiondError, match="closed"):
        await asyncio.wait_for(calling, 5)


async def test_a_client_must_be_opened() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await SessiondClient("unix:/s.sock").get_session("s")


async def test_a_token_is_sent_over_tcp_and_read_again_when_it_changes(folder: Path) -> None:
    token = folder / "token"
    token.write_text("first\n")
    scripted = Scripted()
    port = await scripted.start("127.0.0.1:0")
    endpoint = Endpoint(target=f"127.0.0.1:{port}", token_file=token)
    try:
        async with SessiondClient(endpoint) as client:
            await client.get_session("s")
            token.write_text("the second\n")
            await client.get_session("s")
            token.unlink()
            await client.get_session("s")
    finally:
        await scripted.stop()
    sent = [metadata.get("authorization") for metadata in scripted.metadata]
    assert sent == ["Bearer first", "Bearer the second", "Bearer the second"]


async def test_a_missing_or_empty_token_file_is_told(folder: Path) -> None:
    endpoint = Endpoint(target="127.0.0.1:1", token_file=folder / "token")
    async with SessiondClient(endpoint) as client:
        with pytest.raises(AddressError, match="can't be read"):
            await client.get_session("s")
        (folder / "token").write_text("\n")
        with pytest.raises(AddressError, match="empty"):
            await client.get_session("s")


async def test_no_token_is_sent_over_a_unix_socket(daemon: Scripted, client: SessiondClient) -> None:
    await client.get_session("s")
    assert "authorization" not in daemon.metadata[0]


Call = Callable[[SessiondClient], Coroutine[Any, Any, object]]

MUTATIONS: dict[str, tuple[Call, Message]] = {
    "create": (
        lambda c: c.create_session(
            "echo",
            Path("/w"),
            title="T",
            labels={"a": "b"},
            model="m",
            permission_mode="p",
            effort="e",
            system_prompt="sp",
            native_session_id="n",
            ephemeral=True,
            environment={"K": "V"},
            session_id="s",
        ),
        wire.CreateSessionRequest(
            driver="echo",
            workspace="/w",
            title="T",
            labels={"a": "b"},
            settings=session_pb2.Settings(model="m", permission_mode="p", effort="e"),
            system_prompt="sp",
            native_session_id="n",
            ephemeral=True,
            environment={"K": "V"},
            session_id="s",
        ),
    ),
    "delete": (lambda c: c.delete_session("s"), wire.DeleteSessionRequest(session_id="s")),
    "send": (
        lambda c: c.send("s", "x", attachment_refs=["r"], delivery=session_pb2.DELIVERY_NOW),
        wire.SendRequest(
            session_id="s", text="x", attachment_refs=["r"], delivery=session_pb2.DELIVERY_NOW
        ),
    ),
    "edit": (
        lambda c: c.edit_message("s", "m", "y", attachment_refs=["r"], revision=2),
        wire.EditMessageRequest(
            session_id="s", message_id="m", text="y", attachment_refs=["r"], revision=2
        ),
    ),
    "move": (
        lambda c: c.move_message("s", "m", "other", revision=2),
        wire.MoveMessageRequest(session_id="s", message_id="m", before_message_id="other", revision=2),
    ),
    "unqueue": (
        lambda c: c.unqueue("s", "m"),
        wire.UnqueueRequest(session_id="s", message_id="m"),
    ),
    "answer": (
        lambda c: c.answer("s", "q", ["Yes"], note="why"),
        wire.AnswerRequest(session_id="s", question_id="q", answers=["Yes"], note="why"),
    ),
    "interrupt": (
        lambda c: c.interrupt("s", "t"),
        wire.ControlRequest(session_id="s", interrupt=wire.Interrupt(turn_id="t")),
    ),
    "model": (
        lambda c: c.set_model("s", "m"),
        wire.ControlRequest(session_id="s", set_model=wire.SetModel(model="m")),
    ),
    "mode": (
        lambda c: c.set_permission_mode("s", "m"),
        wire.ControlRequest(
            session_id="s", set_permission_mode=wire.SetPermissionMode(permission_mode="m")
        ),
    ),
    "effort": (
        lambda c: c.set_effort("s", ""),
        wire.ControlRequest(session_id="s", set_effort=wire.SetEffort()),
    ),
    "title": (
        lambda c: c.set_title("s", "T"),
        wire.ControlRequest(session_id="s", set_title=wire.SetTitle(title="T")),
    ),
    "compact": (
        lambda c: c.compact("s", "keep"),
        wire.ControlRequest(session_id="s", compact=wire.Compact(instructions="keep")),
    ),
    "clear": (
        lambda c: c.clear("s"),
        wire.ControlRequest(session_id="s", clear=wire.Clear()),
    ),
    "run": (
        lambda c: c.run_command("s", "/x"),
        wire.ControlRequest(session_id="s", run_command=wire.RunCommand(text="/x")),
    ),
    "stop": (lambda c: c.stop("s"), wire.ControlRequest(session_id="s", stop=wire.Stop())),
    "restart": (lambda c: c.restart("s"), wire.ControlRequest(session_id="s", restart=wire.Restart())),
}


@pytest.mark.parametrize("name", MUTATIONS)
async def test_a_call_says_what_was_asked_with_a_request_id(
    daemon: Scripted, client: SessiondClient, name: str
) -> None:
    call, expected = MUTATIONS[name]
    await call(client)
    (request,) = daemon.requests
    assert getattr(request, "request_id", "")
    request.ClearField("request_id")
    assert request == expected


def test_every_action_of_the_contract_has_a_method() -> None:
    actions = {field.name for field in wire.ControlRequest.DESCRIPTOR.oneofs_by_name["action"].fields}
    assert actions <= set(dir(SessiondClient))


async def test_update_names_only_what_changes(daemon: Scripted, client: SessiondClient) -> None:
    await client.update_session("s", title="T")
    await client.update_session("s", labels={})
    first, second = daemon.of_type(wire.UpdateSessionRequest)
    assert (list(first.update_mask.paths), first.session.title) == (["title"], "T")
    assert list(second.update_mask.paths) == ["labels"]


async def test_lists_follow_their_pages(daemon: Scripted, client: SessiondClient) -> None:
    async def reply(request: wire.ListSessionsRequest, context: Context) -> Message:
        page = int(request.page_token or 0)
        return wire.ListSessionsResponse(
            sessions=[session_pb2.Session(session_id=f"s{page}")],
            next_page_token=str(page + 1) if page < 2 else "",
        )

    daemon.replies["ListSessions"] = reply
    states = [session_pb2.SESSION_STATE_IDLE]
    found = [s.session_id async for s in client.list_sessions(labels={"a": "b"}, states=states)]
    assert found == ["s0", "s1", "s2"]
    assert all(
        dict(request.labels) == {"a": "b"} and list(request.states) == states
        for request in daemon.of_type(wire.ListSessionsRequest)
    )


async def test_history_goes_backwards_to_the_first_event(
    daemon: Scripted, client: SessiondClient
) -> None:
    async def reply(request: wire.ListEventsRequest, context: Context) -> Message:
        before = request.before_seq or 8
        page = batch(max(1, before - 3), before - 1, 7)
        return wire.ListEventsResponse(events=page.events, head_seq=7, first_seq=1)

    daemon.replies["ListEvents"] = reply
    seen = [event.seq async for event in client.history("s", page_size=3)]
    assert seen == [7, 6, 5, 4, 3, 2, 1]
    assert len(daemon.of_type(wire.ListEventsRequest)) == 3
