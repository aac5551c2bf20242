"""From the text of a message to the steps that the agent plays."""

from __future__ import annotations

import json
import re

_DIRECTIVE = re.compile(r"!([a-z_]+)(?:[ \t]+(.*))?$", re.DOTALL)
_OPTION = re.compile(r"(?:([a-z_]+)=(\S*)|@(\S+))(?:\s+|$)")
_ASK = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:\[([^\]]*)\])?\s*([a-z ]*)$')

NO_RATE = ("", "flat")


class Step:
    """One thing to do: a name, `key=value` options (`@N` is the option `rate`) and the rest."""

    __slots__ = ("name", "options", "rest")

    def __init__(self, name: str, options: dict[str, str], rest: str) -> None:
        self.name = name
        self.options = options
        self.rest = rest

    def text(self, key: str, default: str = "") -> str:
        """Return an option."""
        return self.options.get(key, default)

    def number(self, key: str, default: float = 0.0) -> float:
        """Return an option as a number; ValueError when it is none."""
        value = self.options.get(key)
        return default if value is None else float(value)

    def integer(self, key: str, default: int | None = None) -> int | None:
        """Return an option as a whole number; ValueError when it is none."""
        value = self.options.get(key)
        return default if value is None else int(value)

    def rate(self, default: float = 0.0) -> float:
        """Return the rate per second, 0 for flat out; ValueError when it is no number."""
        value = self.options.get("rate")
        if value is None:
            return default
        return 0.0 if value in NO_RATE else float(value.removesuffix("/s"))


class Question:
    """What one part of an `!ask` says."""

    __slots__ = ("labels", "multi", "prompt", "secret", "text")

    def __init__(self, prompt: str, labels: list[str], flags: list[str]) -> None:
        self.prompt = prompt
        self.labels = labels
        self.multi = "multi" in flags
        self.secret = "secret" in flags
        self.text = "text" in flags or self.secret or not labels


def parse_line(line: str) -> Step | None:
    """Return the step of a directive line, None for plain text."""
    found = _DIRECTIVE.match(line)
    if found is None:
        return None
    options: dict[str, str] = {}
    rest = found[2] or ""
    while option := _OPTION.match(rest):
        options[option[1] or "rate"] = option[2] if option[1] else option[3]
        rest = rest[option.end() :]
    return Step(found[1], options, rest.rstrip())


def parse(text: str) -> list[Step]:
    """Return the steps of a script: directives, and plain text between them as `text` steps."""
    steps: list[Step] = []
    plain: list[str] = []
    for line in text.split("\n"):
        step = parse_line(line)
        if step is None:
            plain.append(line[1:] if line.startswith("!!") else line)
            continue
        _close(plain, steps)
        steps.append(step)
    _close(plain, steps)
    return steps


def _close(plain: list[str], steps: list[Step]) -> None:
    text = "\n".join(plain)
    plain.clear()
    if text:
        steps.append(Step("text", {}, text))


def parse_file(text: str) -> list[str]:
    """Return the blocks of a script file: one for each message, divided by lines of `---`."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() == "---":
            blocks.append([])
        else:
            blocks[-1].append(line)
    return ["\n".join(block) for block in blocks]


def parse_call(rest: str) -> tuple[str, str, str]:
    """Split `NAME {"json":1} -> output` into its parts; the input is the JSON text as written."""
    name, _, rest = rest.strip().partition(" ")
    rest = rest.strip()
    given = "{}"
    if rest and not rest.startswith("->"):
        _, end = json.JSONDecoder().raw_decode(rest)
        given, rest = rest[:end], rest[end:].strip()
    if rest and not rest.startswith("->"):
        raise ValueError(f"expected -> before the output, got {rest!r}")
    return name or "tool", given, rest.removeprefix("->").strip()


def parse_ask(rest: str) -> list[Question]:
    """Return the questions of `"Prompt" [a|b] multi text secret ;; "Next" [...]`."""
    questions = []
    for part in rest.split(";;"):
        found = _ASK.match(part.strip())
        if found is None:
            raise ValueError(f'expected "Prompt" [a|b|c] multi text secret, got {part.strip()!r}')
        labels = [label.strip() for label in (found[2] or "").split("|") if label.strip()]
        prompt = found[1].replace('\\"', '"').replace("\\\\", "\\")
        questions.append(Question(prompt, labels, found[3].split()))
    return questions
