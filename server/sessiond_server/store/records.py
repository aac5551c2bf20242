"""Stored events: each is encoded once, as one entry of `repeated Event events = 1`.

A record is the byte 0x0a (field 1, length-delimited), the length as a varint, and the encoded Event.
Records joined are therefore a valid SubscribeResponse, which is how history leaves the store without
being decoded (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections.abc import Iterator

TAG = 0x0A


def record(payload: bytes) -> bytes:
    """Return the record of one encoded Event."""
    size = len(payload)
    if size < 0x80:
        return bytes((TAG, size)) + payload
    header = bytearray((TAG,))
    while size > 0x7F:
        header.append(size & 0x7F | 0x80)
        size >>= 7
    header.append(size)
    return bytes(header) + payload


def ends(data: bytes) -> Iterator[int]:
    """Yield the end offset of each record in `data`, which holds whole records."""
    position, total = 0, len(data)
    while position < total:
        if data[position] != TAG:
            raise ValueError(f"no record begins at byte {position}")
        position += 1
        size = shift = 0
        while True:
            byte = data[position]
            position += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        position += size
        yield position


def skip(data: bytes, count: int) -> bytes:
    """Return `data` without its first `count` records."""
    if count <= 0:
        return data
    for number, end in enumerate(ends(data), 1):
        if number == count:
            return data[end:]
    return b""


def head(data: bytes, count: int) -> bytes:
    """Return only the first `count` records of `data`."""
    if count <= 0:
        return b""
    for number, end in enumerate(ends(data), 1):
        if number == count:
            return data[:end]
    return data


def last(data: bytes, most: int, *, at_least_one: bool) -> bytes:
    """Return as many of the last records of `data` as fit into `most` bytes."""
    starts = [0, *ends(data)]
    final = starts.pop()
    for index, start in enumerate(starts):
        if final - start <= most or (at_least_one and index == len(starts) - 1):
            return data[start:]
    return b""
