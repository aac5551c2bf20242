"""Starting and ending the program: command line, environment, first lines, program lookup."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from sessiond_drivers.base import Effect, Launch, LaunchSpec, Program, StopPlan
from sessiond_drivers.claude.config import ClaudeConfig
from sessiond_drivers.claude.state import State

__all__ = ["BYPASS", "STOP", "launch", "program"]

BYPASS = "bypassPermissions"

_EXECUTABLE = "claude"
_VERSION = re.compile(r"^(\d+\.\d+\.\d+\S*) \(Claude Code\)", re.MULTILINE)
_ALWAYS = (
    "-p",
    "--input-format",
    "stream-json",
    "--output-format",
    "stream-json",
    "--verbose",
    "--include-partial-messages",
    # Older versions tell only by the echo that a message was read.
    "--replay-user-messages",
    "--permission-prompt-tool",
    "stdio",
)

# SIGINT ends it cleanly, with the results of its tools; SIGTERM leaves their processes alive.
STOP = StopPlan(signal=signal.SIGINT, grace=10.0)


def program(config: ClaudeConfig) -> Program:
    """Return what to look for on this machine."""
    return Program(
        executable=config.binary or _EXECUTABLE,
        version_args=("--version",),
        parse_version=_parse_version,
        install_hint=(
            "install it with `npm install -g @anthropic-ai/claude-code` and log in by running `claude` "
            "once, or name the program in drivers.claude.binary"
        ),
    )


def launch(config: ClaudeConfig, state: State, spec: LaunchSpec, opening: Sequence[Effect]) -> Launch:
    """Return how to start a process for `spec` on the conversation that the state names."""
    argv = _argv(config, spec, state.native_session_id)
    return Launch(argv=argv, env=_env(config), effects=tuple(opening))


def _argv(config: ClaudeConfig, spec: LaunchSpec, native_session_id: str) -> tuple[str, ...]:
    argv = [config.binary or _EXECUTABLE, *_ALWAYS]
    # The program remembers none of these over a resume.
    flags = {
        "--permission-mode": spec.permission_mode,
        "--resume": native_session_id,
        "--model": spec.model,
        "--effort": spec.effort,
        "--name": spec.title,
        "--append-system-prompt": spec.system_prompt,
    }
    for flag, value in flags.items():
        if value:
            argv += [flag, value]
    if config.allow_bypass:
        argv.append("--allow-dangerously-skip-permissions")
    return (*argv, *config.args)


def _env(config: ClaudeConfig) -> dict[str, str]:
    switches = {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": config.nonessential_traffic,
        "DISABLE_TELEMETRY": config.telemetry,
        "DISABLE_ERROR_REPORTING": config.error_reporting,
        "DISABLE_AUTOUPDATER": config.auto_update,
    }
    env = {name: "1" for name, wanted in switches.items() if not wanted}
    # Without it nothing on stdout says that the program is idle.
    env["CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS"] = "1"
    return env | config.env


def _parse_version(output: str) -> str:
    match = _VERSION.search(output)
    return match.group(1) if match else ""
