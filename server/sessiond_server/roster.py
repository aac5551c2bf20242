"""All sessions of this daemon: create, find, list, adopt, delete."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import structlog
from google.protobuf.message import Message

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_server import recovery, shim, validate
from sessiond_server.config import Config
from sessiond_server.drivers import Drivers
from sessiond_server.errors import DomainError, invalid
from sessiond_server.session import (
    Contents,
    Context,
    Limits,
    Session,
    Spec,
    State,
    decode_spec,
    encode,
    request_id_reused,
)
from sessiond_server.store import CREATIONS, Response, SessionRow, StorageFull, Store

T = TypeVar("T")

_logger = structlog.get_logger(__name__)
_KILL_TIMEOUT = 10.0
_RETRY_PAUSE = 1.0
# What stands for the driver and conversation of a session that failed and has a row still.
_NOBODYS = ("", "")
# How long a deletion's request_id is kept at least, in nanoseconds.
_WEEK = 7 * 24 * 3600 * 10**9
# Clients receive 4 MiB by default.
_PAGE_BYTES = 1 << 20


class AttachmentRows:
    """Which session may see which attachment, by session id."""

    def __init__(self, roster: Roster, store: Store) -> None:
        self._roster = roster
        self._store = store

    def get(self, session_id: str, ref: str) -> session_pb2.Attachment | None:
        """Return the attachment, or None. Raises SESSION_NOT_FOUND."""
        return self._store.get_attachment(self._roster.get(session_id).row.key, ref)

    async def add(self, session_id: str, attachment: session_pb2.Attachment) -> None:
        """Let a session see an attachment. Raises SESSION_NOT_FOUND."""
        if not await self._store.add_attachment(self._roster.get(session_id).row.key, attachment):
            raise _not_found(session_id)


class Roster:
    """Every session by its id. Made by `open`, ended by `close`."""

    def __init__(
        self,
        config: Config,
        store: Store,
        drivers: Drivers,
        contents: Contents,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._config = config
        self._store = store
        self._drivers = drivers
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._creating: dict[str, asyncio.Task[api.CreateSessionResponse]] = {}
        # What is being created and is no session yet: its id, driver and native session id.
        self._reserved: dict[str, tuple[str, str]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._context = Context(
            store=store,
            contents=contents,
            clock=clock,
            environment=_agent_environment,
            sessions_dir=config.data_dir / "sessions",
            limits=Limits(
                max_event_bytes=config.limits.max_event_bytes,
                max_queue_length=config.limits.max_queue_length,
            ),
            launch_timeout=config.launch_timeout,
            log_cap=config.raw_log_cap,
        )
        self.rows = AttachmentRows(self, store)

    # --- the daemon's life ---

    @classmethod
    async def open(
        cls,
        config: Config,
        store: Store,
        drivers: Drivers,
        contents: Contents,
        *,
        clock: Callable[[], int] = time.time_ns,
        boot_id: str | None = None,
    ) -> Roster:
        """Load all sessions and begin to find the living processes again, in the background.

        `clock` gives nanoseconds since the epoch; `boot_id` names this boot of the machine (default: as
        the system says, "" where it does not).
        """
        roster = cls(config, store, drivers, contents, clock)
        await roster._load(shim.boot_id() if boot_id is None else boot_id)
        return roster

    async def _load(self, boot_id: str) -> None:
        rows = list(self._store.sessions())
        strange = recovery.put_aside(self._context.sessions_dir, self._store, rows)
        await recovery.check_boot(self._store, rows, boot_id)
        await recovery.drop_orphans(self._store)
        self._spawn(recovery.sweep(strange))
        for row in rows:
            if row.run:
                self._adopt(self._make(row))
            else:
                # Never started: its CreateSession got no answer, and makes it anew when repeated.
                await self._store.delete_session(row.key)

    def _adopt(self, session: Session) -> None:
        if not session.unsettled:
            return
        try:
            session.open()
        except Exception:
            # Its driver may not be installed any more; the others are not to suffer for it.
            _logger.exception("session_not_opened", session_id=session.session_id)
            return
        if session.ephemeral:
            self._spawn(session.kill(_KILL_TIMEOUT))

    async def close(self) -> None:
        """Let go of every session; the processes live on, but for those of ephemeral sessions."""
        # First whoever creates and deletes: else a session might begin behind this back.
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        sessions = list(self._sessions.values())
        ending = [s.kill(_KILL_TIMEOUT) for s in sessions if s.ephemeral and s.row.alive]
        await asyncio.gather(*ending)
        await asyncio.gather(*(s.close() for s in sessions))
        await recovery.note_end(self._store)

    def drain(self) -> None:
        """Wake every subscriber, so that it sees the daemon going."""
        for session in self._sessions.values():
            session.tail.wake()

    def _make(self, row: SessionRow) -> Session:
        session = Session(row, lambda: self._drivers.create(row.driver), self._context)
        self._sessions[row.session_id] = session
        return session

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Let `work` go on by itself, also when its caller goes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- finding ---

    def get(self, session_id: str) -> Session:
        """Return a session; raises SESSION_NOT_FOUND."""
        session = self._sessions.get(session_id)
        if session is None:
            raise _not_found(session_id)
        return session

    def list(self, request: api.ListSessionsRequest) -> api.ListSessionsResponse:
        """Return a page of sessions, the newest first."""
        size = validate.page_size(request.page_size)
        before = _decode_token(request.page_token)
        states = validate.states(request.states)
        found: list[session_pb2.Session] = []
        token, held = "", 0
        sessions = sorted(self._sessions.values(), key=lambda s: s.row.key, reverse=True)
        last = 0
        for session in sessions:
            if before and session.row.key >= before:
                continue
            summary = session.summary()
            if not _matches(summary, request.labels, states):
                continue
            held += summary.ByteSize()
            if len(found) == size or (found and held > _PAGE_BYTES):
                token = _encode_token(last)
                break
            found.append(summary)
            last = session.row.key
        return api.ListSessionsResponse(sessions=found, next_page_token=token)

    # --- creating ---

    async def create(self, request: api.CreateSessionRequest) -> api.CreateSessionResponse:
        """Create a session and start its agent; equal calls of one request_id get one session.

        Goes on when the caller gives up: a retry gets what it came to.
        """
        request_id = validate.request_id(request.request_id)
        digest = _digest(request)
        while request_id and (running := self._creating.get(request_id)) is not None:
            await asyncio.wait((running,))
        known = await self._created(request_id, digest)
        if known is not None:
            return known
        work = self._spawn(self._create(request, digest))
        if request_id:
            self._creating[request_id] = work
            work.add_done_callback(lambda _: self._creating.pop(request_id, None))
        return await asyncio.shield(work)

    async def _created(self, request_id: str, digest: bytes) -> api.CreateSessionResponse | None:
        """Return what an equal call made before, if it did."""
        known = self._earlier(request_id, digest)
        if known is None:
            return None
        response = api.CreateSessionResponse.FromString(known.response)
        if not response.session.driver:
            # The daemon died before the call was answered: its session, if it is there, is the answer.
            session = self._sessions.get(response.session.session_id)
            if session is None:
                return None
            response.session.CopyFrom(session.summary())
            await self._keep(known, response)
        return response

    def _earlier(self, request_id: str, digest: bytes) -> Response | None:
        """Return what a creation or deletion of this request_id got; raises REQUEST_ID_REUSED."""
        week = self._clock() // _WEEK
        for key in (CREATIONS, -week, 1 - week) if request_id else ():
            known = self._store.response(key, request_id)
            if known is not None:
                if known.digest != digest:
                    raise request_id_reused(request_id)
                return known
        return None

    async def _create(
        self, request: api.CreateSessionRequest, digest: bytes
    ) -> api.CreateSessionResponse:
        session_id = request.session_id or str(uuid.uuid4())
        # Enough to find the session by, should this daemon not live to give the answer.
        response = api.CreateSessionResponse(session=session_pb2.Session(session_id=session_id))
        kept = None
        if request.request_id:
            kept = Response(request.request_id, digest, response.SerializeToString())
        with self._reserve(session_id, request):
            row = await self._new_row(session_id, request)
            row.key = await self._store.create_session(row, kept)
            session = self._make(row)
        try:
            await session.launch(resume=bool(request.native_session_id))
        except BaseException:
            await self._take_back(session)
            raise
        response.session.CopyFrom(session.summary())
        if kept is not None:
            await self._keep(kept, response)
        return response

    async def _keep(self, kept: Response, response: api.CreateSessionResponse) -> None:
        """Keep the whole response for a retry; on a full disk the session it names will do."""
        kept.response = response.SerializeToString()
        with contextlib.suppress(StorageFull):
            await self._store.keep_response(CREATIONS, kept)

    async def _take_back(self, session: Session) -> None:
        """Remove a session that could not be started."""
        await self._end(session)
        try:
            await self._erase(session, None)
        except StorageFull:
            # Nobody is to see it, and its row would stand in the way of another of its id.
            self._sessions.pop(session.session_id, None)
            self._reserved[session.session_id] = _NOBODYS
            self._spawn(self._erase_later(session))

    async def _erase_later(self, session: Session) -> None:
        while self._reserved.get(session.session_id) is _NOBODYS:
            await asyncio.sleep(_RETRY_PAUSE)
            with contextlib.suppress(StorageFull):
                await self._erase(session, None)
                del self._reserved[session.session_id]

    @contextlib.contextmanager
    def _reserve(self, session_id: str, request: api.CreateSessionRequest) -> Iterator[None]:
        """Hold the id, the place and the conversation while in the block."""
        validate.session_id(session_id)
        limits = self._config.limits
        if session_id in self._sessions or session_id in self._reserved:
            raise DomainError(
                reasons.ERROR_REASON_SESSION_EXISTS,
                "there is a session of this id already",
                metadata={"session_id": session_id},
            )
        if len(self._sessions) + len(self._reserved) >= limits.max_sessions:
            raise DomainError(
                reasons.ERROR_REASON_TOO_MANY_SESSIONS,
                f"there are {limits.max_sessions} sessions already; delete some, or raise "
                "limits.max_sessions",
            )
        self._check_native(request.driver, request.native_session_id)
        self._reserved[session_id] = (request.driver, request.native_session_id)
        try:
            yield
        finally:
            del self._reserved[session_id]

    async def _new_row(self, session_id: str, request: api.CreateSessionRequest) -> SessionRow:
        spec = self._spec(request)
        validate.text("driver", request.driver, validate.MAX_NAME_BYTES)
        await self._drivers.require(request.driver)
        self._check_resume(request)
        now = self._clock()
        state = State(
            state=session_pb2.SESSION_STATE_UNSPECIFIED,
            title=validate.title("title", request.title),
            labels=validate.labels("labels", request.labels),
            native_session_id=request.native_session_id,
            create_time=now,
            update_time=now,
        )
        return SessionRow(
            key=0,
            session_id=session_id,
            transcript_id=uuid.uuid4().hex,
            driver=request.driver,
            spec=encode(spec),
            state=encode(state),
        )

    def _spec(self, request: api.CreateSessionRequest) -> Spec:
        most = self._config.limits.max_text_bytes
        for name in ("model", "permission_mode", "effort"):
            field, value = f"settings.{name}", getattr(request.settings, name)
            validate.argument(field, value, validate.MAX_NAME_BYTES)
        native = request.native_session_id
        validate.argument("native_session_id", native, validate.MAX_NAME_BYTES)
        validate.argument("system_prompt", request.system_prompt, most)
        return Spec(
            workspace=validate.workspace(request.workspace, self._config.workspace_roots),
            model=request.settings.model,
            permission_mode=request.settings.permission_mode,
            effort=request.settings.effort,
            system_prompt=request.system_prompt,
            environment=validate.environment(request.environment, most),
            ephemeral=request.ephemeral,
            request_id=request.request_id,
        )

    def _check_resume(self, request: api.CreateSessionRequest) -> None:
        if not request.native_session_id:
            return
        if not self._drivers.capabilities(request.driver).resume:
            raise DomainError(
                reasons.ERROR_REASON_DRIVER_UNSUPPORTED,
                f"driver {request.driver} cannot continue a conversation",
                field="native_session_id",
                metadata={"capability": "resume"},
            )

    def _check_native(self, driver: str, native: str, beside: Session | None = None) -> None:
        """Two processes on one conversation would overwrite each other's work."""
        taken = dict(self._reserved)
        for session in self._sessions.values():
            if session.lives and session is not beside and session.row.driver == driver:
                taken[session.session_id] = (driver, session.summary().native_session_id)
        for session_id, conversation in taken.items():
            if native and conversation == (driver, native):
                raise DomainError(
                    reasons.ERROR_REASON_NATIVE_SESSION_IN_USE,
                    f"session {session_id} runs this conversation already",
                    field="native_session_id",
                    metadata={"session_id": session_id},
                )

    async def check_restart(self, session: Session) -> None:
        """Raise what CreateSession would raise of a session's driver and workspace."""
        row = session.row
        await self._drivers.require(row.driver)
        validate.workspace(decode_spec(row.spec).workspace, self._config.workspace_roots)

    def check_conversation(self, session: Session) -> None:
        """Raise NATIVE_SESSION_IN_USE when another session runs, or is about to run, its conversation.

        To be called in the step that restarts it: what was seen before may be another thing by then.
        """
        self._check_native(session.row.driver, session.summary().native_session_id, session)

    # --- deleting ---

    async def delete(self, request: api.DeleteSessionRequest) -> api.DeleteSessionResponse:
        """End a session's process and delete everything that is kept of it.

        Goes on when the caller gives up.
        """
        request_id = validate.request_id(request.request_id)
        digest = _digest(request)
        response = api.DeleteSessionResponse()
        if self._earlier(request_id, digest) is None:
            session = self.get(request.session_id)
            kept = Response(request_id, digest, response.SerializeToString()) if request_id else None
            await asyncio.shield(self._spawn(self._remove(session, kept)))
        return response

    async def _remove(self, session: Session, kept: Response | None) -> None:
        await self._end(session)
        try:
            await self._erase(session, kept)
        except BaseException as error:
            session.reopen()
            if not isinstance(error, StorageFull):
                raise
            raise DomainError(
                reasons.ERROR_REASON_STORAGE_FULL,
                "the disk of the data directory is full: the agent was ended, and the session is still "
                "there; make room and delete it again",
                retry_after=_RETRY_PAUSE,
            ) from error

    async def _end(self, session: Session) -> None:
        """End all that runs of a session, and its actor."""
        if not await session.kill(_KILL_TIMEOUT):
            await shim.kill_runs(session.directory)
        await session.close(deleting=True)
        # With its directory goes the last trace of a shim that nobody knew of.
        if shim.is_alive(session.directory):
            await shim.kill_runs(session.directory)
        # Runs that ended by themselves may have left something running, on purpose; now it goes too.
        await shim.kill_leftovers(session.marker)

    async def _erase(self, session: Session, kept: Response | None) -> None:
        """Delete everything that is kept of a session. Raises StorageFull: that takes room too."""
        creation = decode_spec(session.row.spec).request_id
        week = self._clock() // _WEEK
        await self._store.delete_session(session.row.key, creation, kept, week)
        if self._sessions.get(session.session_id) is session:
            del self._sessions[session.session_id]
        session.tail.close()
        shutil.rmtree(session.directory, ignore_errors=True)


def _not_found(session_id: str) -> DomainError:
    return DomainError(
        reasons.ERROR_REASON_SESSION_NOT_FOUND,
        "there is no session of this id; ListSessions tells which there are",
        metadata={"session_id": session_id},
    )


def _digest(request: Message) -> bytes:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()


def _agent_environment() -> dict[str, str]:
    """The daemon's environment without what is its own: agents must not find its token or settings."""
    private = ("SESSIOND_", "GRPC_")
    return {k: v for k, v in os.environ.items() if not k.startswith(private)}


def _matches(
    summary: session_pb2.Session,
    labels: Mapping[str, str],
    states: set[session_pb2.SessionState.ValueType],
) -> bool:
    if states and summary.state not in states:
        return False
    return all(summary.labels.get(key) == value for key, value in labels.items())


def _encode_token(key: int) -> str:
    return base64.urlsafe_b64encode(f"v1:{key}".encode()).decode()


def _decode_token(token: str) -> int:
    if not token:
        return 0
    try:
        version, _, key = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
        if version == "v1" and int(key) > 0:
            return int(key)
    except (ValueError, binascii.Error):
        pass
    raise invalid("page_token", "this is no token that a page came with; start again without it")
