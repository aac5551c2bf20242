"""Lines come out whole, once, and counted, however their bytes arrive."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond_server.session.lines import LineBuffer

_BYTES = st.lists(st.sampled_from([b"\n", b"a", b"\r", b"\xe2\x80\xa8", b"\x00", b"bcd"]), max_size=60)


@given(_BYTES, st.lists(st.integers(0, 150), max_size=20), st.integers(0, 1000))
def test_any_division_gives_the_same_lines(parts: list[bytes], cuts: list[int], start: int) -> None:
    data = b"".join(parts)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    buffer = LineBuffer(start, 10_000)
    lines: list[bytes] = []
    for begin, end in itertools.pairwise(places):
        lines += buffer.feed(start + begin, data[begin:end])
        whole = data[:end].rfind(b"\n") + 1
        assert buffer.offset == start + whole
        assert buffer.received == start + end
    rest = buffer.finish()
    assert not any(b"\n" in line for line in [*lines, *rest])
    assert b"\n".join([*lines, *(rest or [b""])]) == data


@given(_BYTES, st.integers(0, 100), st.integers(0, 100))
def test_bytes_that_came_before_are_ignored(parts: list[bytes], back: int, cut: int) -> None:
    data = b"".join(parts)
    cut = min(cut, len(data))
    buffer = LineBuffer(0, 10_000)
    lines = buffer.feed(0, data[:cut])
    again = max(0, cut - back)
    lines += buffer.feed(again, data[again:])
    assert lines == data.split(b"\n")[:-1]


def test_missing_bytes_are_noticed() -> None:
    buffer = LineBuffer(0, 10_000)
    buffer.feed(0, b"abc")
    with pytest.raises(ValueError, match="3 to 5"):
        buffer.feed(5, b"x")


def test_a_line_that_outgrows_the_room_is_handed_on_in_pieces() -> None:
    buffer = LineBuffer(0, 10)
    lines: list[bytes] = []
    for place in range(0, 40, 4):
        lines += buffer.feed(place, b"abcd")
        assert buffer.received - buffer.offset <= 10
    lines += buffer.feed(40, b"\nnext\n")
    assert b"".join(lines[:-1]) == b"abcd" * 10
    assert lines[-1] == b"next"
