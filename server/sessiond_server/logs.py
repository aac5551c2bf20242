"""Logs: structlog and the standard library through one formatter, to standard error.

Lines carry names and numbers, never contents: no message text, no agent output, no environment, no
token.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from sessiond_server.config import Log

__all__ = ["setup"]

# The last line of defence: whoever logs one of these by mistake logs its name only.
_SECRET = frozenset({"authorization", "token", "environment", "env", "text", "data", "password"})


def _hide_secrets(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key in _SECRET & event.keys():
        event[key] = "[not shown]"
    return event


def setup(log: Log, stream: TextIO | None = None) -> None:
    """Send every log line of the process to `stream` (default: stderr), as `log` says.

    May be called again: the last call counts.
    """
    stream = stream or sys.stderr
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hide_secrets,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(log, stream),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(log.level.upper())
    # gRPC's debug lines say nothing of use, and one of them is harmful: it is logged while its server
    # is being deallocated and refers to it, so whoever keeps the record keeps freed memory.
    logging.getLogger("grpc").setLevel(max(root.level, logging.INFO))


def _renderers(log: Log, stream: TextIO) -> list[structlog.types.Processor]:
    if log.format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # The plain traceback: the pretty one prints local variables, and those are contents.
    return [
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]
