"""The echo agent, a scriptable stand-in for a coding agent, and its driver.

`DRIVER` is what the entry point names; `EchoConfig` its table of the configuration. The agent's dialect
is described in the package `agent`, its scripts in README.md.
"""

from sessiond_drivers.echo.driver import DRIVER, EchoConfig

__all__ = ["DRIVER", "EchoConfig"]
