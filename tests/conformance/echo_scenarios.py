"""What the echo agent is made to do: each scenario runs live and is kept as a recording.

A scenario gets a host that has not started its agent. `SCENARIOS` names them all.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

from sessiond_drivers.base import Content, Message
from tests.conformance.host import SPEC
from tests.conformance.live import LiveHost

__all__ = ["SCENARIOS"]

Scenario = Callable[[LiveHost], None]
SCENARIOS: dict[str, Scenario] = {}


def _scenario(play: Scenario) -> Scenario:
    SCENARIOS[play.__name__] = play
    return play


def _run(host: LiveHost, text: str) -> None:
    """Play one message from start to end."""
    host.start_ready()
    host.send("m1", text)
    host.until_idle()


@_scenario
def plain_turn(host: LiveHost) -> None:
    _run(host, "hello wide world")
    host.stop_and_exit()


@_scenario
def everything_it_tells(host: LiveHost) -> None:
    _run(
        host,
        "!think let me see\n!text here it is\n"
        '!tool updates=2 title=List bash {"cmd": "ls", "n": 12345678901234567890123} -> out\n'
        "!tool outcome=error read {} -> no such file\n"
        "!usage cache_read=3 cache_write=4 context=900 window=1000 cost=0.25 10 20\n"
        "!plan done:look | doing:think | todo:act\n!retry attempt=2 max=5 delay=0.01 overloaded\n"
        "!limit used=0.75 resets=1800000000 five_hour\n!notice level=warning careful\n"
        "!error reason=MCP_FAILED a server is away\n!peer scout found it\n!file pixel.png\n"
        "!file bytes=5 type=text/plain notes.txt\n!set model=echo-2 effort=high\n!title A title\n"
        "!options echo-9\n!compact pre=900 post=100\n!clear\n!output words\n"
        "!retract not this\n!text but this",
    )
    host.stop_and_exit()


@_scenario
def sub_agents(host: LiveHost) -> None:
    _run(
        host,
        "!sub outer\n!text from the outer\n!tool bash {} -> inner work\n!sub inner\n!think deep\n"
        "!end_sub result\n!usage 1 2\n!end_sub done\nback at the top",
    )
    host.stop_and_exit()


@_scenario
def questions(host: LiveHost) -> None:
    host.start_ready()
    host.send(
        "m1",
        '!ask header=Pick preview=a+b "Which?" [a|b|c]\n!ask "Several?" [x|y|z] multi text\n'
        '!ask "Token?" secret\n!ask "One?" [1|2] ;; "Two?" [3|4]',
    )
    for number, answers in enumerate((["b"], ["x", "z"], ["hunter2"], ["1"], ["4"]), 1):
        asked = host.until_kind("question_asked", number)
        host.answer(asked.question_id, answers, "so be it" if number == 1 else "")
    host.until_idle()
    host.stop_and_exit()


@_scenario
def questions_that_end_by_themselves(host: LiveHost) -> None:
    _run(host, '!ask expires=0.05 "Quick?" [yes|no]\n!ask elsewhere=0.05 "Anyone?" [yes|no]\nand on')
    host.stop_and_exit()


@_scenario
def permissions(host: LiveHost) -> None:
    host.start_ready()
    host.send(
        "m1", '!permit bash {"cmd":"rm"} -> gone\n!permit write {} -> kept\n!set mode=auto\n!permit x'
    )
    host.answer(host.until_kind("question_asked").question_id, ["Allow"])
    host.answer(host.until_kind("question_asked", 2).question_id, ["Deny"], "not that")
    host.until_idle()
    host.stop_and_exit()


@_scenario
def steering(host: LiveHost) -> None:
    host.start_ready()
    host.send("m1", "!permit slow {} -> done\nafter the tool")
    asked = host.until_kind("question_asked")
    host.send("m2", "steered")
    host.send("m3", "noted", append=True)
    host.answer(asked.question_id, ["Allow"])
    host.until_idle()
    host.send("m4", "more context", append=True)
    host.until(lambda: "m4" in host.obligations.resolved)
    host.send("m5", "!recall")
    host.until_idle()
    host.stop_and_exit()


@_scenario
def interrupts(host: LiveHost) -> None:
    host.start_ready()
    host.send("m1", "!random @20/s 400")
    host.until_kind("assistant_text", 3)
    host.interrupt()
    host.until_idle()
    host.send("m2", "!tool for=30 slow {}")
    host.until_kind("tool_started")
    host.interrupt()
    host.until_idle()
    host.send("m3", '!sub worker\n!ask "Which?" [a|b] ;; "And?" text')
    host.send("m4", "the next")
    host.until(lambda: host.kinds.count("turn_ended") == 2 and host.obligations.turn_id)
    host.interrupt()
    host.until_idle()
    host.stop_and_exit()


@_scenario
def interrupt_of_questions(host: LiveHost) -> None:
    host.start_ready()
    host.send("m1", '!sub worker\n!open bash\n!ask "Which?" [a|b] ;; "And?" text')
    host.until_kind("question_asked", 2)
    host.interrupt()
    host.until_idle()
    host.stop_and_exit()


@_scenario
def unqueues(host: LiveHost) -> None:
    """Each question holds the agent between two boundaries."""
    host.start_ready()
    host.send("m1", '!ask "1" [go]\n!unqueue unknown\n!ask "2" [go]\nrest')
    first = host.until_kind("question_asked")
    host.unqueue("m1")
    host.send("m2", "taken back")
    host.unqueue("m2")
    host.until(lambda: "m2" in host.obligations.resolved)
    host.send("m3", "read at the boundary")
    host.answer(first.question_id, ["go"])
    host.until(lambda: "m3" in host.obligations.resolved)
    host.unqueue("m3")
    second = host.until_kind("question_asked", 2)
    host.send("m4", "denied")
    host.unqueue("m4")
    host.until(lambda: "m4" in host.obligations.resolved)
    host.send("m5", '!drop\n!ask "3" [go]\n!unqueue read')
    host.answer(second.question_id, ["go"])
    third = host.until_kind("question_asked", 3)
    host.send("m6", "thrown away by the agent")
    host.answer(third.question_id, ["go"])
    host.until_idle()
    host.stop_and_exit()


@_scenario
def settings(host: LiveHost) -> None:
    host.start_ready(replace(SPEC, model="echo-2", permission_mode="auto", effort="low", title="Mine"))
    host.set("model", "echo-1")
    host.set("permission_mode", "plan")
    host.set("effort", "")
    host.set("title", "Yours")
    host.set("model", "echo-locked")
    host.set("effort", "absurd")
    host.until(lambda: not host.obligations.settings)
    host.obligations.quiet()
    host.stop_and_exit()


@_scenario
def refused_from_the_start(host: LiveHost) -> None:
    host.start_ready(replace(SPEC, model="echo-locked", effort="absurd"))
    host.until_kind("error_raised", 2)
    host.stop_and_exit()


@_scenario
def commands(host: LiveHost) -> None:
    host.start_ready()
    host.send("m1", "remember this")
    host.until_idle()
    for command_id, text in (
        ("c1", "/stats"),
        ("c2", "/say two words"),
        ("c3", "/fail"),
        ("c4", "/play !cwd"),
    ):
        host.run_command(command_id, text)
        host.until_idle()
    host.compact("c5", "keep it short")
    host.until_kind("state_changed", host.kinds.count("state_changed") + 2)
    host.until_idle()
    host.clear("c6")
    host.until_kind("cleared")
    host.run_command("c7", "/stats")
    host.until_idle()
    host.send("m2", "!refuse 2")
    host.until_idle()
    host.clear("c8")
    host.until(lambda: not host.obligations.clears)
    host.compact("c9")
    host.until_idle()
    host.compact("c10", "!sleep 30")
    host.until_kind("turn_started", host.kinds.count("turn_started") + 1)
    host.interrupt()
    host.until_idle()
    host.obligations.quiet()
    host.stop_and_exit()


@_scenario
def turns_by_itself(host: LiveHost) -> None:
    _run(host, "!later 0.05 !tool bash {} -> woke up ; and told")
    host.until_kind("turn_ended", 2)
    host.stop_and_exit()


@_scenario
def failed_turn(host: LiveHost) -> None:
    _run(host, "!open bash\n!fail reason=context_full too long\nnever said")
    host.stop_and_exit()


@_scenario
def bad_lines(host: LiveHost) -> None:
    _run(host, "!invalid\n!garbage 3\n!unknown riddle\n!raw [1,2]\n!raw \\x00\\xff{}\n!raw\nstill here")
    host.write_raw(b'not json\n{"kind":"nonsense"}\n[]\n')
    host.until_kind("notice", host.kinds.count("notice") + 3)
    host.stop_and_exit()


@_scenario
def lies(host: LiveHost) -> None:
    """Lines that are well formed and make no sense."""
    lines = [
        '{"kind":"hello","version":"2","session":"other"}', '{"kind":"turn","origin":"message"}',
        '{"kind":"read","id":"never-sent"}', '{"kind":"tool_end","id":"never-started"}',
        '{"kind":"tool_output","id":"never-started","output":"x"}',
        '{"kind":"ask_end","id":"q","reason":"expired"}',
        '{"kind":"unqueued","id":"m1","outcome":"dropped"}', '{"kind":"dropped","id":"m1"}',
        '{"kind":"refused","request":"r99","message":"no"}', '{"kind":"settings"}',
        '{"kind":"cleared","request":"r99"}', '{"kind":"end","outcome":"odd"}',
        '{"kind":"retract","mark":"none"}',
        '{"kind":"file","data":"%%%","media_type":""}', '{"kind":"tool","id":"","name":""}',
    ]  # fmt: skip
    _run(host, "\n".join(f"!raw {line}" for line in lines))
    host.stop_and_exit()


@_scenario
def crash_with_everything_open(host: LiveHost) -> None:
    host.start_ready()
    host.send("m1", '!sub worker\n!open bash\n!tool for=0.1 wait {}\n!ask "Which?" [a|b]')
    asked = host.until_kind("question_asked")
    host.send("m2", "not read")
    host.unqueue("m3-never-sent")
    host.send("m3", "asked back")
    host.answer(asked.question_id, ["a"])
    host.send("m4", "!crash 3")
    host.drain_and_exit()


@_scenario
def killed(host: LiveHost) -> None:
    host.start_ready()
    host.send("m1", "!open bash\n!think hm\n!hang")
    host.until_kind("reasoning")
    host.send("m2", "not read")
    host.unqueue("m2")
    host.set("model", "echo-2")
    host.kill(signal.SIGKILL)
    host.drain_and_exit()


@_scenario
def resumed(host: LiveHost) -> None:
    _run(host, "first\n!tool bash {}")
    host.send("m2", "!crash KILL")
    host.drain_and_exit()
    host.start_ready(replace(SPEC, native_session_id=f"echo-{SPEC.session_id}"), resume=True)
    host.send("m3", "!recall\n!tool bash {}")
    host.until_idle()
    host.stop_and_exit()


@_scenario
def resume_of_nothing(host: LiveHost) -> None:
    host.start(replace(SPEC, native_session_id="no-such-conversation"), resume=True)
    host.drain_and_exit()


@_scenario
def attachments(host: LiveHost) -> None:
    host.start_ready()
    pixel = Content("0" * 64, "image/png", "pixel.png", "/nowhere/pixel.png", b"1234")
    host.message(Message("m1", "look", (pixel,)))
    host.until_idle()
    host.stop_and_exit()


@_scenario
def adoption(host: LiveHost) -> None:
    host.start_ready()
    host.send("m1", '!ask "Which?" [a|b]')
    asked = host.until_kind("question_asked")
    host.adopted()
    host.answer(asked.question_id, ["a"])
    host.until_idle()
    host.adopted()
    host.send("m2", "and on")
    host.until_idle()
    host.stop_and_exit()


@_scenario
def stop_in_a_turn(host: LiveHost) -> None:
    host.start_ready()
    host.send("m1", '!open bash\n!ask "Which?" [a|b]')
    host.until_kind("question_asked")
    host.stop_and_exit()
