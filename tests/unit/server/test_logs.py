"""Logs: one formatter for all, and no contents."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from sessiond_server import logs
from sessiond_server.config import Log


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    # Not by assignment: loggers remember what is enabled.
    root.setLevel(level)


def test_both_kinds_of_logger_speak_json() -> None:
    stream = io.StringIO()
    logs.setup(Log(format="json"), stream)
    structlog.get_logger("ours").info("said", seq=3)
    logging.getLogger("theirs").warning("said %s", "too", extra={"seq": 4})
    logging.getLogger("theirs").debug("not said")
    ours, theirs = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (ours["event"], ours["level"], ours["logger"], ours["seq"]) == ("said", "info", "ours", 3)
    assert (theirs["event"], theirs["level"], theirs["seq"]) == ("said too", "warning", 4)
    assert ours["timestamp"].endswith("Z")


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_and_local_variables_are_not_written(form: str) -> None:
    stream = io.StringIO()
    logs.setup(Log.model_validate({"format": form, "level": "debug"}), stream)
    logger = structlog.get_logger("x")
    logger.info("call", token="hunter2", environment={"KEY": "hunter2"}, session_id="s-1")
    hidden = "hunter2"
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        logger.exception("failed")
    assert hidden not in stream.getvalue()
    assert "s-1" in stream.getvalue()
    assert "ZeroDivisionError" in stream.getvalue()


def test_the_level_is_kept() -> None:
    stream = io.StringIO()
    logs.setup(Log(level="error"), stream)
    structlog.get_logger("x").warning("quiet")
    structlog.get_logger("x").error("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_grpc_logs_no_server_that_is_being_deallocated() -> None:
    stream = io.StringIO()
    logs.setup(Log(level="debug"), stream)
    grpc_logger = logging.getLogger("grpc._cython.cygrpc")
    grpc_logger.debug("__dealloc__ called")
    grpc_logger.warning("and this is told")
    assert "__dealloc__" not in stream.getvalue()
    assert "and this is told" in stream.getvalue()
