"""The promises that every registered driver keeps, whatever its dialect. No agent is run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.v1 import error_reason_pb2, session_pb2
from sessiond_drivers.base import DriverConfig, ExitStatus, Refused
from tests.conformance.drivers import create, drivers
from tests.conformance.host import SPEC, DriverHost, plain
from tests.conformance.steps import Step, expand, play_one, read_lines, read_steps
from tests.golden.compare import scenarios

NAMES = sorted(drivers())
CAPABILITIES = [field.name for field in session_pb2.DriverCapabilities.DESCRIPTOR.fields]
# The capability that a verb needs, and a call of the verb.
VERBS: dict[str, Callable[[DriverHost], object]] = {
    "set_model": lambda host: host.driver.set_model("m"),
    "set_permission_mode": lambda host: host.driver.set_permission_mode("m"),
    "set_effort": lambda host: host.driver.set_effort("e"),
    "native_title": lambda host: host.driver.set_title("t"),
    "compact": lambda host: host.driver.compact("c", ""),
    "clear": lambda host: host.driver.clear("c"),
    "raw_commands": lambda host: host.driver.run_command("c", "/x"),
}
# Lines with these are told apart from all others.
MARK = "zqx-8461-not-a-word"


@cache
def corpus(name: str) -> tuple[bytes, ...]:
    """Return lines that the driver's agent really said, as far as they were recorded."""
    lines = {line for path in scenarios(name) for line in read_lines(path / "stdout.jsonl")}
    return (b"{}", *sorted(line for line in lines if len(line) < 20_000))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def started(name: str, reload: bool = False) -> DriverHost:
    host = DriverHost(lambda: create(name), reload)
    host.launch()
    return host


# --- registration ---


def test_registered_under_its_own_name(name: str) -> None:
    kind = drivers()[name]
    assert kind.name == name
    assert kind.display_name
    assert issubclass(kind.config_type, DriverConfig)


def test_configuration_has_defaults_and_refuses_unknown_keys(name: str) -> None:
    kind = drivers()[name]
    assert kind.create(kind.config_type())
    with pytest.raises(msgspec.ValidationError, match="no_such_key"):
        create(name, no_such_key=1)


def test_program_says_how_to_get_it(name: str) -> None:
    kind = drivers()[name]
    program = kind.program(kind.config_type())
    assert program.executable
    assert program.version_args
    assert program.install_hint
    assert program.parse_version("") == ""
    assert program.parse_version("something else 1.2.3 (unknown)\n") == ""


def test_binary_arguments_and_environment_of_the_configuration_are_used(name: str) -> None:
    driver = create(name, binary="/opt/agent/bin/agent", args=["--extra", "x"], env={"EXTRA": "1"})
    launch = DriverHost(lambda: driver).launch()
    assert launch.argv[0] == "/opt/agent/bin/agent"
    assert launch.argv[-2:] == ("--extra", "x")
    assert launch.env["EXTRA"] == "1"


def test_capabilities_before_and_after_creation_agree(name: str) -> None:
    said = drivers()[name].capabilities
    held = create(name).capabilities
    assert [c for c in CAPABILITIES if getattr(held, c) and not getattr(said, c)] == []


@pytest.mark.parametrize("capability", VERBS)
def test_a_verb_without_its_capability_is_refused(name: str, capability: str) -> None:
    host = started(name)
    able = getattr(host.driver.capabilities, capability)
    assert _unsupported(VERBS[capability], host) is not able


def _unsupported(verb: Callable[[DriverHost], object], host: DriverHost) -> bool:
    try:
        verb(host)
    except Refused as refused:
        return refused.reason == error_reason_pb2.ERROR_REASON_DRIVER_UNSUPPORTED
    return False


# --- life ---


def test_not_between_turns_before_it_has_a_process(name: str) -> None:
    assert not create(name).between_turns


