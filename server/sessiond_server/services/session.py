"""SessionService: checks a request's shape, passes it to the session, returns what it says."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from google.protobuf.message import Message

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_server import auth, validate
from sessiond_server.attachments import check_ref, not_found
from sessiond_server.config import Config
from sessiond_server.drain import Drain
from sessiond_server.errors import DomainError, invalid
from sessiond_server.roster import Roster
from sessiond_server.rpc import Context
from sessiond_server.services.subscription import Subscriptions, trailer
from sessiond_server.session import Attached, Core, Session, calls

__all__ = ["SessionService"]

_UPDATABLE = {"title", "labels"}
R = TypeVar("R", bound=Message)
_Mutating: TypeAlias = (
    api.SendRequest
    | api.EditMessageRequest
    | api.MoveMessageRequest
    | api.UnqueueRequest
    | api.AnswerRequest
    | api.ControlRequest
)


class SessionService:
    """The calls of `sessiond.v1.SessionService`."""

    def __init__(self, config: Config, roster: Roster, drain: Drain) -> None:
        self._config = config
        self._roster = roster
        self._subscriptions = Subscriptions(config, drain)

    # --- sessions ---

    async def CreateSession(
        self, request: api.CreateSessionRequest, context: Context
    ) -> api.CreateSessionResponse:
        """Create a session and start its agent."""
        return await self._roster.create(request)

    async def GetSession(
        self, request: api.GetSessionRequest, context: Context
    ) -> api.GetSessionResponse:
        """Return one session."""
        return api.GetSessionResponse(session=self._roster.get(request.session_id).summary())

    async def ListSessions(
        self, request: api.ListSessionsRequest, context: Context
    ) -> api.ListSessionsResponse:
        """Return a page of sessions."""
        return self._roster.list(request)

    async def UpdateSession(
        self, request: api.UpdateSessionRequest, context: Context
    ) -> api.UpdateSessionResponse:
        """Change a session's title or labels."""
        paths = set(request.update_mask.paths)
        if not paths or not paths <= _UPDATABLE:
            raise invalid("update_mask", "name what to change: title, labels")
        if "title" in paths:
            validate.title("session.title", request.session.title)
        if "labels" in paths:
            validate.labels("session.labels", request.session.labels)
        session = self._roster.get(request.session.session_id)

        def run(core: Core) -> Message:
            calls.update(core, request)
            return api.UpdateSessionResponse(session=session.summary_of(core))

        return await session.call(
            request,
            run,
            api.UpdateSessionResponse,
            request_id=validate.request_id(request.request_id),
            actor=auth.actor(),
        )

    async def DeleteSession(
        self, request: api.DeleteSessionRequest, context: Context
    ) -> api.DeleteSessionResponse:
        """Delete a session with its process, transcript and attachments."""
        return await self._roster.delete(request)

    # --- reading ---

    async def Subscribe(self, request: api.SubscribeRequest, context: Context) -> None:
        """Stream history and live events."""
        await self._subscriptions.serve(self._roster.get(request.session_id), request, context)

    async def ListEvents(self, request: api.ListEventsRequest, context: Context) -> bytes:
        """Return a page of history, backwards."""
        session = self._roster.get(request.session_id)
        size = validate.page_size(request.page_size)
        head = session.row.head_seq
        before = validate.seq("before_seq", request.before_seq) or head + 1
        if before > head + 1:
            raise DomainError(
                reasons.ERROR_REASON_SEQ_IN_FUTURE,
                f"before_seq is beyond the newest event, {head}",
                field="before_seq",
                metadata={"head_seq": str(head)},
            )
        data = session.page(before, size, self._config.limits.max_batch_bytes)
        return data + trailer(session)

    # --- the inbound verbs ---

    async def Send(self, request: api.SendRequest, context: Context) -> api.SendResponse:
        """Accept a message for the agent."""
        session = self._roster.get(request.session_id)
        if request.delivery not in session_pb2.Delivery.values():
            raise invalid("delivery", f"there is no delivery {request.delivery}")
        attachments = self._content(session, request.text, request.attachment_refs)
        message_id = str(uuid.uuid4())
        actor = auth.actor()
        return await self._call(
            session,
            request,
            lambda core: calls.send(core, request, message_id, attachments, actor),
            api.SendResponse,
        )

    async def EditMessage(
        self, request: api.EditMessageRequest, context: Context
    ) -> api.EditMessageResponse:
        """Replace the content of a waiting message."""
        session = self._roster.get(request.session_id)
        self._name("message_id", request.message_id)
        validate.seq("revision", request.revision)
        attachments = self._content(session, request.text, request.attachment_refs)
        return await self._call(
            session,
            request,
            lambda core: calls.edit(core, request, attachments),
            api.EditMessageResponse,
        )

    async def MoveMessage(
        self, request: api.MoveMessageRequest, context: Context
    ) -> api.MoveMessageResponse:
        """Change the place of a waiting message."""
        session = self._roster.get(request.session_id)
        self._name("message_id", request.message_id)
        validate.seq("revision", request.revision)
        return await self._call(
            session, request, lambda core: calls.move(core, request), api.MoveMessageResponse
        )

    async def Unqueue(self, request: api.UnqueueRequest, context: Context) -> api.UnqueueResponse:
        """Take a waiting message or command back."""
        session = self._roster.get(request.session_id)
        message_id = self._name("message_id", request.message_id)
        return await self._call(
            session,
            request,
            lambda core: calls.unqueue(core, request),
            api.UnqueueResponse,
            waits_for=message_id,
        )

    async def Answer(self, request: api.AnswerRequest, context: Context) -> api.AnswerResponse:
        """Answer an open question."""
        session = self._roster.get(request.session_id)
        self._name("question_id", request.question_id)
        most = self._config.limits.max_text_bytes
        validate.answers(request.answers, request.note, most)
        return await self._call(
            session, request, lambda core: calls.answer(core, request), api.AnswerResponse
        )

    async def Control(self, request: api.ControlRequest, context: Context) -> api.ControlResponse:
        """Carry out an action on the session itself."""
        session = self._roster.get(request.session_id)
        action = request.WhichOneof("action")
        if action is None:
            raise DomainError(
                reasons.ERROR_REASON_UNKNOWN_ACTION,
                "no action is set, or one that this version does not know",
                field="action",
            )
        self._check_action(request)
        command_id = str(uuid.uuid4())
        if action == "restart":
            return await self._restart(session, request)
        return await self._call(
            session,
            request,
            lambda core: calls.control(core, request, command_id),
            api.ControlResponse,
        )

    async def _restart(self, session: Session, request: api.ControlRequest) -> api.ControlResponse:
        refused: DomainError | None = None
        try:
            await self._roster.check_restart(session)
        except DomainError as error:
            refused = error

        def run(core: Core) -> Message:
            # Not before: a repeated call gets its first answer, whatever has changed since.
            if refused is not None:
                raise refused
            self._roster.check_conversation(session)
            return session.restart(core)

        return await self._call(session, request, run, api.ControlResponse)

    # --- shared ---

    async def _call(
        self,
        session: Session,
        request: _Mutating,
        run: Callable[[Core], Message | None],
        response_type: type[R],
        waits_for: str = "",
    ) -> R:
        return await session.call(
            request,
            run,
            response_type,
            request_id=validate.request_id(request.request_id),
            actor=auth.actor(),
            waits_for=waits_for,
        )

    @staticmethod
    def _name(field: str, value: str) -> str:
        return validate.text(field, value, validate.MAX_NAME_BYTES)

    def _content(self, session: Session, text: str, refs: Sequence[str]) -> tuple[Attached, ...]:
        """Check a message's text and attachments; one of the two must be there."""
        most = self._config.limits.max_text_bytes
        validate.text("text", text, most, empty=bool(refs))
        if len(refs) > validate.MAX_ATTACHMENTS:
            raise invalid("attachment_refs", f"at most {validate.MAX_ATTACHMENTS} attachments")
        attachments = tuple(self._attached(session, ref) for ref in refs)
        size = sum(attached.size_bytes for attached in attachments)
        if size > validate.MAX_ATTACHED_BYTES:
            limit = validate.MAX_ATTACHED_BYTES
            raise invalid("attachment_refs", f"{size} bytes together, a message takes at most {limit}")
        return attachments

    def _attached(self, session: Session, ref: str) -> Attached:
        check_ref(ref, "attachment_refs")
        found = self._roster.rows.get(session.session_id, ref)
        if found is None:
            raise not_found(ref)
        return Attached(found.ref, found.media_type, found.filename, found.size_bytes)

    def _check_action(self, request: api.ControlRequest) -> None:
        most = self._config.limits.max_text_bytes
        if request.HasField("set_title"):
            validate.title("set_title.title", request.set_title.title)
        elif request.HasField("run_command"):
            validate.text("run_command.text", request.run_command.text, most)
        elif request.HasField("compact"):
            instructions = request.compact.instructions
            validate.text("compact.instructions", instructions, most, empty=True)
        elif request.HasField("set_model"):
            self._name("set_model.model", request.set_model.model)
        elif request.HasField("set_permission_mode"):
            mode = request.set_permission_mode.permission_mode
            self._name("set_permission_mode.permission_mode", mode)
        elif request.HasField("set_effort"):
            effort = request.set_effort.effort
            validate.text("set_effort.effort", effort, validate.MAX_NAME_BYTES, empty=True)
