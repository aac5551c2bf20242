"""What a session says of what it does: which call caused it, where things stand, what became of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_drivers.base import Attach, Effect, Emit, ExitStatus, Identified, Refused, Write
from sessiond_server.errors import DomainError
from sessiond_server.session import (
    Attached,
    Core,
    Identity,
    Limits,
    Product,
    Spec,
    State,
    calls,
    encode,
    fold,
    view,
)
from sessiond_server.session.state import decode_state
from tests.unit.session.scripted import ScriptedDriver

STEER, NEXT, NOW = (
    session_pb2.DELIVERY_STEER,
    session_pb2.DELIVERY_NEXT_TURN,
    session_pb2.DELIVERY_NOW,
)


class Agent(ScriptedDriver):
    """Says more, and refuses what the test wants refused: the names in `refuses`."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: set[str] = set()

    @property
    def capabilities(self) -> session_pb2.DriverCapabilities:
        capabilities = super().capabilities
        capabilities.native_title = True
        return capabilities

    def _refuse(self, name: str) -> None:
        if name in self.refuses:
            raise Refused(reasons.ERROR_REASON_COMMAND_FAILED, f"no {name} today")

    def set_title(self, title: str) -> list[Effect]:
        self._refuse("title")
        return [Write(b"title\n")]

    def set_model(self, model: str) -> list[Effect]:
        return [Write(b"model\n")]

    def clear(self, command_id: str) -> list[Effect]:
        self._refuse("clear")
        self._memory.busy = True
        return [Write(b"clear\n")]

    def line(self, line: bytes) -> list[Effect]:
        words = line.decode("unicode-escape").split(" ")
        match words:
            case ["model", model]:
                return [Emit(ev.Event(settings_changed=ev.SettingsChanged(model=model)))]
            case ["refused"]:
                return [Emit(ev.Event(error_raised=ev.ErrorRaised(reason="SETTING_REFUSED")))]
            case ["cleared"]:
                self._memory.busy = False
                return [Emit(ev.Event(cleared=ev.Cleared()))]
            case ["failed"]:
                self._memory.busy = False
                return [Emit(ev.Event(error_raised=ev.ErrorRaised(reason="COMMAND_FAILED")))]
            case ["call", "it", title]:
                return [Emit(ev.Event(settings_changed=ev.SettingsChanged(title=title)))]
            case ["i", "am", native, version]:
                return [Identified(native, version)]
            case ["usage", count]:
                turn = session_pb2.Tokens(input=int(count))
                return [Emit(ev.Event(usage_reported=ev.UsageReported(turn=turn)))]
            case ["made", name]:
                return [Attach(b"data", name, name, name, name)]
            case ["file", "end"]:
                return [Attach(b"data", "text/plain", tool_id="\ud800"), *super().line(b"end")]
        return super().line(line)


class Room:
    """A core whose steps are committed at once; `events` is the transcript."""

    def __init__(self) -> None:
        self.driver = Agent()
        self.events: list[ev.Event] = []
        self.time = 0
        self.core = self._core(State(), alive=False)
        self.step(lambda core: core.launch(resume=False))
        self.step(lambda core: core.started(1, 1))
        self.say("ready")

    def _core(self, state: State, *, alive: bool, head_seq: int = 0, input_id: int = 0) -> Core:
        return Core(
            Identity("s", "t", "scripted", Spec(workspace="w")),
            self.driver,
            state,
            head_seq=head_seq,
            input_id=input_id,
            alive=alive,
            limits=Limits(),
            load=lambda attached: (_ for _ in ()).throw(OSError("gone")),
        )

    def restore(self) -> None:
        """The daemon dies and comes back."""
        old, snapshot = self.core, self.driver.snapshot()
        refuses, self.driver = self.driver.refuses, Agent()
        self.driver.refuses = refuses
        self.driver.restore(snapshot)
        state = decode_state(encode(old.state))
        self.core = self._core(state, alive=old.alive, head_seq=old.head_seq, input_id=old.input_id)

    def step(self, *parts: Callable[[Core], object], cause: tuple[str, str] = ("", "")) -> Product:
        self.time += 1
        self.core.begin(self.time)
        for part in parts:
            self.core.caused_by(*cause)
            part(self.core)
            self.core.caused_by("", "")
        product = self.core.finish()
        self.events += api.SubscribeResponse.FromString(b"".join(product.records)).events
        return product

    def say(self, *lines: str) -> Product:
        return self.step(lambda core: core.lines([line.encode() for line in lines]))

    def send(self, message_id: str, delivery: int = STEER, request_id: str = "") -> Product:
        request = api.SendRequest(text=message_id, request_id=request_id)
        request.delivery = session_pb2.Delivery.ValueType(delivery)
        return self.step(
            lambda core: calls.send(core, request, message_id, (), "someone"),
            cause=(request_id, "someone"),
        )

    def control(self, request_id: str = "", **action: Any) -> Product:
        request = api.ControlRequest(request_id=request_id, **action)
        return self.step(
            lambda core: calls.control(core, request, f"c{self.time}"), cause=(request_id, "someone")
        )

    def exit(self) -> Product:
        return self.step(lambda core: core.exited(ExitStatus(exit_code=1)))

    def unqueue(self, message_id: str) -> api.UnqueueResponse | None:
        request = api.UnqueueRequest(message_id=message_id)
        replies: list[api.UnqueueResponse | None] = []
        self.product = self.step(lambda core: replies.append(calls.unqueue(core, request)))
        return replies[0]

    def restart(self) -> None:
        self.exit()
        self.step(lambda core: core.launch(resume=True))

    def last(self, kind: str) -> ev.Event:
        return next(e for e in reversed(self.events) if e.WhichOneof("body") == kind)

    def queue(self) -> list[str]:
        return [item.item_id for item in self.core.state.queue]


