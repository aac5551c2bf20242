"""The inbound verbs, each a function of the core: check everything first, then act.

A DomainError leaves no trace: nothing is recorded before the last check has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_drivers.base import Effect, Refused
from sessiond_server.errors import DomainError, invalid
from sessiond_server.session import causes, fold
from sessiond_server.session import state as states
from sessiond_server.session.core import ALREADY_SENT, DROPPED, Core, command_text
from sessiond_server.session.state import Attached, Item, Question

T = TypeVar("T")

_STEER = session_pb2.DELIVERY_STEER
_NOW = session_pb2.DELIVERY_NOW
_APPEND = session_pb2.DELIVERY_APPEND


def _require_alive(core: Core) -> None:
    if not core.alive:
        raise DomainError(
            reasons.ERROR_REASON_SESSION_EXITED,
            "the agent's process has ended; start it again with Control restart",
            metadata={"session_id": core.identity.session_id},
        )


def _require(core: Core, capability: str) -> None:
    if not getattr(core.driver.capabilities, capability):
        raise DomainError(
            reasons.ERROR_REASON_DRIVER_UNSUPPORTED,
            f"this session's agent does not support {capability}; see Session.capabilities",
            metadata={"capability": capability},
        )


def _ask(verb: Callable[[], T]) -> T:
    """Call a driver's verb; its refusal becomes the call's error."""
    try:
        return verb()
    except Refused as refused:
        raise DomainError(refused.reason, str(refused), field=refused.field) from None


def _room(core: Core) -> None:
    if len(core.state.queue) >= core.limits.max_queue_length:
        raise DomainError(
            reasons.ERROR_REASON_QUEUE_FULL,
            f"{len(core.state.queue)} inputs wait already; take some back or let them run",
            retry_after=5.0,
        )


def _runs(core: Core) -> bool:
    """Whether a turn runs, or a message on its way to the agent will start one."""
    handed = (item for item in core.state.queue if item.handed)
    return bool(core.state.turn_id) or any(item.delivery != _APPEND for item in handed)


def send(
    core: Core,
    request: api.SendRequest,
    message_id: str,
    attachments: tuple[Attached, ...],
    actor: str,
) -> api.SendResponse:
    """Accept a message: MessageQueued, then its handover if the driver can take it now."""
    delivery = request.delivery or _STEER
    _require_alive(core)
    if delivery == _APPEND:
        _require(core, "append")
    if delivery == _NOW:
        _require(core, "interrupt")
    _room(core)
    item = Item(
        item_id=message_id,
        kind=states.MESSAGE,
        text=request.text,
        attachments=attachments,
        delivery=delivery,
        actor=actor,
        request_id=request.request_id,
    )
    effects: list[Effect] = []
    if delivery == _NOW and _runs(core):
        effects = _ask(core.driver.interrupt)
        core.expect("turn_ended")
    queue = core.state.queue
    queue.insert(0 if delivery == _NOW else len(queue), item)
    queued = ev.MessageQueued(
        message_id=message_id,
        text=item.text,
        attachments=[a.to_proto() for a in attachments],
        delivery=session_pb2.Delivery.ValueType(delivery),
        revision=item.revision,
    )
    seq = core.emit(ev.Event(message_queued=queued))
    core.apply(effects)
    core.advance()
    waits = core.find(message_id) is not None and not item.handed
    return api.SendResponse(message_id=message_id, queued=waits, seq=seq)


def _waiting_message(core: Core, message_id: str, revision: int) -> Item:
    item = core.find(message_id)
    if item is None or item.handed or item.kind != states.MESSAGE:
        raise DomainError(
            reasons.ERROR_REASON_MESSAGE_NOT_FOUND,
            "no message waits under this id: the agent has it, it was dropped, or it never was",
            metadata={"message_id": message_id},
        )
    if revision and revision != item.revision:
        raise DomainError(
            reasons.ERROR_REASON_STALE_REVISION,
            f"the message is at revision {item.revision} by now; look at it again",
            metadata={"revision": str(item.revision)},
        )
    return item


def edit(
    core: Core, request: api.EditMessageRequest, attachments: tuple[Attached, ...]
) -> api.EditMessageResponse:
    """Replace the text and attachments of a message that the server still holds."""
    item = _waiting_message(core, request.message_id, request.revision)
    item.text, item.attachments = request.text, attachments
    item.revision += 1
    edited = ev.MessageEdited(
        message_id=item.item_id,
        text=item.text,
        attachments=[a.to_proto() for a in attachments],
        revision=item.revision,
    )
    seq = core.emit(ev.Event(message_edited=edited))
    return api.EditMessageResponse(revision=item.revision, seq=seq)


def move(core: Core, request: api.MoveMessageRequest) -> api.MoveMessageResponse:
    """Change the place of a message that the server still holds."""
    item = _waiting_message(core, request.message_id, request.revision)
    queue = core.state.queue
    before = request.before_message_id
    if before:
        target = core.find(before)
        held = target is not None and target.kind == states.MESSAGE and not target.handed
        if target is None or not held or target is item:
            raise DomainError(
                reasons.ERROR_REASON_MESSAGE_NOT_FOUND,
                "nothing waits under before_message_id",
                field="before_message_id",
                metadata={"message_id": before},
            )
        queue.remove(item)
        queue.insert(queue.index(target), item)
    else:
        queue.remove(item)
        queue.append(item)
    item.revision += 1
    moved = ev.MessageMoved(message_id=item.item_id, before_message_id=before, revision=item.revision)
    seq = core.emit(ev.Event(message_moved=moved))
    return api.MoveMessageResponse(revision=item.revision, seq=seq)


def unqueue(core: Core, request: api.UnqueueRequest) -> api.UnqueueResponse | None:
    """Take a message or command back; None when the agent has to say (the core settles it later)."""
    item_id = request.message_id
    item = core.find(item_id)
    if item is None:
        return _became(core, item_id)
    if not item.handed:
        core.drop(item_id)
        return _became(core, item_id)
    if not core.driver.capabilities.unqueue_after_handover:
        return api.UnqueueResponse(outcome=ALREADY_SENT, seq=core.head_seq)
    if not item.taking_back:
        effects = _ask(lambda: core.driver.unqueue(item_id))
        item.taking_back = core.dirty = True
        core.apply(effects)
    return None


def _became(core: Core, item_id: str) -> api.UnqueueResponse:
    dropped_seq = core.state.became.get(item_id)
    if dropped_seq:
        return api.UnqueueResponse(outcome=DROPPED, seq=dropped_seq)
    known = ALREADY_SENT if dropped_seq == 0 else api.UNQUEUE_OUTCOME_UNKNOWN
    return api.UnqueueResponse(outcome=known, seq=core.head_seq)


def answer(core: Core, request: api.AnswerRequest) -> api.AnswerResponse:
    """Answer an open question: the first answer wins, the same one again is fine."""
    question = core.state.questions.get(request.question_id)
    if question is None:
        raise DomainError(
            reasons.ERROR_REASON_QUESTION_NOT_FOUND,
            "this session never asked a question of this id, or it is long gone",
            metadata={"question_id": request.question_id},
        )
    if question.withdrawn:
        raise DomainError(
            reasons.ERROR_REASON_QUESTION_WITHDRAWN,
            "the question was withdrawn; the agent no longer waits for it",
            metadata={"question_id": request.question_id},
        )
    answers = list(request.answers)
    digest = fold.answer_digest(answers, request.note)
    if question.answer:
        if question.answer == digest:
            return api.AnswerResponse(seq=question.seq)
        raise DomainError(
            reasons.ERROR_REASON_QUESTION_ALREADY_ANSWERED,
            "another answer was given first",
            metadata={"question_id": request.question_id, "answered_seq": str(question.seq)},
        )
    _check_answers(question, answers)
    _require_alive(core)
    effects = _ask(lambda: core.driver.answer(request.question_id, answers, request.note))
    answered = ev.QuestionAnswered(
        question_id=request.question_id,
        answers=[] if question.secret else answers,
        note=request.note,
    )
    seq = core.emit(ev.Event(question_answered=answered))
    core.state.questions[request.question_id].answer = digest
    core.apply(effects)
    core.advance()
    return api.AnswerResponse(seq=seq)


def _check_answers(question: Question, answers: list[str]) -> None:
    if not answers or not all(answers):
        raise invalid("answers", "give at least one answer, none of them empty")
    if len(answers) > 1 and not question.multi_select:
        raise invalid("answers", "this question takes one answer")
    if len(set(answers)) != len(answers):
        raise invalid("answers", "an answer is given twice")
    for text in answers:
        if text not in question.labels and not question.allow_text:
            offered = ", ".join(question.labels)
            raise invalid("answers", f"{text!r:.60} is not offered; the options are: {offered:.150}")


def control(core: Core, request: api.ControlRequest, command_id: str) -> api.ControlResponse:
    """Carry out one action, except restart (the actor's); a command gets `command_id`."""
    action = request.WhichOneof("action")
    if action in _COMMANDS:
        return _command(core, request, action, command_id)
    return _ACTIONS[action or ""](core, request)


def _plain(core: Core) -> api.ControlResponse:
    return api.ControlResponse(seq=core.head_seq)


def _interrupt(core: Core, request: api.ControlRequest) -> api.ControlResponse:
    _require(core, "interrupt")
    wanted = request.interrupt.turn_id
    running = core.state.turn_id
    if not running or (wanted and wanted != running):
        raise DomainError(
            reasons.ERROR_REASON_TURN_NOT_RUNNING,
            f"turn {wanted} is not running" if wanted else "no turn is running",
            metadata={"turn_id": running} if running else {},
        )
    effects = _ask(core.driver.interrupt)
    core.expect("turn_ended")
    core.apply(effects)
    core.advance()
    return _plain(core)


def _check_offered(field: str, value: str, offered: list[str]) -> None:
    if offered and value not in offered:
        raise invalid(field, f"{value!r:.60} is not offered; choose one of: {', '.join(offered):.150}")


def _setting(
    core: Core, request: api.ControlRequest, name: str, value: str, offered: list[str]
) -> api.ControlResponse:
    _require_alive(core)
    _require(core, f"set_{name}")
    field = f"set_{name}.{name}"
    if name != "effort" and not value:
        raise invalid(field, "name the value to set")
    if value:
        _check_offered(field, value, offered)
    verb = getattr(core.driver, f"set_{name}")
    effects = _ask(lambda: verb(value))
    causes.expect_setting(core.state, name, request.request_id)
    core.dirty = True
    core.apply(effects)
    return _plain(core)


def _set_model(core: Core, request: api.ControlRequest) -> api.ControlResponse:
    return _setting(core, request, "model", request.set_model.model, core.state.models)


def _set_permission_mode(core: Core, request: api.ControlRequest) -> api.ControlResponse:
    mode = request.set_permission_mode.permission_mode
    return _setting(core, request, "permission_mode", mode, core.state.permission_modes)


def _set_effort(core: Core, request: api.ControlRequest) -> api.ControlResponse:
    return _setting(core, request, "effort", request.set_effort.effort, core.state.efforts)


def _set_title(core: Core, request: api.ControlRequest) -> api.ControlResponse:
    title(core, request.set_title.title, request.request_id)
    return _plain(core)


def title(core: Core, text: str, request_id: str = "") -> None:
    """Change the title: through the agent where it keeps one of its own, else here."""
    if core.alive and core.driver.capabilities.native_title:
        effects = _ask(lambda: core.driver.set_title(text))
        causes.expect_setting(core.state, "title", request_id)
        core.dirty = True
        core.apply(effects)
    else:
        core.emit(ev.Event(settings_changed=ev.SettingsChanged(title=text)))


def _stop(core: Core, request: api.ControlRequest) -> api.ControlResponse:
    _require_alive(core)
    core.state.restarting = False
    core.expect("process_exited")
    if not core.state.stopping:
        core.stop()
    return _plain(core)


_ACTIONS: dict[str, Callable[[Core, api.ControlRequest], api.ControlResponse]] = {
    "interrupt": _interrupt,
    "set_model": _set_model,
    "set_permission_mode": _set_permission_mode,
    "set_effort": _set_effort,
    "set_title": _set_title,
    "stop": _stop,
}
_COMMANDS = {
    "compact": (states.COMPACT, "compact"),
    "clear": (states.CLEAR, "clear"),
    "run_command": (states.RUN, "raw_commands"),
}


def _command(
    core: Core, request: api.ControlRequest, action: str, command_id: str
) -> api.ControlResponse:
    """Accept a command; it waits its turn in the queue, visibly."""
    kind, capability = _COMMANDS[action]
    _require_alive(core)
    _require(core, capability)
    text = ""
    if kind == states.RUN:
        text = request.run_command.text
        _ask(lambda: core.driver.check_command(text))
    elif kind == states.COMPACT:
        text = request.compact.instructions
    _room(core)
    _, actor = core.cause
    item = Item(
        item_id=command_id,
        kind=kind,
        text=text,
        request_id=request.request_id,
        actor=actor,
    )
    ready = core.driver.between_turns and not core.state.stopping
    waits = not ready or any(not i.handed for i in core.state.queue)
    core.state.queue.append(item)
    core.dirty = True
    seq = core.head_seq + 1
    if waits:
        queued = ev.CommandQueued(command_id=item.item_id, text=command_text(item))
        core.emit(ev.Event(command_queued=queued))
    core.advance()
    return api.ControlResponse(command_id=item.item_id, queued=waits, seq=seq)


def update(core: Core, request: api.UpdateSessionRequest) -> None:
    """Change title and labels as the mask says."""
    paths = set(request.update_mask.paths)
    if "title" in paths:
        title(core, request.session.title, request.request_id)
    if "labels" in paths:
        core.state.labels = dict(request.session.labels)
        core.touch()
