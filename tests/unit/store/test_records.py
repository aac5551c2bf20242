"""Stored records are what is sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.v1 import event_pb2 as ev
from sessiond.v1 import session_service_pb2 as api
from sessiond_server.store import records

_PAYLOADS = st.lists(st.text(max_size=300).map(lambda text: text), max_size=12)


def _events(texts: list[str]) -> list[ev.Event]:
    return [
        ev.Event(seq=seq, assistant_text=ev.AssistantText(delta=text))
        for seq, text in enumerate(texts, 1)
    ]


def _join(events: list[ev.Event]) -> bytes:
    return b"".join(records.record(event.SerializeToString()) for event in events)


@given(_PAYLOADS)
def test_joined_records_are_a_response(texts: list[str]) -> None:
    events = _events(texts)
    response = api.SubscribeResponse.FromString(_join(events))
    assert list(response.events) == events
    assert response.SerializeToString() == _join(events)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_every_length_of_the_length(size: int) -> None:
    payload = ev.Event(assistant_text=ev.AssistantText(delta="x" * size)).SerializeToString()
    data = records.record(payload)
    assert list(records.ends(data)) == [len(data)]
    assert data.endswith(payload)


@given(_PAYLOADS, st.integers(-1, 14))
def test_head_and_skip_divide_without_loss(texts: list[str], count: int) -> None:
    data = _join(_events(texts))
    first, rest = records.head(data, count), records.skip(data, count)
    assert first + rest == data
    assert len(list(records.ends(first))) == min(max(count, 0), len(texts))


@given(_PAYLOADS.filter(bool), st.integers(0, 4000), st.booleans())
def test_last_fits_and_is_as_long_as_it_can_be(texts: list[str], most: int, one: bool) -> None:
    data = _join(_events(texts))
    ending = records.last(data, most, at_least_one=one)
    assert data.endswith(ending)
    count = len(list(records.ends(ending)))
    if count == 0:
        assert not one
    else:
        assert len(ending) <= most or (one and count == 1)
    if count < len(texts):
        longer = records.skip(data, len(texts) - count - 1)
        assert len(longer) > most or (one and count == 1)


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(ValueError, match="byte 0"):
        list(records.ends(b"\x12\x00"))
