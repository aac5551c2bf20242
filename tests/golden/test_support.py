"""The table of what each driver does is what the recordings show."""

from __future__ import annotations

from tests.golden.support import TARGET, table


def test_the_table_is_what_was_seen() -> None:
    assert TARGET.read_text() == table(), "run python -m tests.golden.support"
