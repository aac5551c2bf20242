"""Model, permission mode, effort, title: asking for them, and what confirms each.

The program takes any model and most efforts without a word; what it made of them it tells in its
settings (`get_settings`, `applied`) and in the init of the next turn.
"""

from __future__ import annotations

from sessiond.v1 import error_reason_pb2, session_pb2
from sessiond.v1 import event_pb2 as ev
from sessiond_drivers.base import Effect, Emit, Refused, Write
from sessiond_drivers.claude.config import ClaudeConfig
from sessiond_drivers.claude.launch import BYPASS
from sessiond_drivers.claude.state import Pending, State, Verb
from sessiond_drivers.claude.wire import Record, control_request, obj, records, strings, text

__all__ = [
    "answered",
    "ask_applied",
    "confirmed",
    "offered",
    "refused",
    "set_effort",
    "set_model",
    "set_permission_mode",
    "set_title",
    "title_changed",
]

_MODES = {
    "default": "Ask before edits and commands",
    "acceptEdits": "Edit files in the workspace without asking",
    "plan": "Read and plan, change nothing",
    "dontAsk": "Refuse whatever would need asking",
    "auto": "The agent judges what needs asking",
    BYPASS: "Do everything without asking",
}


def set_model(state: State, model: str) -> list[Effect]:
    """Ask for another model."""
    fields = {"model": model} if model else {}
    return [Write(control_request(state.request("model", model), "set_model", **fields))]


def set_permission_mode(state: State, mode: str) -> list[Effect]:
    """Ask for another permission mode. Raises Refused for one that is not offered."""
    if state.modes and mode not in state.modes:
        # Older versions accept any word and then treat it as a mode of its own.
        raise Refused(
            error_reason_pb2.ERROR_REASON_INVALID_FIELD,
            f"there is no permission mode {mode!r}; use one of {', '.join(state.modes)}",
            "set_permission_mode.permission_mode",
        )
    return [Write(control_request(state.request("mode", mode), "set_permission_mode", mode=mode))]


def set_effort(state: State, effort: str) -> list[Effect]:
    """Ask for another effort; "" is the model's default."""
    applied = {"effortLevel": effort or None}
    request_id = state.request("effort", effort)
    return [Write(control_request(request_id, "apply_flag_settings", settings=applied))]


def set_title(state: State, title: str) -> list[Effect]:
    """Tell the title. The agent takes no empty one, so that one it is not told."""
    if not title:
        state.settings.title = ""
        return [_changed(ev.SettingsChanged(title=""))]
    return [Write(control_request(state.request("title", title), "rename_session", title=title))]


def ask_applied(state: State, subject: str = "") -> list[Effect]:
    """Ask what is in force; `subject` is the effort that was asked for, if any."""
    return [Write(control_request(state.request("applied", subject), "get_settings"))]


def answered(state: State, pending: Pending, response: Record) -> list[Effect]:
    """Take the success of a settings request."""
    if pending.verb == "model":
        if model := text(response, "model"):
            return confirmed(state, model=model, asked=True)
        state.settings.models_due += 1
        return ask_applied(state)
    if pending.verb == "mode":
        return confirmed(state, mode=text(response, "mode") or pending.subject, asked=True)
    if pending.verb == "effort":
        return ask_applied(state, pending.subject or "default")
    if pending.verb == "title":
        return [] if pending.settled else confirmed(state, title=pending.subject, asked=True)
    return _applied(state, pending, obj(response, "applied"))


def refused(pending: Pending, error: str) -> list[Effect]:
    """Take the failure of a settings request."""
    raised = ev.ErrorRaised(reason="SETTING_REFUSED", message=error or "the agent refused it")
    return [Emit(ev.Event(error_raised=raised))]


def confirmed(
    state: State, *, model: str = "", mode: str = "", title: str = "", asked: bool = False
) -> list[Effect]:
    """Say what the agent confirmed, when it is news or was asked for.

    What is not an answer is kept back while an answer about the same setting is on its way: whoever
    asked must not take the one for the other.
    """
    settings = state.settings
    changed = ev.SettingsChanged()
    times = 1
    if model:
        if asked or settings.models_due or (model != settings.model and not _awaited(state, "model")):
            changed.model = model
            times = max(1, settings.models_due)
        settings.model, settings.models_due = model, 0
    if mode:
        if asked or (mode != settings.permission_mode and not _awaited(state, "mode")):
            changed.permission_mode = mode
        settings.permission_mode = mode
    if title:
        if asked or (title != settings.title and not _awaited(state, "title")):
            changed.title = title
        settings.title = title
    effects = [_changed(changed)] if changed.ByteSize() else []
    return effects + [_changed(ev.SettingsChanged(model=model)) for _ in range(times - 1)]


def title_changed(state: State, title: str) -> list[Effect]:
    """The agent says that its title is another; that also answers a request for it."""
    asked = [p for p in state.pending.values() if p.verb == "title" and p.subject == title]
    for pending in asked:
        pending.settled = True
    return confirmed(state, title=title, asked=bool(asked))


def offered(state: State, config: ClaudeConfig, response: Record) -> list[Effect]:
    """Report what can be picked, from the answer to the opening request."""
    models, commands = records(response, "models"), records(response, "commands")
    efforts = dict.fromkeys(e for model in models for e in strings(model, "supportedEffortLevels"))
    state.modes = [mode for mode in _MODES if _is_offered(state, config, models, mode)]
    names = [n for c in commands for n in (text(c, "name"), *strings(c, "aliases")) if n]
    state.commands = list(dict.fromkeys([*names, *state.commands]))
    report = ev.OptionsReported(
        models=[
            session_pb2.Choice(
                id=text(m, "value"), label=text(m, "displayName"), description=text(m, "description")
            )
            for m in models
            if text(m, "value")
        ],
        permission_modes=[session_pb2.Choice(id=m, label=m, description=_MODES[m]) for m in state.modes],
        efforts=[session_pb2.Choice(id=effort, label=effort) for effort in efforts],
        commands=[_command(c) for c in commands if text(c, "name")],
    )
    return [Emit(ev.Event(options_reported=report))]


def _command(command: Record) -> session_pb2.Choice:
    name = f"/{text(command, 'name')}"
    label = f"{name} {text(command, 'argumentHint')}".strip()
    return session_pb2.Choice(id=name, label=label, description=text(command, "description"))


def _is_offered(state: State, config: ClaudeConfig, models: list[Record], mode: str) -> bool:
    if mode == "auto":
        return any(model.get("supportsAutoMode") is True for model in models)
    if mode == BYPASS:
        return config.allow_bypass or state.bypass
    return True


def _applied(state: State, pending: Pending, applied: Record) -> list[Effect]:
    effects = confirmed(state, model=text(applied, "model"))
    effort = text(applied, "effort")
    wanted = pending.subject
    if wanted and wanted not in ("default", effort):
        message = f"the agent stays at the effort {effort or 'of the model'} instead of {wanted}"
        return effects + refused(pending, message)
    if wanted or (effort and effort != state.settings.effort and not _awaited(state, "effort")):
        state.settings.effort = effort
        effects.append(_changed(ev.SettingsChanged(effort=effort)))
    return effects


def _awaited(state: State, verb: Verb) -> bool:
    return any(
        pending.verb == verb or (verb == "effort" and pending.verb == "applied" and pending.subject)
        for pending in state.pending.values()
    )


def _changed(changed: ev.SettingsChanged) -> Effect:
    return Emit(ev.Event(settings_changed=changed))
