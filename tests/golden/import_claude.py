"""Turn recordings of the real Claude Code into scenarios: `python -m tests.golden.import_claude FROM`.

FROM holds VERSION/SCENARIO/ folders with `timeline.txt` (SECONDS, then `>` to the program, `<` from it,
`!` its stderr, `#` a note, then one line of JSON), `argv` and `exit`. What a person's client wrote there
becomes the call that a host makes for it, as steps.jsonl; what the program wrote is kept as it is, but
for the ids of requests and messages, which become those that the driver uses. Then bless.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from sessiond_drivers.base import Effect, Refused, Write
from tests.conformance.drivers import create
from tests.conformance.host import DriverHost
from tests.conformance.steps import play_one
from tests.golden.compare import GOLDEN

Json = dict[str, Any]

_COMMAND = re.compile(r"^/[\w:-]+(\s|$)")
_LINE = re.compile(r"^ *[0-9.]+ ([<>!#]) (.*)$")
_SETTINGS = {
    "set_model": ("model", "model"),
    "set_permission_mode": ("permission_mode", "mode"),
    "rename_session": ("title", "title"),
}
_AGAIN = ("=== spawn again", "=== resume", "second process")


def _json(text: str) -> Json:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class Import:
    """One recording on its way to a scenario; a driver is played along to know its ids."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = DriverHost(lambda: create("claude"))
        self.steps: list[Json] = []
        self.stdout: list[str] = []
        self.asked: dict[str, Json] = {}
        self.renamed: dict[str, str] = {}
        self.waiting: list[str] = []
        self.opening = ""
        self.alive = False
        self.killed = False
        self.stderr = ""
        self.timeline = list(self._read_timeline())

    def run(self) -> None:
        """Go through the timeline."""
        self._launch(resume=False)
        for at, (way, text) in enumerate(self.timeline):
            if way == "<" and not text.startswith('{"_":'):
                self._said(text, at)
            elif way == ">":
                self._wrote(_json(text), at)
            elif way == "!":
                self.stderr += _json(text).get("_stderr", "")
            elif way == "#":
                self._note(_json(text).get("_", ""))
        if self.alive:
            code = (self.folder / "exit").read_text().strip()
            self._exited({"exit_code": int(code)} if code.isdigit() else {})

    def write(self, target: Path) -> None:
        """Keep the scenario."""
        target.mkdir(parents=True, exist_ok=True)
        (target / "stdout.jsonl").write_text("".join(f"{line}\n" for line in self.stdout))
        steps = "".join(f"{json.dumps(step, ensure_ascii=False)}\n" for step in self.steps)
        (target / "steps.jsonl").write_text(steps)

    def _read_timeline(self) -> Iterator[tuple[str, str]]:
        lines = (self.folder / "timeline.txt").read_text(encoding="utf-8").split("\n")
        matches = [match for line in lines if (match := _LINE.match(line))]
        if not any(match.group(1) == ">" for match in matches):
            for line in (self.folder / "stdin.jsonl").read_text().split("\n")[:-1]:
                yield ">", line
        for match in matches:
            yield match.group(1), match.group(2)

    def _step(self, verb: str, given: Any) -> list[Effect]:
        self.steps.append({verb: given})
        return play_one(self.host, (verb, given))

    def _launch(self, resume: bool) -> None:
        words = shlex.split((self.folder / "argv").read_text())
        flags = dict(pairwise(words))
        wanted = {"--permission-mode": "permission_mode", "--model": "model", "--name": "title"}
        given: Json = {field: flags[flag] for flag, field in wanted.items() if flag in flags}
        last = self.timeline and any(text.startswith('{"_": "=== ') for _, text in self.timeline)
        if "--resume" in flags and (resume or not last):
            given |= {"native_session_id": flags["--resume"], "resume": True}
        self.opening = self._request_id(self._step("launch", given))
        self.alive, self.killed, self.stderr = True, False, ""

    def _exited(self, given: Json) -> None:
        if self.stderr:
            given["stderr_tail"] = self.stderr
        self._step("exited", given)
        self.alive = False

    def _note(self, words: str) -> None:
        if words.startswith("SIGKILL") or "SIGKILL" in words:
            self.killed = True
        elif words.startswith("exit code ") and self.alive:
            code = int(words.removeprefix("exit code "))
            self._exited({"signal": -code} if code < 0 else {"exit_code": code})
        elif words.startswith(_AGAIN):
            if self.alive:
                self._exited({"signal": 9} if self.killed else {"exit_code": 0})
            self._launch(resume=not words.startswith("second"))

    # --- from the program ---

    def _said(self, text: str, at: int) -> None:
        record = _json(text)
        if record.get("type") == "control_request":
            self.asked[record.get("request_id", "")] = record.get("request", {})
        for theirs, ours in self.renamed.items():
            text = text.replace(f'"{theirs}"', f'"{ours}"')
        number = len(self.stdout)
        self.stdout.append(text)
        if self.steps and self.steps[-1].get("stdout", [0, -1])[1] == number:
            self.steps[-1]["stdout"][1] += 1
        else:
            self.steps.append({"stdout": [number, number + 1]})
        play_one(self.host, ("line", text.encode()))
        while self.waiting and self.host.driver.between_turns:
            self._command(*self.waiting.pop(0).split("\n", 1))

    # --- to the program ---

    def _wrote(self, record: Json, at: int) -> None:
        if record.get("type") == "control_request":
            self._request(record["request_id"], record["request"])
        elif record.get("type") == "control_response":
            self._answer(record["response"])
        elif record.get("type") == "user":
            self._user(record, at)

    def _request(self, theirs: str, request: Json) -> None:
        subtype = request["subtype"]
        if subtype == "initialize":
            ours, self.opening = self.opening, ""
            self.renamed[theirs] = ours or self._request_id(self._step("adopted", True))
        elif subtype == "interrupt":
            self.renamed[theirs] = self._request_id(self._step("interrupt", True))
        elif subtype == "cancel_async_message":
            self.renamed[theirs] = self._request_id(self._step("unqueue", request["message_uuid"]))
        elif subtype == "apply_flag_settings":
            effort = request["settings"]["effortLevel"] or ""
            self.renamed[theirs] = self._request_id(self._step("set", {"effort": effort}))
        elif subtype == "get_settings" and (checks := self._checks()):
            self.renamed[theirs] = checks[-1]
        elif subtype in _SETTINGS:
            name, field = _SETTINGS[subtype]
            try:
                effects = self._step("set", {name: request.get(field, "")})
            except Refused:
                self.steps.pop()
                return
            self.renamed[theirs] = self._request_id(effects)

    def _checks(self) -> list[str]:
        """The ids of the driver's own questions for what is in force that no answer is known for."""
        written = [json.loads(line) for line in self.host.lines_written()]
        ids = [r["request_id"] for r in written if r.get("request", {}).get("subtype") == "get_settings"]
        return [i for i in ids if i not in self.renamed.values()]

    def _user(self, record: Json, at: int) -> None:
        content, message_id = record["message"]["content"], record.get("uuid", "a-message-without-id")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        if _COMMAND.match(text):
            if self.host.driver.between_turns:
                self._command(message_id, text)
            elif self._idle_comes(at):
                self.waiting.append(f"{message_id}\n{text}")
            return
        given: Json = {"message_id": message_id, "text": text}
        if record.get("shouldQuery") is False:
            given["append"] = True
        if images := [_image(block) for block in blocks if block["type"] == "image"]:
            given["attachments"] = images
        self._rename(message_id, self._step("message", given))

    def _command(self, command_id: str, text: str) -> None:
        name, _, rest = text.partition(" ")
        if name == "/compact":
            effects = self._step("compact", {"command_id": command_id, "instructions": rest})
        elif name == "/clear":
            effects = self._step("clear", {"command_id": command_id})
        else:
            try:
                effects = self._step("run_command", {"command_id": command_id, "text": text})
            except Refused:
                self.steps.pop()
                return
        self._rename(command_id, effects)

    def _idle_comes(self, at: int) -> bool:
        """Whether the program will be idle before it does anything else."""
        for way, text in self.timeline[at + 1 :]:
            record = _json(text)
            if way == "<" and record.get("subtype") == "session_state_changed":
                return bool(record.get("state") == "idle")
            if way == "<" and record.get("type") in ("result", "assistant", "stream_event"):
                return False
        return False

    def _answer(self, response: Json) -> None:
        request_id, reply = response["request_id"], response.get("response", {})
        request = self.asked.get(request_id, {})
        open_ids = [q for q in self.host.obligations.questions if q.split("/")[0] == request_id]
        if open_ids and reply.get("action") == "accept":
            for question_id in open_ids:
                name = list(request["requested_schema"]["properties"])[int(question_id.split("/")[1])]
                value = reply["content"][name]
                answer = ("Yes" if value else "No") if isinstance(value, bool) else str(value)
                self._step("answer", {"question_id": question_id, "answers": [answer]})
            return
        if not open_ids or reply.get("behavior") not in ("allow", "deny"):
            return
        if reply.get("interrupt"):
            self._step("interrupt", True)
            return
        if request["tool_name"] == "AskUserQuestion":
            # There is no refusing a question; people say in own words that they would rather not.
            self._own_answers(open_ids, request, reply.get("updatedInput", {}), reply.get("message", ""))
            return
        question = self.host.obligations.questions[request_id]
        labels = [option.label for option in question.options]
        picked = labels[0] if reply["behavior"] == "allow" else labels[-1]
        if wanted := reply.get("updatedPermissions"):
            offered = request.get("permission_suggestions", [])
            picked = labels[1 + offered.index(wanted[0])] if wanted[0] in offered else labels[1]
        given: Json = {"question_id": request_id, "answers": [picked]}
        if reply.get("message"):
            given["note"] = reply["message"]
        self._step("answer", given)

    def _own_answers(self, open_ids: list[str], request: Json, updated: Json, words: str) -> None:
        answers, notes = updated.get("answers", {}), updated.get("annotations", {})
        for question_id in open_ids:
            asked = request["input"]["questions"][int(question_id.split("/")[1])]
            labels = [option["label"] for option in asked["options"]]
            value = answers.get(asked["question"], words)
            values = value if isinstance(value, list) else value.split(", ")
            given: Json = {
                "question_id": question_id,
                "answers": values if all(v in labels for v in values) else [value],
            }
            if note := notes.get(asked["question"], {}).get("notes"):
                given["note"] = note
            self._step("answer", given)

    def _request_id(self, effects: list[Effect]) -> str:
        written = [json.loads(effect.line) for effect in effects if isinstance(effect, Write)]
        return str(written[0]["request_id"]) if written else "nothing was asked"

    def _rename(self, theirs: str, effects: list[Effect]) -> None:
        written = [json.loads(effect.line) for effect in effects if isinstance(effect, Write)]
        self.renamed[theirs] = written[0]["uuid"]


def _image(block: Json) -> Json:
    data = block["source"]["data"]
    return {
        "ref": hashlib.sha256(base64.b64decode(data)).hexdigest(),
        "media_type": block["source"]["media_type"],
        "filename": "picture",
        "path": "/attachments/picture",
        "data": data,
    }


def main(source: Path) -> None:
    """Import every recording below `source`."""
    for folder in sorted(path.parent for path in source.glob("*/*/timeline.txt")):
        recording = Import(folder)
        recording.run()
        recording.write(GOLDEN / "claude" / folder.parent.name / folder.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