def test_an_agent_that_exits_at_once_leaves_nothing_open(name: str) -> None:
    host = started(name)
    host.exited(ExitStatus(exit_code=1, stderr_tail="it broke"))
    assert not host.driver.between_turns


def test_an_agent_killed_at_once_can_be_started_again(name: str) -> None:
    host = started(name)
    host.send("m1", "hello")
    host.exited(ExitStatus(signal=9))
    host.launch(resume=True)
    host.exited(ExitStatus())


def test_stop_is_planned_and_bounded(name: str) -> None:
    started(name).stop()


def test_an_unqueue_of_what_it_never_had_is_settled(name: str) -> None:
    host = started(name)
    host.unqueue("never-handed-over")
    host.exited()


def test_a_message_back_before_the_exit_is_settled(name: str) -> None:
    host = started(name)
    host.send("m1", "hello")
    host.unqueue("m1")
    host.exited()
    host.obligations.quiet()


# --- lines ---


@pytest.mark.parametrize(
    "line",
    [
        f'{{"{MARK}": 1}}'.encode(),
        f'{{"kind": "{MARK}", "type": "{MARK}", "method": "{MARK}"}}'.encode(),
        f"{MARK} is not JSON".encode(),
        f'"{MARK}"'.encode(),
        f'["{MARK}"]'.encode(),
        b"\xff\xfe " + MARK.encode(),
        b"\x00" + MARK.encode() + b"\x00",
    ],
    ids=["object", "kind", "text", "string", "array", "not-utf8", "nul"],
)
def test_unknown_lines_are_kept(name: str, line: bytes) -> None:
    host = started(name)
    host.line(line)
    kept = [
        f"{notice.text} {notice.native_kind} {notice.native_json}" for notice in host.bodies("notice")
    ]
    assert any(MARK in text for text in kept), host.events


@pytest.mark.parametrize(
    "line",
    [b"", b" ", b"\r", b"{", b"}", b"[" * 100_000, b'{"a":' * 50_000, b'"' + b"x" * 3_000_000,
     b'{"type":1e999,"kind":-1e999}', b'{"id":' + b"9" * 5000 + b"}", b"\xed\xa0\x80", b"\xf0\x9f"],
    ids=lambda line: repr(line[:12]),
)  # fmt: skip
def test_awkward_lines_do_no_harm(name: str, line: bytes) -> None:
    host = started(name)
    host.line(line)
    host.exited()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a JSON value."""
    found = [path]
    items = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in items:
        found += _places(inner, (*path, key))
    return found


def _mutated(line: bytes, value: Any, choice: random.Random) -> bytes:
    """Return a recorded line with one value replaced, or with its bytes damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict) and record and choice.random() < 0.7:
        path = choice.choice(_places(record)[1:])
        inner = record
        for key in path[:-1]:
            inner = inner[key]
        if choice.random() < 0.3 and isinstance(inner, dict):
            del inner[path[-1]]
        else:
            inner[path[-1]] = value
        return json.dumps(record).encode()
    at = choice.randrange(len(line) + 1)
    damage = choice.choice([b"", b"\xff", b"\x00", b"}", b'"', b"\\ud800", line[:7]])
    return line[:at] + damage + line[at + choice.randrange(4) :]


@st.composite
def damaged_lines(draw: st.DrawFn, name: str) -> bytes:
    # By number: hypothesis would describe every line of the corpus.
    lines = corpus(name)
    line = lines[draw(st.integers(0, len(lines) - 1))]
    how = draw(st.sampled_from(["as is", "mutated", "cut", "random"]))
    if how == "random":
        return draw(st.binary(max_size=60)).replace(b"\n", b"")
    if how == "cut":
        return line[: draw(st.integers(0, len(line)))]
    if how == "mutated":
        line = _mutated(line, draw(json_values), draw(st.randoms(use_true_random=False)))
    return line.replace(b"\n", b" ")


