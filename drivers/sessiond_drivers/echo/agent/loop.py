"""The agent's one loop: lines in, the turn's script, lines out. Nothing in it blocks."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections import deque

from .memory import Memory, UnknownConversation
from .misbehave import Troublemaker
from .play import Wait
from .script import Step, parse, parse_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

VERSION = "1.0.0"
# The script does not go on while more than this waits to be written.
_HIGH_WATER = 256 * 1024
_SETTINGS = ("model", "mode", "effort", "title")
_MODES = ("ask", "auto", "plan")
_EFFORTS = ("low", "medium", "high")
_COMMANDS = {
    "stats": "say how many messages it remembers",
    "say": "say the words that follow",
    "play": "play the script that follows",
    "fail": "be refused",
}
# The model that is on offer and that nobody may use.
LOCKED_MODEL = "echo-locked"


class Flags:
    """The command line, and the environment where it is silent."""

    names = (
        "session", "resume", "model", "mode", "effort", "title", "system-prompt", "script",
        "state-dir", "read-log", "start-delay", "rate", "seed",
    )  # fmt: skip

    def __init__(self, arguments: list[str]) -> None:
        """Read them; ValueError says what is wrong."""
        given = {
            name: os.environ.get(f"ECHO_{name.replace('-', '_').upper()}", "") for name in self.names
        }
        words = iter(arguments)
        for word in words:
            name = word.removeprefix("--")
            if name not in self.names or name == word:
                raise ValueError(f"unknown argument {word}; known: --{', --'.join(self.names)}")
            given[name] = next(words, "")
        self.resume = bool(given["resume"])
        self.session = given["resume"] or given["session"] or "echo"
        self.settings = {
            "model": given["model"] or "echo-1",
            "mode": given["mode"] or "ask",
            "effort": given["effort"] or "medium",
            "title": given["title"],
        }
        self.system_prompt = given["system-prompt"]
        self.state_dir = given["state-dir"] or _default_state_dir()
        self.read_log = given["read-log"]
        self.start_delay = float(given["start-delay"] or 0)
        self.rate = float(given["rate"] or 0)
        self.seed = int(given["seed"] or 0)
        self.blocks: list[str] = []
        if given["script"]:
            with open(given["script"], encoding="utf-8") as file:
                self.blocks = parse_file(file.read())


def _default_state_dir() -> str:
    folder = os.environ.get("TMPDIR") or "/tmp"
    return os.path.join(folder, f"sessiond-echo-{os.getuid()}")


class Agent:
    """One conversation."""

    def __init__(self, flags: Flags, memory: Memory) -> None:
        self.flags = flags
        self.memory = memory
        self.models = ["echo-1", "echo-2", LOCKED_MODEL]
        self.settings = {"model": "echo-1", "mode": "ask", "effort": "medium", "title": ""}
        self.answers: dict[str, tuple[list[str], str]] = {}
        self.parents: list[str] = []
        self.later: list[tuple[float, list[Step]]] = []
        self.exit_code: int | None = None
        self.request = ""
        self.refusals = 0
        self.drops = 0
        self.unqueue_outcome = ""
        self._asked: list[str] = []
        self._player = Troublemaker(self)
        self._ids = 0
        self._played = 0
        self._in = bytearray()
        self._out = bytearray()
        self._waiting: deque[dict[str, Any]] = deque()
        self._turn: Iterator[Wait] | None = None
        self._wait = Wait()
        self._steps: deque[Step] = deque()
        self._count = 0
        self._began = 0.0

    # --- what the script may use ---------------------------------------------------------------

    def say(self, kind: str, **fields: Any) -> None:
        """Put one record out, as the innermost open sub-agent if there is one."""
        if self.parents and kind != "end":
            fields["parent"] = self.parents[-1]
        record = json.dumps({"kind": kind, **fields}, ensure_ascii=False, separators=(",", ":"))
        if kind == "ask":
            self._asked.append(fields["id"])
        elif kind == "ask_end":
            self._asked.remove(fields["id"])
        self.write(record.encode("utf-8", "replace") + b"\n")

    def write(self, data: bytes) -> None:
        """Put bytes out as they are."""
        self._out += data

    def drain(self) -> None:
        """Wait until everything is written."""
        os.set_blocking(1, True)
        while self._out:
            del self._out[: os.write(1, self._out)]
        os.set_blocking(1, False)

    def new_id(self, prefix: str) -> str:
        """Return an id that no process of this conversation has used."""
        self._ids += 1
        return f"{prefix}{self.memory.run}.{self._ids}"

    def start_tool(self, name: str, given: str, title: str) -> str:
        """Begin a tool call; `given` is its input, JSON exactly as it stands."""
        tool = self.new_id("t")
        parent = f',"parent":"{self.parents[-1]}"' if self.parents else ""
        fields = {"kind": "tool", "id": tool, "name": name, "title": title}
        head = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        self.write(f'{head[:-1]},"input":{given}{parent}}}\n'.encode("utf-8", "replace"))
        return tool

    def end_turn(self, outcome: str, reason: str, message: str) -> None:
        """End the running turn now; what its script still holds is not played."""
        if self._turn is None:
            return
        self._turn = None
        self._steps.clear()
        self.parents.clear()
        self.answers.clear()
        self._asked.clear()
        ms = int((time.monotonic() - self._began) * 1000)
        fields = {"request": self.request} if self.request else {}
        self.request = ""
        self.say(
            "end", outcome=outcome, reason=reason, message=message, ms=ms, steps=self._count, **fields
        )

    def change(self, name: str, value: str, request: str) -> None:
        """Change a setting and confirm it; ValueError when it can't be."""
        offered = {"model": self.models, "mode": _MODES, "effort": _EFFORTS}.get(name)
        if name == "effort" and not value:
            value = "medium"
        if name not in _SETTINGS:
            raise ValueError(f"no such setting: {name}")
        if value == LOCKED_MODEL or (offered is not None and value not in offered):
            raise ValueError(f"{name} {value!r} is not available")
        self.settings[name] = value
        self.say("settings", **{name: value}, **({"request": request} if request else {}))

    def options(self) -> dict[str, Any]:
        """Say what is on offer."""

        def choices(names: Any) -> list[dict[str, str]]:
            return [{"id": name, "label": name.replace("-", " ").capitalize()} for name in names]

        commands = [
            {"id": name, "label": f"/{name}", "description": text} for name, text in _COMMANDS.items()
        ]
        return {
            "models": choices(self.models),
            "modes": choices(_MODES),
            "efforts": choices(_EFFORTS),
            "commands": commands,
        }

    # --- turns ---------------------------------------------------------------------------------

    def _begin(self, origin: str, steps: list[Step], request: str = "") -> None:
        self._count = 0
        self._began = time.monotonic()
        self.request = request
        self.say("turn", origin=origin)
        self._steps.extend(steps)
        self._turn = self._play_all()
        self._wait = Wait()

    def _play_all(self) -> Iterator[Wait]:
        while True:
            self._fold()
            if not self._steps:
                break
            self._count += 1
            yield from self._player.play(self._steps.popleft())
        self.end_turn("done", "done", "")

    def _fold(self) -> None:
        """A boundary: read the messages that wait, up to the first command; play them next."""
        steps: list[Step] = []
        while self._waiting and self._waiting[0]["kind"] == "message":
            item = self._waiting.popleft()
            if self.drops:
                self.drops -= 1
                self.say("dropped", id=item["id"])
            else:
                steps += self._read(item)
        if self._count:
            self._steps.extendleft(reversed(steps))
        else:
            self._steps.extend(steps)

    def _read(self, item: dict[str, Any]) -> list[Step]:
        """Read a message: remember it, say so, return its script."""
        text = item["text"]
        self.memory.read(item["id"], text)
        parents, self.parents = self.parents, []
        self.say("read", id=item["id"])
        self.parents = parents
        if item["append"]:
            return []
        steps = [Step("text", {}, f"[{file['name']} {file['media_type']} {file['size']} bytes]\n")
                 for file in item["files"]]  # fmt: skip
        self._played += 1
        if self._played <= len(self.flags.blocks):
            return steps + parse(self.flags.blocks[self._played - 1].replace("{text}", text))
        return steps + parse(text)

    def _start_next(self) -> None:
        """Between turns: take what waits, until something starts a turn."""
        while self._turn is None and self._waiting and self.exit_code is None:
            item = self._waiting.popleft()
            if item["kind"] == "message":
                if item["append"]:
                    self._read(item)
                else:
                    self._begin("message", [])
                    self._steps.extend(self._read(item))
            else:
                self._obey(item)

    def _obey(self, item: dict[str, Any]) -> None:
        """Carry out a command."""
        kind, request = item["kind"], item["request"]
        if self.refusals:
            self.refusals -= 1
            self.say("refused", request=request, message=f"{kind} refused as told")
        elif kind == "clear":
            self.memory.clear()
            self.say("cleared", request=request)
        elif kind == "compact":
            kept = len(self.memory.texts())
            options = {"pre": str(1000 + kept), "post": str(100 + kept)}
            before = parse(item["instructions"]) if item["instructions"].startswith("!") else []
            self._begin("command", [*before, Step("compact", options, "manual")], request)
        else:
            self._run(item["text"].removeprefix("/"), request)

    def _run(self, text: str, request: str) -> None:
        name, _, rest = text.partition(" ")
        if name == "stats":
            steps = [Step("output", {}, f"{len(self.memory.texts())} messages")]
        elif name == "say":
            steps = [Step("output", {}, rest)]
        elif name == "play":
            steps = parse(rest)
        else:
            self.say("refused", request=request, message=f"no such command: /{name}")
            return
        self._begin("command", steps, request)

    def _advance(self) -> None:
        """Play on while nothing must be waited for and the reader keeps up."""
        self._start_next()
        if self._turn is None:
            now = time.monotonic()
            due = next((entry for entry in self.later if entry[0] <= now), None)
            if due is not None and self.exit_code is None:
                self.later.remove(due)
                self._begin("agent", due[1])
        if self._turn is None or len(self._out) > _HIGH_WATER or not self._may_go_on():
            return
        turn = self._turn
        self._wait = next(turn, Wait())

    def _may_go_on(self) -> bool:
        wait = self._wait
        if wait.until is not None and wait.until <= time.monotonic():
            return True
        if wait.questions:
            return wait.questions <= self.answers.keys()
        return wait.until is None

    # --- lines in ------------------------------------------------------------------------------

    def hear(self, line: bytes) -> None:
        """Take one line; what is wrong with it is reported and nothing else happens."""
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not an object")
            handler = getattr(self, f"_hear_{record.get('kind')}", None)
            if handler is None:
                raise ValueError(f"unknown kind {record.get('kind')!r}")
            handler(record)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            shown = line[:200].decode("utf-8", "replace")
            self.say("bad_input", message=f"{type(error).__name__}: {error}", line=shown)

    def _hear_message(self, record: dict[str, Any]) -> None:
        message = {"kind": "message", "id": str(record["id"]), "text": str(record["text"])}
        files = [
            {key: file[key] for key in ("name", "media_type", "size")}
            for file in record.get("files", ())
        ]
        self._waiting.append({**message, "files": files, "append": bool(record.get("append"))})

    def _hear_unqueue(self, record: dict[str, Any]) -> None:
        wanted = record["id"]
        found = next((item for item in self._waiting if item.get("id") == wanted), None)
        outcome, self.unqueue_outcome = self.unqueue_outcome or ("dropped" if found else "unknown"), ""
        if found and outcome != "read":
            self._waiting.remove(found)
        self.say("unqueued", id=wanted, outcome=outcome)

    def _hear_answer(self, record: dict[str, Any]) -> None:
        if record["id"] not in self._asked:
            raise ValueError(f"no open question {record['id']}")
        self._asked.remove(record["id"])
        self.answers[record["id"]] = (
            [str(answer) for answer in record["answers"]],
            str(record.get("note", "")),
        )

    def _hear_interrupt(self, _: dict[str, Any]) -> None:
        self.end_turn("interrupted", "interrupted", "")

    def _hear_set(self, record: dict[str, Any]) -> None:
        name = next(key for key in _SETTINGS if key in record)
        request = record["request"]
        try:
            if self.refusals:
                self.refusals -= 1
                raise ValueError(f"{name} refused as told")
            self.change(name, str(record[name]), request)
        except ValueError as error:
            self.say("refused", request=request, message=str(error))

    def _hear_compact(self, record: dict[str, Any]) -> None:
        instructions = str(record.get("instructions", ""))
        self._waiting.append(
            {"kind": "compact", "request": record["request"], "instructions": instructions}
        )

    def _hear_clear(self, record: dict[str, Any]) -> None:
        self._waiting.append({"kind": "clear", "request": record["request"]})

    def _hear_command(self, record: dict[str, Any]) -> None:
        self._waiting.append(
            {"kind": "command", "request": record["request"], "text": str(record["text"])}
        )

    def _hear_status(self, _: dict[str, Any]) -> None:
        busy = self._turn is not None or bool(self._waiting)
        self.say("status", busy=busy, questions=list(self._asked), **self.settings)

    def _hear_quit(self, _: dict[str, Any]) -> None:
        self.end_turn("interrupted", "interrupted", "told to quit")
        self.exit_code = 0

    # --- the loop ------------------------------------------------------------------------------

    def greet(self) -> None:
        """Say hello, and which of the settings asked for it can't have."""
        refused = []
        for name, value in self.flags.settings.items():
            try:
                held = len(self._out)
                self.change(name, value, "")
                del self._out[held:]
            except ValueError as error:
                refused.append(str(error))
        self.say(
            "hello", version=VERSION, session=self.flags.session, resumed=self.flags.resume,
            **self.settings, options=self.options(),
        )  # fmt: skip
        for message in refused:
            self.say("refused", request="", message=message)

    def run(self) -> int:
        """Live until told to quit or until nobody is there to talk to; return the exit code."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        os.set_blocking(1, False)
        try:
            while self.exit_code is None:
                self._advance()
                poll.register(1, select.POLLOUT) if self._out else poll.register(1, 0)
                self._serve(dict(poll.poll(self._timeout())))
            self.drain()
        except BrokenPipeError:
            return 0
        return self.exit_code

    def _timeout(self) -> int | None:
        """Milliseconds until something is due, None for never."""
        if self._turn is None:
            return _milliseconds(min((when for when, _ in self.later), default=None))
        if len(self._out) > _HIGH_WATER:
            return None
        if self._may_go_on():
            return 0
        return _milliseconds(self._wait.until)

    def _serve(self, ready: dict[int, int]) -> None:
        if ready.get(1, 0) & (select.POLLERR | select.POLLHUP):
            raise BrokenPipeError
        if ready.get(1, 0) & select.POLLOUT:
            del self._out[: os.write(1, memoryview(self._out)[:65536].tobytes())]
        if 0 in ready:
            data = os.read(0, 1 << 20)
            if not data:
                self._hear_quit({})
                return
            self._in += data
            if b"\n" in data:
                *lines, rest = self._in.split(b"\n")
                self._in = rest
                for line in lines:
                    self.hear(bytes(line))
                    # At once: an interrupt right behind a message is meant for its turn.
                    self._start_next()


def _milliseconds(when: float | None) -> int | None:
    return None if when is None else max(0, int((when - time.monotonic()) * 1000) + 1)


def main(arguments: list[str]) -> int:
    """Run the agent; return its exit code."""
    if arguments == ["--version"]:
        sys.stdout.write(f"sessiond echo agent {VERSION}\n")
        return 0
    try:
        flags = Flags(arguments)
        memory = Memory(flags.session, flags.state_dir, flags.read_log, flags.resume)
    except UnknownConversation as error:
        sys.stderr.write(f"echo agent: no conversation with the id {error}\n")
        return 1
    except (ValueError, OSError) as error:
        sys.stderr.write(f"echo agent: {error}\n")
        return 2
    if flags.start_delay:
        time.sleep(flags.start_delay)
    agent = Agent(flags, memory)
    agent.greet()
    return agent.run()
