"""The `[drivers.claude]` table of the daemon's configuration."""

from __future__ import annotations

from sessiond_drivers.base import DriverConfig

__all__ = ["ClaudeConfig"]


class ClaudeConfig(DriverConfig, kw_only=True, forbid_unknown_fields=True):
    """How to run Claude Code.

    `binary`: default `claude` on PATH. `args`: more command line arguments, for example `--mcp-config`
    and a file. `env`: more environment, for example `ANTHROPIC_BASE_URL`.

    `allow_bypass`: let sessions switch to the permission mode `bypassPermissions` while they run
    (default no; a session created in that mode needs no switch).

    Traffic switches, all off by default: `nonessential_traffic` (everything that no request needs),
    `telemetry`, `error_reporting`, `auto_update`.
    """

    allow_bypass: bool = False
    nonessential_traffic: bool = False
    telemetry: bool = False
    error_reporting: bool = False
    auto_update: bool = False
