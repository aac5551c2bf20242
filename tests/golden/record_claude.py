"""Record the real Claude Code: `python -m tests.golden.record_claude VERSION [SCENARIO...]`.

Runs each scenario below with the real program against a scripted model on loopback and writes its
stdout.jsonl and steps.jsonl. Then bless: `python -m tests.golden.compare --bless claude`.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.conformance.drivers import create
from tests.conformance.host import SPEC
from tests.conformance.live import LiveHost
from tests.golden.compare import GOLDEN
from tests.live.model import Model, Reply, say, use
from tests.live.npm import CLAUDE_VERSIONS, claude

_WAIT = "while [ ! -e go ]; do sleep 0.1; done"
_TODOS = [
    {"content": "Look", "status": "completed", "activeForm": "Looking"},
    {"content": "Leap", "status": "in_progress", "activeForm": "Leaping"},
]
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def stop_in_a_tool(host: LiveHost) -> None:
    """The program is ended while a tool runs."""
    host.send("00000000-0000-4000-8000-0000000000a1", "wait")
    host.until_kind("tool_started")
    host.stop_and_exit()


def list_of_things_to_do(host: LiveHost) -> None:
    """The model writes its list."""
    host.send("00000000-0000-4000-8000-0000000000a1", "plan")
    host.until_kind("turn_ended")
    host.until_idle()
    host.stop_and_exit()


SCENARIOS: dict[str, tuple[Callable[[LiveHost], None], list[Reply]]] = {
    "23_stop_in_a_tool": (
        stop_in_a_tool,
        [Reply([say("I wait."), use("Bash", command=_WAIT, description="Wait")])],
    ),
    "23_list_of_things_to_do": (
        list_of_things_to_do,
        [
            Reply([use("TodoWrite", todos=_TODOS)]),
            Reply([use("TaskCreate", subject=s, description=s) for s in ("Look", "Leap")]),
            Reply([use("TaskUpdate", taskId="1", status="in_progress")]),
            Reply([use("TaskUpdate", taskId="1", status="completed")]),
            Reply([use("TaskUpdate", taskId="2", status="deleted")]),
            Reply([say("Planned.")]),
        ],
    ),
}


def record(version: str, name: str) -> None:
    """Run one scenario and keep what happened, with neutral ids and paths."""
    run, script = SCENARIOS[name]
    target = GOLDEN / "claude" / version / name
    with tempfile.TemporaryDirectory() as folder, Model(*script) as model:
        workspace, home = Path(folder, "workspace"), Path(folder, "home")
        workspace.mkdir()
        home.mkdir()
        env = {
            "HOME": str(home),
            "CLAUDE_CONFIG_DIR": str(home / ".claude"),
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "not-a-key",
            "NO_PROXY": "*",
            "IS_SANDBOX": "1",
        }
        spec = replace(SPEC, workspace=str(workspace), permission_mode="bypassPermissions")
        with LiveHost(lambda: create("claude", binary=str(claude(version)), env=env)) as host:
            host.start_ready(spec)
            run(host)
            host.record(target)
        _neutral(target, folder)


def _neutral(target: Path, folder: str) -> None:
    known: dict[bytes, bytes] = {}
    dashed = re.sub("[^A-Za-z0-9]", "-", folder)
    for name in ("stdout.jsonl", "steps.jsonl"):
        path = target / name
        data = path.read_bytes().replace(folder.encode(), b"").replace(dashed.encode(), b"")
        data = re.sub(rb"127\.0\.0\.1:\d+", b"127.0.0.1:1", data)
        for found in _UUID.findall(data):
            known.setdefault(found, b"%08d-0000-4000-9000-000000000000" % (len(known) + 1))
        path.write_bytes(_UUID.sub(lambda match: known[match.group(0)], data))


def main() -> None:
    """Record what the command line names."""
    parser = argparse.ArgumentParser(description="Record the real Claude Code.")
    parser.add_argument("version", choices=CLAUDE_VERSIONS)
    parser.add_argument("scenario", nargs="*", choices=[*SCENARIOS, []])
    given = parser.parse_args()
    for name in given.scenario or SCENARIOS:
        record(given.version, name)
        print(name)


if __name__ == "__main__":
    main()
