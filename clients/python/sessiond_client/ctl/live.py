"""What `attach` knows of its session: a fold of its events, for the input line and the toolbar."""

from __future__ import annotations

from sessiond.v1 import event_pb2, session_pb2
from sessiond_client import Pending, context_tokens

from .words import one_line, word

__all__ = ["LiveSession"]

_RUNNING = {
    session_pb2.SESSION_STATE_RUNNING,
    session_pb2.SESSION_STATE_AWAITING_INPUT,
    session_pb2.SESSION_STATE_COMPACTING,
}


class LiveSession:
    """A session as of the last event applied.

    Starts from what GetSession and the history say; `apply` passes over events that are in there.
    """

    def __init__(self, session: session_pb2.Session, pending: Pending) -> None:
        self.session = session
        self.pending = pending
        self.commands: list[str] = []
        self.lost = ""
        self._known = session.head_seq
        self._context = session.context_tokens if session.HasField("context_tokens") else None

    @property
    def running(self) -> bool:
        """Whether there is something to interrupt."""
        return self.session.state in _RUNNING

    @property
    def question(self) -> event_pb2.QuestionAsked | None:
        """The question that is to be answered next."""
        return next(iter(self.pending.questions.values()), None)

    def apply(self, event: event_pb2.Event) -> None:
        """Take the next event."""
        self.lost = ""
        if event.HasField("options_reported"):
            self.commands = [choice.id for choice in event.options_reported.commands]
        if event.seq <= self._known:
            return
        self.pending.apply(event)
        self._context = context_tokens(self._context, event)
        match event.WhichOneof("body"):
            case "state_changed":
                self.session.state = event.state_changed.state
            case "settings_changed":
                self._settings(event.settings_changed)
            case "usage_reported" if event.usage_reported.HasField("context_window"):
                self.session.context_window = event.usage_reported.context_window

    def _settings(self, changed: event_pb2.SettingsChanged) -> None:
        settings = self.session.settings
        for name in ("model", "permission_mode", "effort"):
            if changed.HasField(name):
                setattr(settings, name, getattr(changed, name))
        if changed.HasField("title"):
            self.session.title = changed.title

    def toolbar(self) -> str:
        """Return the line at the bottom."""
        session = self.session
        parts = [
            self.lost or word(session_pb2.SessionState.Name, session.state, "SESSION_STATE"),
            one_line(session.settings.model, 40),
            one_line(session.settings.permission_mode, 40),
            self._context_part(),
        ]
        waiting = len(self.pending.queue)
        if waiting:
            parts.append(f"{waiting} waiting")
        keys = "Ctrl-C interrupts" if self.running else "/help"
        title = one_line(session.title, 30) or session.session_id[:8]
        return " | ".join([title, *(part for part in parts if part), keys, "Ctrl-D leaves"])

    def _context_part(self) -> str:
        if self._context is None:
            return ""
        if self.session.HasField("context_window") and self.session.context_window:
            return f"context {self._context / self.session.context_window:.0%}"
        return f"context {self._context:,}"
