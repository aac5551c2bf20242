"""Claude Code, the real command line program, in its headless stream-json mode.

`driver` translates, `launch` starts and stops, `state` is all that is remembered between two lines.
The other modules hold one subject each: what the agent says (`stream`, `tools`, `plans`), what it asks
(`questions`, `forms`), when it reads a message (`messages`), turns and their ends (`turns`), commands
about the session itself (`commands`), `settings`, `usage`, and the rest of what it prints (`notices`).

The dialect was measured on the versions 2.1.197 and 2.1.332. Where they differ the driver goes by what
the program advertises or writes, never by its version.
"""

from sessiond_drivers.base import DriverType
from sessiond_drivers.claude.config import ClaudeConfig
from sessiond_drivers.claude.driver import CAPABILITIES, ClaudeDriver
from sessiond_drivers.claude.launch import program

__all__ = ["DRIVER", "ClaudeConfig", "ClaudeDriver"]

DRIVER: DriverType[ClaudeConfig] = DriverType(
    name="claude",
    display_name="Claude Code",
    config_type=ClaudeConfig,
    capabilities=CAPABILITIES,
    create=ClaudeDriver,
    program=program,
)
"""Entry point `claude` of the group `sessiond.drivers`."""
