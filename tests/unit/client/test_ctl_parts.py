"""The pure parts behind sessionctl: answers, turns, what waits, the live view."""

from __future__ import annotations

import pytest
from rich.console import Console

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_pb2
from sessiond.v1 import session_service_pb2 as wire
from sessiond_client import Pending, SessiondClient, context_tokens, pending
from sessiond_client.ctl.conversation import Conversation
from sessiond_client.ctl.live import LiveSession
from sessiond_client.ctl.questions import parse_answer
from sessiond_client.ctl.render import Piece
from sessiond_client.ctl.watch import TurnWatch
from tests.unit.client.scripted import Context, Scripted


def question(*labels: str, multi: bool = False, text: bool = False) -> ev.QuestionAsked:
    options = [ev.QuestionOption(label=label) for label in labels]
    return ev.QuestionAsked(question_id="q", options=options, multi_select=multi, allow_text=text)


@pytest.mark.parametrize(
    ("asked", "typed", "answers"),
    [
        (question("Yes", "No"), "2", ["No"]),
        (question("Yes", "No"), " yes ", ["Yes"]),
        (question("2", "1"), "1", ["1"]),
        (question("a", "A", "b"), "A", ["A"]),
        (question("a", "b", "c", multi=True), "1, c,1", ["a", "c"]),
        (question("x, y", "z", multi=True), "x, y", ["x, y"]),
        (question("Yes", text=True), "perhaps, later", ["perhaps, later"]),
        (question(text=True), "own words", ["own words"]),
        (question("a", "b", multi=True, text=True), "a, own", ["a, own"]),
    ],
)
def test_what_a_person_typed_is_understood(
    asked: ev.QuestionAsked, typed: str, answers: list[str]
) -> None:
    assert parse_answer(asked, typed) == answers


@pytest.mark.parametrize(
    ("asked", "typed"),
    [
        (question("Yes", "No"), ""),
        (question("Yes", "No"), "0"),
        (question("Yes", "No"), "3"),
        (question("Yes", "No"), "1,2"),
        (question("a", "A"), "ª"),
        (question("a", "b", multi=True), ","),
        (question(text=True), "  "),
    ],
)
def test_what_can_be_no_answer_is_told(asked: ev.QuestionAsked, typed: str) -> None:
    with pytest.raises(ValueError, match="type a"):
        parse_answer(asked, typed)


def queued(message_id: str, text: str = "x") -> ev.Event:
    return ev.Event(message_queued=ev.MessageQueued(message_id=message_id, text=text, revision=1))


def read(message_id: str) -> ev.Event:
    return ev.Event(user_message=ev.UserMessage(message_id=message_id))


def ended(outcome: ev.TurnOutcome.ValueType = ev.TURN_OUTCOME_COMPLETED) -> ev.Event:
    return ev.Event(turn_ended=ev.TurnEnded(outcome=outcome))


TEXT = ev.Event(assistant_text=ev.AssistantText(delta="x"))
EXITED = ev.Event(state_changed=ev.StateChanged(state=session_pb2.SESSION_STATE_EXITED))


def follow(*events: ev.Event, appended: bool = False) -> tuple[list[bool], str]:
    watch = TurnWatch("m", appended)
    return [watch.feed(event) for event in events], watch.ended


def test_a_message_is_followed_to_the_end_of_its_own_turn() -> None:
    shown, outcome = follow(
        queued("m"), TEXT, ended(), read("other"), TEXT, ended(), read("m"), TEXT, ended()
    )
    assert shown == [False] * 6 + [True] * 3
    assert outcome == "completed"


def test_a_turn_that_still_runs_has_not_ended() -> None:
    assert follow(queued("m"), ended(), read("m"), TEXT)[1] == ""


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ((read("m"), ended(ev.TURN_OUTCOME_INTERRUPTED)), "interrupted"),
        ((read("m"), ended(ev.TURN_OUTCOME_FAILED)), "failed"),
        ((ev.Event(message_dropped=ev.MessageDropped(message_id="m")),), "dropped"),
        ((ev.Event(message_dropped=ev.MessageDropped(message_id="other")),), ""),
        ((EXITED,), "process ended"),
    ],
)
def test_other_ends_are_named(events: tuple[ev.Event, ...], outcome: str) -> None:
    assert outcome in follow(*events)[1]
    assert bool(outcome) == bool(follow(*events)[1])


