"""What a request may hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond_server import validate
from sessiond_server.errors import DomainError


def test_a_workspace_with_a_name_that_no_file_can_have_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(DomainError) as refused:
        validate.workspace(str(tmp_path / ("x" * 300)), [tmp_path])
    assert refused.value.reason == reasons.ERROR_REASON_WORKSPACE_NOT_FOUND


@pytest.mark.parametrize(
    "check",
    [
        lambda text: validate.title("title", text),
        lambda text: validate.argument("title", text, 100),
    ],
)
def test_what_becomes_an_argument_of_a_program_holds_no_nul(check: Callable[[str], str]) -> None:
    assert check("plain") == "plain"
    with pytest.raises(DomainError) as refused:
        check("a\0b")
    assert refused.value.reason == reasons.ERROR_REASON_INVALID_FIELD
    assert refused.value.field == "title"


@pytest.mark.parametrize(
    ("answers", "note", "field"),
    [
        (["x"] * 257, "", "answers"),
        (["é" * 30, "é" * 21], "", "answers"),
        (["x", "x" * 101], "", "answers[1]"),
        (["x", ""], "", "answers[1]"),
        (["x"], "x" * 101, "note"),
        (["é" * 30, "x" * 20], "é" * 11, "note"),
    ],
)
def test_answers_and_their_note_are_bounded_together(answers: list[str], note: str, field: str) -> None:
    validate.answers(["é" * 30, "x" * 20], "é" * 10, 100)
    with pytest.raises(DomainError) as refused:
        validate.answers(answers, note, 100)
    assert refused.value.reason == reasons.ERROR_REASON_INVALID_FIELD
    assert refused.value.field == field