# Any order of inputs, the lines among them true, damaged or invented. The numbers pick among what is
# open at that moment, so that the same list means the same for two drivers that do the same.
def inputs(name: str) -> st.SearchStrategy[list[tuple[str, Any]]]:
    pick = st.integers(0, 5)
    one = st.one_of(
        *[st.tuples(st.just("line"), damaged_lines(name))] * 3,
        st.tuples(st.sampled_from(["send", "append", "unqueue", "answer", "again"]), pick),
        st.tuples(st.sampled_from(["interrupt", "adopted", "compact", "clear", "run_command"]), pick),
        st.tuples(st.sampled_from(["model", "permission_mode", "effort", "title"]), pick),
    )
    return st.lists(one, max_size=40)


def give(host: DriverHost, verb: str, value: Any, number: int) -> None:
    """Give one input if it can be given now."""
    open_questions, handed = sorted(host.obligations.questions), sorted(host.obligations.handed)
    commands = {
        "compact": lambda: host.compact(f"c{number}"),
        "clear": lambda: host.clear(f"c{number}"),
        "run_command": lambda: host.run_command(f"c{number}", "/stats"),
    }
    if verb == "line":
        host.line(value)
    elif verb in ("send", "append"):
        ready = host.driver.between_turns or host.obligations.turn_id
        if ready and getattr(host.driver.capabilities, "append" if verb == "append" else "steer"):
            host.send(f"m{number}", f"text {value}", append=verb == "append")
    elif verb == "unqueue":
        if handed:
            host.unqueue(handed[value % len(handed)])
    elif verb == "answer":
        if open_questions:
            host.answer(open_questions[value % len(open_questions)], ["yes"])
    elif verb == "again":
        host.exited(ExitStatus(exit_code=value))
        host.launch(resume=value > 2)
    elif verb in commands:
        if host.driver.between_turns:
            commands[verb]()
    elif verb in ("interrupt", "adopted"):
        getattr(host, verb)()
    else:
        host.set(verb, f"value {value}")


@cache
def beginnings(name: str) -> list[list[Step]]:
    """Return what was done in each recording of the driver's agent, and nothing but a launch."""
    folders = scenarios(name)
    played = [
        list(expand(read_steps(path / "steps.jsonl"), read_lines(path / "stdout.jsonl")))
        for path in folders
    ]
    return [[("launch", {})], *played]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_inputs_keep_every_promise_and_survive_a_restore_at_every_point(
    name: str, data: st.DataObject
) -> None:
    recorded = beginnings(name)
    beginning = recorded[data.draw(st.integers(0, len(recorded) - 1))]
    beginning = beginning[: data.draw(st.integers(1, len(beginning)))]
    script = data.draw(inputs(name))
    once = DriverHost(lambda: create(name))
    each = DriverHost(lambda: create(name), reload=True)
    for step in beginning:
        play_one(once, step)
        play_one(each, step)
    for number, (verb, value) in enumerate(script):
        refusals = []
        for host in (once, each):
            try:
                give(host, verb, value, number)
            except Refused as refused:
                refusals.append(str(refused))
        assert len(refusals) in (0, 2)
        assert once.driver.between_turns == each.driver.between_turns
    for host in (once, each):
        host.exited(ExitStatus(signal=9))
        host.obligations.quiet()
    assert list(map(plain, each.effects)) == list(map(plain, once.effects))


@pytest.mark.parametrize("name", NAMES)
def test_all_recorded_lines_in_any_order_keep_every_promise(name: str) -> None:
    lines = list(corpus(name))
    for seed in range(20):
        random.Random(seed).shuffle(lines)
        host = started(name)
        for line in lines:
            host.line(line)
        host.exited(ExitStatus(signal=9))


def test_turn_ids_differ_over_the_processes_of_a_session(name: str) -> None:
    """The checker refuses a turn id that was used before; two runs of a recording must not share one."""
    host = started(name)
    for line in corpus(name) * 2:
        host.line(line)
    host.exited()
    host.launch(SPEC, resume=True)
    for line in corpus(name):
        host.line(line)
    host.exited()