def test_an_appended_message_ends_when_it_is_read() -> None:
    assert follow(queued("m"), read("m"), appended=True) == ([False, True], "completed")


def moved(message_id: str, before: str) -> ev.Event:
    return ev.Event(
        message_moved=ev.MessageMoved(message_id=message_id, before_message_id=before, revision=2)
    )


def order(*events: ev.Event) -> list[str]:
    found = Pending()
    for event in events:
        found.apply(event)
    return [item.item_id for item in found.queue]


def test_the_queue_in_the_order_of_reading() -> None:
    three = [queued("a"), queued("b"), queued("c")]
    assert order(*three) == ["a", "b", "c"]
    assert order(*three, moved("c", "a")) == ["c", "a", "b"]
    assert order(*three, moved("a", "")) == ["b", "c", "a"]
    assert order(*three, moved("a", "gone")) == ["b", "c", "a"]
    assert order(*three, moved("gone", "a")) == ["a", "b", "c"]
    assert order(*three, read("b"), ev.Event(message_dropped=ev.MessageDropped(message_id="a"))) == ["c"]


def test_commands_wait_among_the_messages() -> None:
    command = ev.Event(command_queued=ev.CommandQueued(command_id="k", text="/x"))
    assert order(queued("a"), command) == ["a", "k"]
    assert order(command, ev.Event(command_sent=ev.CommandSent(command_id="k"))) == []
    assert order(command, ev.Event(command_dropped=ev.CommandDropped(command_id="k"))) == []


def test_an_edit_replaces_text_and_revision() -> None:
    found = Pending()
    found.apply(queued("a", "old"))
    edited = ev.MessageEdited(message_id="a", text="new", revision=2)
    found.apply(ev.Event(message_edited=edited))
    (item,) = found.queue
    assert (item.text, item.revision) == ("new", 2)


def asked(question_id: str) -> ev.Event:
    return ev.Event(question_asked=ev.QuestionAsked(question_id=question_id))


def test_questions_are_open_until_answered_or_withdrawn() -> None:
    found = Pending()
    for event in (asked("a"), asked("b"), asked("c")):
        found.apply(event)
    found.apply(ev.Event(question_answered=ev.QuestionAnswered(question_id="a")))
    found.apply(ev.Event(question_withdrawn=ev.QuestionWithdrawn(question_id="c")))
    assert list(found.questions) == ["b"]


def test_the_size_of_the_context() -> None:
    usage = ev.Event(usage_reported=ev.UsageReported(context_tokens=50))
    assert context_tokens(None, usage) == 50
    assert context_tokens(50, ev.Event(usage_reported=ev.UsageReported())) == 50
    assert context_tokens(50, ev.Event(compacted=ev.Compacted(post_tokens=10))) == 10
    assert context_tokens(50, ev.Event(compacted=ev.Compacted(pre_tokens=50))) is None
    assert context_tokens(50, ev.Event(cleared=ev.Cleared())) is None
    assert context_tokens(50, TEXT) == 50


@pytest.mark.parametrize(("questions", "items", "pages"), [(1, 1, 2), (0, 1, 1), (0, 0, 0), (2, 2, 4)])
async def test_history_is_read_only_as_far_back_as_needed(
    daemon: Scripted, client: SessiondClient, questions: int, items: int, pages: int
) -> None:
    events = [
        asked("first"),
        ev.Event(question_answered=ev.QuestionAnswered(question_id="first")),
        queued("a"),
        TEXT,
        asked("second"),
        moved("b", "a"),
        read("a"),
        queued("b"),
    ]
    for seq, event in enumerate(events, 1):
        event.seq = seq

    async def reply(request: wire.ListEventsRequest, context: Context) -> wire.ListEventsResponse:
        end = (request.before_seq or len(events) + 1) - 1
        return wire.ListEventsResponse(events=events[max(0, end - 2) : end], first_seq=1)

    daemon.replies["ListEvents"] = reply
    session = session_pb2.Session(
        session_id="s", head_seq=len(events), queue_length=items, open_question_count=questions
    )
    found = await pending(client, session)
    assert list(found.questions) == ["second"][: bool(questions)]
    assert [item.item_id for item in found.queue] == ["b"][: bool(items)]
    assert len(daemon.of_type(wire.ListEventsRequest)) == pages


