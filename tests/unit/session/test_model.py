"""The session against a simple model of it: whatever is called and said, and whoever crashes when."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as api
from sessiond_drivers.base import ExitStatus
from sessiond_server.errors import DomainError
from sessiond_server.session import Core, Identity, Limits, Product, Spec, State, calls, encode
from sessiond_server.session.state import decode_state
from tests.unit.session.scripted import ScriptedDriver

_QUEUE = 6
_DELIVERIES = [
    session_pb2.DELIVERY_STEER,
    session_pb2.DELIVERY_NEXT_TURN,
    session_pb2.DELIVERY_NOW,
    session_pb2.DELIVERY_APPEND,
]


class SessionMachine(RuleBasedStateMachine):
    """`waiting` is the model: the ids of what was accepted and neither read nor dropped, in order.

    It is folded from the events by the contract's own words, as a client would.
    """

    @initialize(steer=st.booleans(), forgetful=st.booleans())
    def create(self, steer: bool, forgetful: bool) -> None:
        self.steer, self.forgetful = steer, forgetful
        self.state_bytes = encode(State())
        self.driver_bytes = b""
        self.head_seq = self.input_id = self.numbers = self.time = 0
        self.alive = False
        self.events: list[ev.Event] = []
        self.texts: dict[str, str] = {}
        self.answers: dict[str, str] = {}
        self.waiting: list[str] = []
        self.requests: dict[str, str] = {}
        self.taking_back: set[str] = set()
        self.revisions: dict[str, int] = {}
        self.commands: dict[str, str] = {}
        self.turn_id = ""
        self.state = session_pb2.SESSION_STATE_UNKNOWN
        self.restore()
        self.start()

    # --- the actor's part: a step is committed, or never was ---

    def restore(self) -> None:
        self.driver = ScriptedDriver(steer=self.steer, forgetful=self.forgetful)
        if self.driver_bytes:
            self.driver.restore(self.driver_bytes)
        self.core = Core(
            Identity("s", "t", "scripted", Spec(workspace="w")),
            self.driver,
            decode_state(self.state_bytes),
            head_seq=self.head_seq,
            input_id=self.input_id,
            alive=self.alive,
            limits=Limits(max_queue_length=_QUEUE),
            load=lambda attached: (_ for _ in ()).throw(OSError("gone")),
        )

    def begin(self) -> None:
        self.time += 1
        self.core.begin(self.time)
        self.stopping = self.core.state.stopping
        self.asked_before = len(self.driver.asked)

    def commit(self) -> Product:
        product = self.core.finish()
        assert product.first_seq == self.head_seq + 1
        asked = [what for what, *_ in self.driver.asked[self.asked_before :]]
        if self.stopping:
            assert not {"message", "compact", "clear"} & set(asked), "handed over while it stops"
        if self.core.alive:
            written = [data for _, _, data in product.outbox]
            for verb in ("message", "unqueue", "answer", "interrupt"):
                assert written.count(f"{verb}\n".encode()) == asked.count(verb)
            asked_now = self.driver.asked[self.asked_before :]
            self.in_order({words[1] for words in asked_now if words[0] == "message"})
        for input_id, _, _ in product.outbox:
            assert input_id > self.input_id
            self.input_id = input_id
        data = b"".join(product.records)
        self.events += api.SubscribeResponse.FromString(data).events
        self.state_bytes = product.state or self.state_bytes
        self.driver_bytes = product.driver_state or self.driver_bytes
        self.head_seq, self.input_id = self.core.head_seq, self.core.input_id
        self.alive = self.core.alive
        for event in api.SubscribeResponse.FromString(data).events:
            self.fold(event)
        for item_id, outcome, seq in product.settled:
            assert item_id in self.taking_back, "nobody asked for it"
            self.taking_back.remove(item_id)
            event = self.events[seq - 1]
            dropped = event.message_dropped.message_id == item_id
            assert dropped == (outcome == api.UNQUEUE_OUTCOME_DROPPED)
        return product

    def fold(self, event: ev.Event) -> None:
        kind = event.WhichOneof("body")
        if kind == "message_queued":
            queued = event.message_queued
            assert queued.message_id not in self.waiting
            now = queued.delivery == session_pb2.DELIVERY_NOW
            self.waiting.insert(0 if now else len(self.waiting), queued.message_id)
            self.texts[queued.message_id] = queued.text
            self.requests[queued.message_id] = event.request_id
            self.revisions[queued.message_id] = queued.revision
            assert event.actor == "someone"
        elif kind == "message_moved":
            moved = event.message_moved
            self.revise(moved.message_id, moved.revision)
            self.waiting.remove(moved.message_id)
            before = moved.before_message_id
            index = self.waiting.index(before) if before else len(self.waiting)
            self.waiting.insert(index, moved.message_id)
        elif kind == "message_edited":
            edited = event.message_edited
            self.texts[edited.message_id] = edited.text
            self.revise(edited.message_id, edited.revision)
        elif kind == "user_message":
            self.waiting.remove(event.user_message.message_id)
            assert event.user_message.text == self.texts[event.user_message.message_id]
            assert event.request_id == self.requests[event.user_message.message_id]
            assert event.actor == "someone"
        elif kind == "message_dropped":
            self.waiting.remove(event.message_dropped.message_id)
        elif kind in ("command_queued", "command_sent", "command_dropped"):
            command_id = getattr(event, kind).command_id
            assert self.commands.get(command_id, "new") in ("new", "command_queued")
            self.commands[command_id] = kind
            assert kind != "command_sent" or not self.turn_id, "a command within a turn"
        elif kind == "state_changed":
            assert event.state_changed.state != self.state, "no other state than before"
            self.state = event.state_changed.state
        elif kind == "turn_started":
            assert not self.turn_id
            self.turn_id = event.turn_started.turn_id
        elif kind == "turn_ended":
            assert self.turn_id == event.turn_ended.turn_id
            self.turn_id = ""

    def in_order(self, handed: set[str]) -> None:
        """Only what steers a turn overtakes what waits before it."""
        queue = self.core.state.queue
        for index, item in enumerate(queue):
            if item.item_id in handed and item.delivery != session_pb2.DELIVERY_STEER:
                assert all(earlier.handed for earlier in queue[:index]), "out of order"

    def revise(self, message_id: str, revision: int) -> None:
        self.revisions[message_id] += 1
        assert revision == self.revisions[message_id]

    def line(self, line: str) -> None:
        self.begin()
        self.core.lines([line.encode()])
        self.commit()

    def refused(self, error: DomainError) -> None:
        assert not self.core.finish().records, f"{error} was refused and left a trace"
        self.restore()

    def start(self) -> None:
        self.begin()
        self.core.launch(resume=False)
        self.core.started(self.time, 1)
        self.commit()
        self.line("ready")

    # --- what clients do ---

    @rule(delivery=st.sampled_from(_DELIVERIES), data=st.data())
    def send(self, delivery: session_pb2.Delivery.ValueType, data: st.DataObject) -> None:
        self.numbers += 1
        message_id = f"m{self.numbers}"
        request = api.SendRequest(text=f"text {self.numbers}", delivery=delivery)
        request.request_id = data.draw(st.sampled_from(["", f"r{self.numbers}"]))
        self.begin()
        self.core.caused_by(request.request_id, "someone")
        try:
            sent = calls.send(self.core, request, message_id, (), "someone")
        except DomainError as error:
            assert not self.alive or len(self.core.state.queue) >= _QUEUE
            self.refused(error)
            return
        assert self.alive
        self.commit()
        assert self.events[sent.seq - 1].message_queued.message_id == message_id

    @rule(data=st.data())
    def unqueue(self, data: st.DataObject) -> None:
        # Rather those that the agent has to give back: there is more to go wrong.
        known = [*sorted(self.texts), "never", *self.driver.unread * 3]
        message_id = data.draw(st.sampled_from(known))
        handed = message_id in self.driver.unread
        was_waiting = message_id in self.waiting
        self.begin()
        reply = calls.unqueue(self.core, api.UnqueueRequest(message_id=message_id))
        self.commit()
        if reply is None:
            assert handed
            self.taking_back.add(message_id)
        elif was_waiting:
            assert reply.outcome == api.UNQUEUE_OUTCOME_DROPPED
            assert self.events[reply.seq - 1].message_dropped.message_id == message_id
            assert message_id not in self.waiting
        elif message_id == "never":
            assert reply.outcome == api.UNQUEUE_OUTCOME_UNKNOWN
        else:
            event = next(e for e in self.events if _resolves(e, message_id))
            dropped = event.WhichOneof("body") == "message_dropped"
            assert reply.outcome == (
                api.UNQUEUE_OUTCOME_DROPPED if dropped else api.UNQUEUE_OUTCOME_ALREADY_SENT
            )
            assert reply.seq == (event.seq if dropped else self.head_seq)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), text=st.text(min_size=1, max_size=5))
    def edit(self, data: st.DataObject, text: str) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.waiting)))
        held = message_id not in self.driver.unread
        stale = data.draw(st.booleans())
        revision = self.revisions[message_id] - 1 if stale else self.revisions[message_id]
        request = api.EditMessageRequest(message_id=message_id, text=text, revision=revision)
        self.begin()
        try:
            calls.edit(self.core, request, ())
        except DomainError as error:
            assert not held or (stale and revision)
            self.refused(error)
            return
        assert held
        assert not stale or not revision
        self.commit()

    @precondition(lambda self: len(self.waiting) > 1)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        one, before = data.draw(st.permutations(sorted(self.waiting)))[:2]
        request = api.MoveMessageRequest(message_id=one, before_message_id=before)
        self.begin()
        try:
            calls.move(self.core, request)
        except DomainError as error:
            assert {one, before} & set(self.driver.unread)
            self.refused(error)
            return
        assert not {one, before} & set(self.driver.unread)
        self.commit()
        order = [item.item_id for item in self.core.state.queue]
        assert order.index(one) + 1 == order.index(before)

    @rule(action=st.sampled_from(["compact", "clear", "interrupt", "set_model", "stop"]))
    def control(self, action: str) -> None:
        self.numbers += 1
        request = api.ControlRequest()
        getattr(request, action).SetInParent()
        if action == "set_model":
            request.set_model.model = "a-model"
        running = bool(self.turn_id)
        self.begin()
        try:
            reply = calls.control(self.core, request, f"c{self.numbers}")
        except DomainError as error:
            full = len(self.core.state.queue) >= _QUEUE
            assert not self.alive or full or (action == "interrupt" and not running)
            self.refused(error)
            return
        assert action != "interrupt" or running
        self.commit()
        if action in ("compact", "clear"):
            assert reply.queued == (self.commands[reply.command_id] == "command_queued")
            first = self.events[reply.seq - 1]
            assert reply.command_id in (first.command_queued.command_id, first.command_sent.command_id)
        elif action == "stop":
            assert self.core.state.stopping

    @precondition(lambda self: self.core.state.questions)
    @rule(data=st.data(), label=st.sampled_from(["yes", "no", "maybe"]))
    def answer(self, data: st.DataObject, label: str) -> None:
        questions = self.core.state.questions
        still_open = [question_id for question_id in sorted(questions) if questions[question_id].open]
        question_id = data.draw(st.sampled_from([*sorted(questions), *still_open * 3]))
        before = self.answers.get(question_id)
        withdrawn = self.core.state.questions[question_id].withdrawn
        request = api.AnswerRequest(question_id=question_id, answers=[label])
        self.begin()
        try:
            calls.answer(self.core, request)
        except DomainError as error:
            assert withdrawn or label == "maybe" or before not in (None, label)
            self.refused(error)
            return
        assert not withdrawn
        assert label != "maybe"
        assert before in (None, label)
        self.answers[question_id] = label
        self.commit()

    # --- what the agent does ---

    @precondition(lambda self: self.alive and self.driver.unread)
    @rule(how=st.sampled_from(["take", "take", "drop"]))
    def read(self, how: str) -> None:
        message_id = self.driver.unread[0]
        item = self.core.find(message_id)
        assert item is not None
        append = item.delivery == session_pb2.DELIVERY_APPEND
        self.line(f"{'append' if append and how == 'take' else how} {message_id}")

    @precondition(lambda self: self.alive and self.core.state.turn_id)
    @rule()
    def end_turn(self) -> None:
        self.line("end")

    @precondition(lambda self: self.alive and self.driver.between_turns)
    @rule()
    def start_turn(self) -> None:
        self.line("start")

    @precondition(lambda self: self.alive and self.core.state.turn_id)
    @rule()
    def ask(self) -> None:
        self.numbers += 1
        self.line(f"ask q{self.numbers} yes no")

    @precondition(lambda self: self.taking_back)
    @rule(outcome=st.sampled_from(["dropped", "already_sent"]))
    def settle(self, outcome: str) -> None:
        message_id = min(self.taking_back)
        self.line(f"settle {message_id} {outcome}")
        assert message_id not in self.taking_back

    @precondition(lambda self: self.alive)
    @rule()
    def exit(self) -> None:
        self.begin()
        self.core.exited(ExitStatus(exit_code=1))
        self.commit()
        assert not self.turn_id
        assert self.core.state.state == session_pb2.SESSION_STATE_EXITED
        assert not self.taking_back, "who asked for a message back waits for an agent that is gone"

    @precondition(lambda self: not self.alive)
    @rule()
    def restart(self) -> None:
        self.start()

    # --- what happens to the daemon ---

    @rule()
    def crash(self) -> None:
        """The daemon dies between two steps."""
        self.restore()

    @precondition(lambda self: self.alive and self.core.state.turn_id)
    @rule()
    def crash_within_a_step(self) -> None:
        """The daemon dies before the commit; the line is read again."""
        self.begin()
        self.core.lines([b"end"])
        self.core.finish()
        self.restore()
        self.line("end")

    # --- what always holds ---

    @invariant()
    def the_transcript_has_no_gap(self) -> None:
        assert [event.seq for event in self.events] == list(range(1, len(self.events) + 1))

    @invariant()
    def the_queue_is_what_was_accepted_and_not_resolved(self) -> None:
        messages = [i.item_id for i in self.core.state.queue if i.kind == "message"]
        assert messages == self.waiting
        commands = {i.item_id for i in self.core.state.queue if i.kind != "message"}
        assert commands == {c for c, kind in self.commands.items() if kind == "command_queued"}
        assert len(self.core.state.queue) <= _QUEUE

    @invariant()
    def whoever_takes_a_message_back_learns_its_fate(self) -> None:
        assert self.taking_back <= set(self.waiting)

    @invariant()
    def what_the_driver_has_is_handed_over(self) -> None:
        handed = {item.item_id for item in self.core.state.queue if item.handed}
        assert handed == set(self.driver.unread if self.alive else ())
        assert len(self.driver.unread) == len(set(self.driver.unread)), "handed over twice"

    @invariant()
    def nothing_waits_while_the_agent_could_take_it(self) -> None:
        if self.alive and self.driver.between_turns and not self.core.state.stopping:
            assert all(item.handed for item in self.core.state.queue)

    @invariant()
    def what_was_opened_is_closed(self) -> None:
        kinds = [event.WhichOneof("body") for event in self.events]
        assert self.turn_id == self.core.state.turn_id
        asked = kinds.count("question_asked")
        closed = kinds.count("question_answered") + kinds.count("question_withdrawn")
        still_open = [q for q in self.core.state.questions.values() if q.open]
        assert asked - closed == len(still_open)


def _resolves(event: ev.Event, message_id: str) -> bool:
    """Whether `event` says what became of a message."""
    return message_id in (event.user_message.message_id, event.message_dropped.message_id)


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
