"""What a well-behaved agent does, step by step.

Each method `do_NAME` plays the directive `!NAME`. It is a generator: it yields a `Wait` when something
must happen before it goes on, and is closed at that point when the turn is interrupted.
"""

from __future__ import annotations

import binascii
import os
import time

from .script import Step, parse, parse_ask, parse_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from typing import Any

    from .loop import Agent

# The smallest picture there is: one transparent pixel.
PIXEL = binascii.a2b_base64(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PERMISSIONS = (
    ("Allow", "allow_once"),
    ("Always allow", "allow_always"),
    ("Deny", "reject_once"),
    ("Never allow", "reject_always"),
)
WORDS = ("amber", "birch", "cedar", "delta", "ember", "flint", "grove", "heron", "inlet", "juniper")
PLAN_STATES = ("todo", "doing", "done")
_BATCH = 500


class Wait:
    """Go on when all `questions` are answered or `until` (monotonic seconds) has come."""

    __slots__ = ("questions", "until")

    def __init__(self, questions: frozenset[str] = frozenset(), until: float | None = None) -> None:
        self.questions = questions
        self.until = until


GIVE_WAY = Wait()


def pause(seconds: float) -> Wait:
    """Wait for a time."""
    return Wait(until=time.monotonic() + seconds)


def pieces(text: str) -> list[str]:
    """Cut a text into deltas: each word with the white space before it."""
    found: list[str] = []
    start = 0
    for at in range(1, len(text)):
        if text[at].isspace() and not text[at - 1].isspace():
            found.append(text[start:at])
            start = at
    found.append(text[start:])
    return found


class Player:
    """The directives of a well-behaved agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._random: random.Random | None = None

    @property
    def random(self) -> random.Random:
        """The seeded random source; its module is slow to import and seldom needed."""
        if self._random is None:
            from random import Random

            self._random = Random(self.agent.flags.seed)
        return self._random

    def play(self, step: Step) -> Iterator[Wait]:
        """Play one step. A directive that is unknown or wrong is a notice, and the script goes on."""
        act = getattr(self, f"do_{step.name}", None)
        try:
            if act is None:
                raise ValueError("no such directive")
            yield from act(step)
        except (ValueError, OSError, MemoryError) as error:
            self.agent.say("notice", level="warning", text=f"!{step.name} {step.rest}: {error!s:.200}")

    def stream(self, kind: str, deltas: list[str], rate: float, **first: Any) -> Iterator[Wait]:
        """Stream deltas as one block; `first` are fields of the first line only."""
        agent = self.agent
        block = agent.new_id("b")
        start = time.monotonic()
        for number, delta in enumerate(deltas):
            agent.say(kind, delta=delta, block=block, **(first if number == 0 else {}))
            if rate:
                yield Wait(until=start + (number + 1) / rate)
            elif number % _BATCH == _BATCH - 1:
                yield GIVE_WAY

    def do_text(self, step: Step) -> Iterator[Wait]:
        """`!text [@RATE] WORDS`: stream words."""
        yield from self.stream("text", pieces(step.rest), step.rate(self.agent.flags.rate))

    def do_think(self, step: Step) -> Iterator[Wait]:
        """`!think [@RATE] WORDS`: reason."""
        yield from self.stream("think", pieces(step.rest), step.rate(self.agent.flags.rate))

    def do_random(self, step: Step) -> Iterator[Wait]:
        """`!random [@RATE] N`: stream N words of the seeded random source."""
        words = [f"{self.random.choice(WORDS)} " for _ in range(int(step.rest or "10"))]
        yield from self.stream("text", words, step.rate())

    def do_retract(self, step: Step) -> Iterator[Wait]:
        """`!retract WORDS`: stream words, then say that they are void."""
        mark = self.agent.new_id("m")
        yield from self.stream("text", pieces(step.rest or "half a sent"), step.rate(), mark=mark)
        self.agent.say("retract", mark=mark)

    def do_sleep(self, step: Step) -> Iterator[Wait]:
        """`!sleep SECONDS`."""
        yield pause(float(step.rest))

    def do_tool(self, step: Step) -> Iterator[Wait]:
        """`!tool [for=S] [updates=N] [outcome=error|denied] [title=T] NAME {json} -> output`."""
        name, given, output = parse_call(step.rest)
        tool = self.agent.start_tool(name, given, step.text("title"))
        yield from self._work(step, tool, output)
        self.agent.say("tool_end", id=tool, output=output, outcome=step.text("outcome", "ok"))

    def _work(self, step: Step, tool: str, output: str) -> Iterator[Wait]:
        updates = step.integer("updates", 0) or 0
        share = step.number("for") / (updates + 1)
        for number in range(updates):
            yield pause(share)
            replace = step.text("replace") in ("1", "true")
            self.agent.say(
                "tool_output", id=tool, output=f"{output} {number + 1}/{updates}\n", replace=replace
            )
        yield pause(share)

    def do_permit(self, step: Step) -> Iterator[Wait]:
        """`!permit NAME {json} -> output`: ask first, except in the mode `auto`."""
        agent = self.agent
        name, given, output = parse_call(step.rest)
        tool = agent.start_tool(name, given, step.text("title"))
        if agent.settings["mode"] != "auto":
            question = agent.new_id("q")
            options = [{"label": label, "kind": kind} for label, kind in PERMISSIONS]
            agent.say("ask", id=question, prompt=f"Run {name}?", header=name, options=options, tool=tool)
            yield Wait(frozenset([question]))
            answers, note = agent.answers.pop(question)
            if not answers or "llow" not in answers[0] or answers[0].startswith("Never"):
                agent.say("tool_end", id=tool, output=note or "denied", outcome="denied")
                return
        yield from self._work(step, tool, output)
        agent.say("tool_end", id=tool, output=output, outcome="ok")

    def do_ask(self, step: Step) -> Iterator[Wait]:
        """`!ask [expires=S] [elsewhere=S] "Prompt" [a|b] multi text secret ;; "Next" ...`."""
        agent = self.agent
        questions = parse_ask(step.rest)
        group = agent.new_id("g") if len(questions) > 1 else ""
        ids = [agent.new_id("q") for _ in questions]
        seconds = step.number("expires") or step.number("elsewhere")
        expires = {"expires": int(time.time() + seconds + 1)} if "expires" in step.options else {}
        for question, asked in zip(ids, questions, strict=True):
            options = [{"label": label, "description": f"choose {label}"} for label in asked.labels]
            if options and "preview" in step.options:
                options[0]["preview"] = step.text("preview")
            agent.say(
                "ask", id=question, prompt=asked.prompt, header=step.text("header"), options=options,
                multi=asked.multi, text=asked.text, secret=asked.secret, group=group, **expires,
            )  # fmt: skip
        yield Wait(frozenset(ids), time.monotonic() + seconds if seconds else None)
        for question, asked in zip(ids, questions, strict=True):
            answers, note = agent.answers.pop(question, (None, ""))
            if answers is None:
                agent.say("ask_end", id=question, reason="expired" if expires else "elsewhere")
            else:
                given = (
                    f"{len(answers[0])} characters" if asked.secret and answers else ", ".join(answers)
                )
                agent.say("text", delta=f"{asked.prompt} {given}{note and f' ({note})'}\n")

    def do_sub(self, step: Step) -> Iterator[Wait]:
        """`!sub NAME`: a sub-agent; what follows up to `!end_sub` is its."""
        tool = self.agent.start_tool("agent", '{"name":"' + (step.rest or "sub") + '"}', step.rest)
        self.agent.parents.append(tool)
        yield GIVE_WAY

    def do_end_sub(self, step: Step) -> Iterator[Wait]:
        """`!end_sub [OUTPUT]`: the sub-agent is done."""
        if not self.agent.parents:
            raise ValueError("no !sub is open")
        tool = self.agent.parents.pop()
        self.agent.say("tool_end", id=tool, output=step.rest, outcome="ok")
        yield GIVE_WAY

    def do_usage(self, step: Step) -> Iterator[Wait]:
        """`!usage [cache_read=N] [cache_write=N] [context=N] [window=N] [cost=X] IN OUT`."""
        given, _, made = step.rest.partition(" ")
        fields: dict[str, Any] = {key: step.integer(key) for key in ("context", "window")}
        fields["cost"] = step.number("cost") if "cost" in step.options else None
        self.agent.say(
            "usage", input=int(given or 0), output=int(made or 0),
            cache_read=step.integer("cache_read", 0), cache_write=step.integer("cache_write", 0),
            **{key: value for key, value in fields.items() if value is not None},
        )  # fmt: skip
        yield GIVE_WAY

    def do_compact(self, step: Step) -> Iterator[Wait]:
        """`!compact [for=S] [pre=N] [post=N] [TRIGGER]`: compact the context (trigger: auto)."""
        self.agent.say("compacting")
        yield pause(step.number("for"))
        numbers = {key: step.integer(key) for key in ("pre", "post") if key in step.options}
        self.agent.say("compacted", trigger=step.rest or "auto", **numbers)

    def do_clear(self, step: Step) -> Iterator[Wait]:
        """`!clear`: forget everything, unasked."""
        self.agent.memory.clear()
        self.agent.say("cleared")
        yield GIVE_WAY

    def do_plan(self, step: Step) -> Iterator[Wait]:
        """`!plan done:TEXT | doing:TEXT | todo:TEXT`."""
        items = []
        for part in step.rest.split("|"):
            state, colon, text = part.strip().partition(":")
            if not colon or state not in PLAN_STATES:
                state, text = "todo", part
            items.append({"text": text.strip(), "state": state})
        self.agent.say("plan", items=items)
        yield GIVE_WAY

    def do_retry(self, step: Step) -> Iterator[Wait]:
        """`!retry [attempt=N] [max=N] [delay=S] REASON`."""
        delay = step.number("delay")
        self.agent.say(
            "retry", attempt=step.integer("attempt", 1), max=step.integer("max", 3),
            delay_ms=int(delay * 1000), reason=step.rest,
        )  # fmt: skip
        yield pause(delay)

    def do_limit(self, step: Step) -> Iterator[Wait]:
        """`!limit [used=0.9] [reached=1] [resets=UNIX_SECONDS] KIND`."""
        fields: dict[str, Any] = {"limit": step.rest, "reached": step.text("reached") in ("1", "true")}
        if "used" in step.options:
            fields["used"] = step.number("used")
        if "resets" in step.options:
            fields["resets"] = step.integer("resets")
        self.agent.say("limit", **fields)
        yield GIVE_WAY

    def do_notice(self, step: Step) -> Iterator[Wait]:
        """`!notice [level=debug|info|warning] TEXT`."""
        self.agent.say("notice", level=step.text("level", "info"), text=step.rest)
        yield GIVE_WAY

    def do_error(self, step: Step) -> Iterator[Wait]:
        """`!error [reason=REASON] TEXT`: a failure that does not end the turn."""
        self.agent.say("error", reason=step.text("reason", "AGENT_FAILED"), message=step.rest)
        yield GIVE_WAY

    def do_fail(self, step: Step) -> Iterator[Wait]:
        """`!fail [reason=model_error] TEXT`: end the turn as failed."""
        self.agent.end_turn("failed", step.text("reason", "model_error"), step.rest)
        yield GIVE_WAY

    def do_end(self, step: Step) -> Iterator[Wait]:
        """`!end [reason=done] [TEXT]`: end the turn before the script is over."""
        self.agent.end_turn("done", step.text("reason", "done"), step.rest)
        yield GIVE_WAY

    def do_peer(self, step: Step) -> Iterator[Wait]:
        """`!peer SENDER TEXT`: another agent speaks."""
        sender, _, text = step.rest.partition(" ")
        self.agent.say("peer", id=self.agent.new_id("p"), sender=sender, text=text)
        yield GIVE_WAY

    def do_file(self, step: Step) -> Iterator[Wait]:
        """`!file [bytes=N] [type=MEDIA_TYPE] [tool=ID] NAME`: a file; without `bytes` a tiny PNG."""
        size = step.integer("bytes")
        data = PIXEL if size is None else self.random.randbytes(size)
        kind = step.text("type", "image/png" if size is None else "application/octet-stream")
        encoded = binascii.b2a_base64(data, newline=False).decode()
        self.agent.say("file", data=encoded, media_type=kind, name=step.rest, tool=step.text("tool"))
        yield GIVE_WAY

    def do_set(self, step: Step) -> Iterator[Wait]:
        """`!set [model=M] [mode=M] [effort=E] [title=T]`: change its own settings."""
        for name, value in step.options.items():
            self.agent.change(name, value, "")
        yield GIVE_WAY

    def do_title(self, step: Step) -> Iterator[Wait]:
        """`!title TEXT`: name the conversation."""
        self.agent.change("title", step.rest, "")
        yield GIVE_WAY

    def do_options(self, step: Step) -> Iterator[Wait]:
        """`!options MODEL...`: offer more models."""
        self.agent.models += [name for name in step.rest.split() if name not in self.agent.models]
        self.agent.say("options", **self.agent.options())
        yield GIVE_WAY

    def do_later(self, step: Step) -> Iterator[Wait]:
        """`!later SECONDS SCRIPT`: start a turn by itself after a time; ` ; ` divides its lines."""
        seconds, _, text = step.rest.partition(" ")
        self.agent.later.append((time.monotonic() + float(seconds), parse(text.replace(" ; ", "\n"))))
        yield GIVE_WAY

    def do_output(self, step: Step) -> Iterator[Wait]:
        """`!output TEXT`: output of a command."""
        self.agent.say("output", request=self.agent.request, text=step.rest)
        yield GIVE_WAY

    def do_recall(self, step: Step) -> Iterator[Wait]:
        """`!recall`: say which messages it remembers, one line each."""
        lines = [f"{number}: {text}\n" for number, text in enumerate(self.agent.memory.texts(), 1)]
        yield from self.stream("text", lines or ["nothing\n"], 0)

    def do_prompt(self, step: Step) -> Iterator[Wait]:
        """`!prompt`: say its system prompt."""
        yield from self.stream("text", [self.agent.flags.system_prompt], 0)

    def do_env(self, step: Step) -> Iterator[Wait]:
        """`!env NAME`: say an environment variable."""
        yield from self.stream("text", [os.environ.get(step.rest, "")], 0)

    def do_cwd(self, step: Step) -> Iterator[Wait]:
        """`!cwd`: say the working directory."""
        yield from self.stream("text", [os.getcwd()], 0)