async def test_what_was_resolved_later_is_not_taken_for_what_waits(
    daemon: Scripted, client: SessiondClient
) -> None:
    events = [queued("old"), asked("old question")]
    events += [queued("new"), asked("new question"), read("new")]
    events += [ev.Event(question_answered=ev.QuestionAnswered(question_id="new question"))]
    for seq, event in enumerate(events, 1):
        event.seq = seq

    async def reply(request: wire.ListEventsRequest, context: Context) -> wire.ListEventsResponse:
        end = (request.before_seq or len(events) + 1) - 1
        return wire.ListEventsResponse(events=events[end - 1 : end], first_seq=1)

    daemon.replies["ListEvents"] = reply
    session = session_pb2.Session(
        session_id="s", head_seq=len(events), queue_length=1, open_question_count=1
    )
    found = await pending(client, session)
    assert list(found.questions) == ["old question"]
    assert [item.item_id for item in found.queue] == ["old"]


def printed(conversation: Conversation, *pieces: Piece) -> list[str]:
    console = Console(width=60, color_system=None, force_terminal=False)
    lines = []
    for piece in pieces:
        for renderable in conversation.feed(piece):
            with console.capture() as capture:
                console.print(renderable)
            lines.append(capture.get().strip())
    return lines


def text(delta: str, stream: str = "a") -> Piece:
    return Piece("text", delta, stream=stream, markdown=True)


def test_paragraphs_are_printed_when_they_are_whole() -> None:
    conversation = Conversation()
    assert printed(conversation, text("# Ti"), text("tle\n\nSome **bo")) == ["Title"]
    assert conversation.partial == "Some **bo"
    assert printed(conversation, text("ld** text")) == []
    assert printed(conversation, Piece("tool", "Bash")) == ["Some bold text", "● Bash"]
    assert conversation.partial == ""


def test_a_fenced_block_is_one_paragraph() -> None:
    conversation = Conversation()
    assert printed(conversation, text("```py\na = 1\n\nb = 2\n")) == []
    (block,) = printed(conversation, text("```\n\n"))
    assert "a = 1" in block
    assert "b = 2" in block


def test_minor_pieces_neither_show_nor_cut_a_text() -> None:
    conversation = Conversation()
    assert printed(conversation, text("one "), Piece("usage", "tokens", minor=True), text("two")) == []
    assert conversation.partial == "one two"


def test_long_output_is_cut_with_a_count() -> None:
    (shown,) = printed(Conversation(), Piece("tool end", "\n".join(map(str, range(20)))))
    assert "… 8 more lines" in shown


def live(**fields: object) -> LiveSession:
    session = session_pb2.Session(session_id="s", head_seq=10, state=session_pb2.SESSION_STATE_IDLE)
    for name, value in fields.items():
        setattr(session, name, value)
    return LiveSession(session, Pending())


def test_the_toolbar_follows_the_events() -> None:
    view = live(title="Work", context_tokens=10, context_window=100)
    assert view.toolbar() == "Work | idle | context 10% | /help | Ctrl-D leaves"
    view.lost = "connection lost"
    running = ev.StateChanged(state=session_pb2.SESSION_STATE_RUNNING)
    changes = ev.SettingsChanged(model="m2", title="New")
    usage = ev.UsageReported(context_tokens=100, context_window=200)
    for seq, event in enumerate(
        [
            ev.Event(state_changed=running),
            ev.Event(settings_changed=changes),
            ev.Event(usage_reported=usage),
            queued("a"),
        ],
        11,
    ):
        event.seq = seq
        view.apply(event)
    assert view.toolbar() == (
        "New | running | m2 | context 50% | 1 waiting | Ctrl-C interrupts | Ctrl-D leaves"
    )
    assert view.running


def test_what_the_session_knew_already_is_passed_over() -> None:
    view = live()
    old = queued("a")
    old.seq = 10
    view.apply(old)
    assert view.pending.queue == []