@pytest.fixture
def room() -> Room:
    return Room()


# --- which call it was ---


def test_a_waiting_message_bears_its_own_request_when_another_call_moves_things_on(room: Room) -> None:
    room.say("start")
    room.send("nameless", NEXT)
    room.step(lambda core: core.lines([b"end"]), cause=("other", "somebody else"))
    room.step(lambda core: core.lines([b"take nameless"]), cause=("other", "somebody else"))
    taken = room.last("user_message")
    assert (taken.request_id, taken.actor) == ("", "someone")


def test_a_command_that_is_refused_later_names_its_request(room: Room) -> None:
    room.say("start")
    room.control("r1", clear=api.Clear())
    room.driver.refuses.add("clear")
    room.say("end")
    assert room.last("command_sent").request_id == "r1"
    assert room.last("error_raised").request_id == "r1"


@pytest.mark.parametrize(("line", "kind"), [("cleared", "cleared"), ("failed", "error_raised")])
def test_what_a_command_came_to_names_its_request(room: Room, line: str, kind: str) -> None:
    room.control("r1", clear=api.Clear())
    room.restore()
    room.say(line)
    assert room.last(kind).request_id == "r1"
    room.say("start", "end", line)
    assert room.last(kind).request_id == ""


def test_settings_are_matched_with_their_requests_in_order(room: Room) -> None:
    for request_id in ("r1", "", "r3"):
        room.control(request_id, set_model=api.SetModel(model="m"))
    found = []
    for line in ("model a", "refused", "model c", "model d"):
        room.say(line)
        found.append(room.events[-1].request_id)
    assert found == ["r1", "", "r3", ""]


def test_how_an_agent_begins_is_no_confirmation(room: Room) -> None:
    room.restart()
    room.control("r1", set_model=api.SetModel(model="m"))
    room.restore()
    found = []
    for lines in (["model own", "ready"], ["model m"], ["model n"]):
        room.say(*lines)
        found.append(room.last("settings_changed").request_id)
    assert found == ["", "r1", ""]


