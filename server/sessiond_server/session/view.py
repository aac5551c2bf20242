"""A session as clients see it: the Session message, made from the state."""

from __future__ import annotations

from sessiond.v1 import session_pb2
from sessiond_server.session import fold
from sessiond_server.session.core import Core


def summary(core: Core) -> session_pb2.Session:
    """Return the session as of the core's last event."""
    state, identity = core.state, core.identity
    session = session_pb2.Session(
        session_id=identity.session_id,
        transcript_id=identity.transcript_id,
        driver=identity.driver,
        workspace=identity.spec.workspace,
        title=state.title,
        labels=state.labels,
        # Unspecified until the first start, so that this one too is a change worth an event.
        state=session_pb2.SessionState.ValueType(state.state or session_pb2.SESSION_STATE_UNKNOWN),
        settings=session_pb2.Settings(
            model=state.model, permission_mode=state.permission_mode, effort=state.effort
        ),
        head_seq=core.head_seq,
        queue_length=len(state.queue),
        queue_paused=bool(state.queue) and (not core.alive or state.stopping),
        open_question_count=len(fold.open_questions(state)),
        turn_id=state.turn_id,
        total_tokens=fold.tokens(state),
        context_tokens=state.context_tokens,
        context_window=state.context_window,
        total_cost_usd=state.total_cost_usd,
        native_session_id=state.native_session_id,
        ephemeral=identity.spec.ephemeral,
        capabilities=core.driver.capabilities,
    )
    session.create_time.FromNanoseconds(state.create_time)
    session.update_time.FromNanoseconds(state.update_time)
    return session