def test_what_a_driver_confirms_by_itself_is_told_once(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.restart()
    monkeypatch.setattr(room.driver, "set_model", partial(ScriptedDriver.set_model, room.driver))
    room.control("r1", set_model=api.SetModel(model="m"))
    assert room.last("settings_changed").request_id == "r1"
    room.say("ready", "model n")
    assert room.last("settings_changed").request_id == ""


def test_a_message_that_cannot_be_handed_over_names_its_request(room: Room) -> None:
    attached = Attached("0" * 64, "text/plain", "", 1)
    request = api.SendRequest(text="x", request_id="r1", delivery=NEXT)
    room.say("start")
    room.step(lambda core: calls.send(core, request, "m1", (attached,), "someone"))
    room.say("end")
    assert room.last("error_raised").request_id == "r1"
    assert room.last("message_dropped").request_id == "r1"


def test_a_start_that_failed_leaves_no_request_to_the_next_one(room: Room) -> None:
    room.exit()
    room.step(lambda core: core.expect("process_started"), cause=("r1", "someone"))
    room.step(lambda core: core.raise_error(reasons.ERROR_REASON_LAUNCH_FAILED, "no"))
    assert room.last("error_raised").request_id == "r1"
    room.step(lambda core: core.launch(resume=True), lambda core: core.started(2, 1))
    assert room.last("process_started").request_id == ""


# --- what became of it ---


def test_a_repeated_unqueue_names_the_event_that_dropped_it(room: Room) -> None:
    room.say("start")
    room.send("m1", NEXT)
    first = room.unqueue("m1")
    room.say("text more")
    again = room.unqueue("m1")
    assert first == again
    assert first is not None
    assert first.seq == room.last("message_dropped").seq


@pytest.mark.parametrize(
    ("line", "outcome"),
    [("take m1", api.UNQUEUE_OUTCOME_ALREADY_SENT), ("drop m1", api.UNQUEUE_OUTCOME_DROPPED)],
)
def test_an_unqueue_ends_with_the_message_it_asks_for(room: Room, line: str, outcome: int) -> None:
    room.say("start")
    room.send("m1")
    assert room.unqueue("m1") is None
    settled = room.say(line).settled
    assert [(item, found) for item, found, _ in settled] == [("m1", outcome)]
    assert not room.exit().settled


def test_an_unqueue_outlives_the_daemon(room: Room) -> None:
    room.say("start")
    room.send("m1")
    assert room.unqueue("m1") is None
    room.restore()
    assert room.unqueue("m1") is None
    assert ("unqueue", "m1") not in room.driver.asked, "the agent was asked twice"
    settled = room.exit().settled
    assert [(item, found) for item, found, _ in settled] == [("m1", api.UNQUEUE_OUTCOME_DROPPED)]
    assert room.queue() == []


def test_a_failed_update_changes_nothing(room: Room) -> None:
    room.driver.refuses.add("title")
    request = api.UpdateSessionRequest()
    request.session.title = "new"
    request.session.labels["a"] = "b"
    request.update_mask.paths.extend(["title", "labels"])
    with pytest.raises(DomainError):
        room.step(lambda core: calls.update(core, request))
    assert room.core.state.labels == {}


def test_inputs_of_a_process_that_ended_in_the_same_step_are_void(room: Room) -> None:
    set_model = api.ControlRequest(set_model=api.SetModel(model="m"))
    product = room.step(
        lambda core: calls.control(core, set_model, ""),
        lambda core: core.exited(ExitStatus(exit_code=0)),
        lambda core: core.launch(resume=True),
    )
    assert [data for _, _, data in product.outbox] == [b"hello\n"]


# --- where things stand ---


def test_now_goes_before_everything_that_waits(room: Room) -> None:
    room.say("start")
    room.send("handed")
    room.send("later", NEXT)
    room.send("urgent", NOW)
    assert room.queue() == ["urgent", "handed", "later"]


def test_now_interrupts_a_turn_that_is_about_to_start(room: Room) -> None:
    room.send("first")
    assert not room.core.state.turn_id
    room.send("urgent", NOW)
    assert ("interrupt",) in room.driver.asked


def test_now_before_the_agent_is_ready_just_waits(room: Room) -> None:
    room.exit()
    room.step(lambda core: core.launch(resume=False))
    room.send("urgent", NOW)
    assert ("interrupt",) not in room.driver.asked
    assert room.queue() == ["urgent"]


def test_a_message_is_moved_before_messages_only(room: Room) -> None:
    room.say("start")
    room.control(clear=api.Clear())
    command_id = room.queue()[0]
    room.send("m1", NEXT)
    request = api.MoveMessageRequest(message_id="m1", before_message_id=command_id)
    with pytest.raises(DomainError) as refused:
        room.step(lambda core: calls.move(core, request))
    assert refused.value.field == "before_message_id"


def test_the_time_of_the_last_change_includes_labels(room: Room) -> None:
    request = api.UpdateSessionRequest()
    request.session.labels["a"] = "b"
    request.update_mask.paths.append("labels")
    room.step(lambda core: calls.update(core, request))
    assert view.summary(room.core).update_time.ToNanoseconds() == room.time


def test_errors_name_the_session_and_the_turn(room: Room) -> None:
    with pytest.raises(DomainError) as idle:
        room.control(interrupt=api.Interrupt())
    assert idle.value.metadata == {}
    room.say("start")
    with pytest.raises(DomainError) as other:
        room.control(interrupt=api.Interrupt(turn_id="x"))
    assert other.value.metadata == {"turn_id": room.core.state.turn_id}
    room.exit()
    with pytest.raises(DomainError) as exited:
        room.control(clear=api.Clear())
    assert exited.value.metadata == {"session_id": "s"}


def test_a_restart_is_carried_out_once(room: Room) -> None:
    room.core.state.restarting = room.core.state.stopping = True
    room.exit()
    room.step(lambda core: core.launch(resume=True))
    assert not room.core.state.restarting
    assert not room.core.state.stopping


# --- what can not be recorded ---


def test_totals_stay_at_the_most_that_can_be_told(room: Room) -> None:
    most = (1 << 63) - 1
    room.say(f"usage {most}", "usage 1", "text on")
    assert room.last("usage_reported").usage_reported.total.input == most
    assert room.events[-1].assistant_text.delta == "on"
    assert view.summary(room.core).total_tokens.input == most


def test_what_cannot_be_carried_out_is_left_out_and_the_rest_is_done(room: Room) -> None:
    room.say("start")
    product = room.say("file end", "text on")
    assert not product.blobs
    assert [e.WhichOneof("body") for e in room.events[-4:]] == [
        "turn_ended",
        "state_changed",
        "notice",
        "assistant_text",
    ]
    assert room.last("notice").notice.text == "file end"
    assert [e.seq for e in room.events] == list(range(1, len(room.events) + 1))


def test_an_effect_that_fails_leaves_no_trace(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(state: State, event: ev.Event) -> None:
        state.model = "half"
        state.marks["half"] = event.seq
        raise ValueError("no room")

    room.control("r1", set_model=api.SetModel(model="m"))
    before = encode(room.core.state)
    with monkeypatch.context() as patched:
        patched.setitem(fold._FOLDS, "settings_changed", fails)
        room.say("model m")
    assert room.events[-1].WhichOneof("body") == "notice"
    room.core.state.update_time = decode_state(before).update_time
    assert encode(room.core.state) == before
    room.say("model m")
    assert (room.events[-1].settings_changed.model, room.events[-1].request_id) == ("m", "r1")


@pytest.mark.parametrize("told", ["a\0b", "m" * 5_000_000], ids=["NUL", "giant"])
def test_a_name_that_no_program_can_be_given_is_not_used_at_a_start(room: Room, told: str) -> None:
    room.say("model m", f"model {told}", f"call it {told}")
    shown = view.summary(room.core)
    assert shown.settings.model == room.last("settings_changed").settings_changed.title == shown.title
    assert shown.ByteSize() < 1000
    assert "\0" not in shown.title
    room.restart()
    started = room.driver.launched_with
    assert (started.model, started.title) == ("", shown.title)
    room.say("model m")
    room.restore()
    room.restart()
    assert room.driver.launched_with.model == "m"


@pytest.mark.parametrize("told", ["a\0b", "n" * 100_000, "\\ud800"], ids=["NUL", "giant", "half"])
def test_an_id_that_no_program_can_be_given_is_not_taken(room: Room, told: str) -> None:
    room.say("i am native 1.0", f"i am {told} {told}")
    room.restart()
    assert room.driver.launched_with.native_session_id == "native"
    room.step(lambda core: core.started(2, 1))
    assert 0 < len(room.last("process_started").process_started.agent_version) <= 256


def test_a_file_with_a_giant_name_is_kept_under_a_shorter_one(room: Room) -> None:
    product = room.say(f"made {'n' * 2_000_000}")
    assert product.blobs[0][0] == room.last("attachment_added").attachment_added.attachment
    assert max(map(len, product.records)) < 1000


def test_a_question_is_answered_with_what_its_event_says(room: Room) -> None:
    room.say("start", f"ask q1 {'x' * 2_000_000} no")
    asked = room.last("question_asked").question_asked
    assert len(asked.options[0].label) < 100_000
    request = api.AnswerRequest(question_id="q1", answers=[asked.options[0].label])
    room.step(lambda core: calls.answer(core, request))
    assert room.last("question_answered").question_answered.answers == request.answers


# --- how much is kept ---


def test_what_is_kept_of_the_past_stays_small(room: Room) -> None:
    long = "x" * 10_000
    for number in range(1, 401):
        room.send(f"00000000-0000-0000-0000-{number:012}")
        room.say(f"take 00000000-0000-0000-0000-{number:012}", f"ask q{number} {long} no")
        request = api.AnswerRequest(question_id=f"q{number}", answers=[long], note=long)
        room.step(partial(calls.answer, request=request))
        room.say("end")
    assert len(encode(room.core.state)) < 32_000
    again = api.AnswerRequest(question_id="q400", answers=[long], note=long)
    room.step(lambda core: calls.answer(core, again))
    assert calls.unqueue(
        room.core, api.UnqueueRequest(message_id=f"00000000-0000-0000-0000-{400:012}")
    ) == api.UnqueueResponse(outcome=api.UNQUEUE_OUTCOME_ALREADY_SENT, seq=room.core.head_seq)
