"""Requests that no decent client sends, made from the contract's own descriptors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from sessiond.v1 import attachment_service_pb2, server_service_pb2, session_service_pb2

__all__ = ["methods", "mutated", "valid", "variations"]

_BIG = 600_000
_F = FieldDescriptor
_VALUES: Mapping[int, tuple[Any, ...]] = {
    _F.TYPE_STRING: ("", "\0", "../../etc", "/", "x" * _BIG, "\U0001f600" * 200, "a\nb", "%s{}", "-1"),
    _F.TYPE_BYTES: (b"", b"\0" * _BIG, b"\xff\xfe"),
    _F.TYPE_INT32: (-1, 0, 2**31 - 1, -(2**31)),
    _F.TYPE_INT64: (-1, 0, 2**63 - 1, -(2**63), 2**53 + 1),
    _F.TYPE_BOOL: (True, False),
    _F.TYPE_ENUM: (-1, 999, 2**31 - 1),
}  # fmt: skip


def methods() -> list[MethodDescriptor]:
    """Return every call of the contract."""
    modules = (session_service_pb2, attachment_service_pb2, server_service_pb2)
    return [
        method
        for module in modules
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


def valid(method: MethodDescriptor, values: Mapping[str, Any]) -> Message:
    """Return a request with every field set: by name from `values`, else to something harmless."""
    request: Message = GetMessageClass(method.input_type)()
    _fill(request, values)
    return request


def _fill(message: Message, values: Mapping[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.name in values:
            value = values[field.name]
        elif field.type == _F.TYPE_MESSAGE:
            if not field.is_repeated:
                getattr(message, field.name).SetInParent()
                _fill(getattr(message, field.name), values)
            continue
        else:
            value = {_F.TYPE_STRING: "x", _F.TYPE_BYTES: b"x", _F.TYPE_BOOL: False}.get(field.type, 1)
        _set(message, field, value)


def _set(message: Message, field: Any, value: Any) -> None:
    if not field.is_repeated:
        setattr(message, field.name, value)
    elif isinstance(value, dict):
        getattr(message, field.name).update(value)
    else:
        getattr(message, field.name).extend([value])


def variations(request: Message) -> Iterator[tuple[str, Message]]:
    """Yield each request that differs in one field: absent, or with a value that makes no sense.

    With it comes a name for it. Every action of a oneof is tried with each of its fields.
    """
    yield "as it is", request
    yield "empty", type(request)()
    for path, change in _changes(request, ()):
        varied = type(request)()
        varied.CopyFrom(request)
        target: Any = varied
        for name in path[:-1]:
            target = getattr(target, name)
        try:
            change(target)
        except (ValueError, TypeError, UnicodeEncodeError):
            continue  # nothing that can be put on the wire
        yield ".".join(path), varied


def _changes(message: Message, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for field in message.DESCRIPTOR.fields:
        here = (*path, field.name)
        yield here, lambda target, name=field.name: target.ClearField(name)
        if field.type == _F.TYPE_MESSAGE and not field.is_repeated:
            if field.containing_oneof is not None:
                yield here, lambda target, name=field.name: getattr(target, name).SetInParent()
            if len(path) < 3:
                yield from _changes(getattr(message, field.name), here)
            continue
        for value in _VALUES.get(field.type, ()):
            yield here, lambda target, field=field, value=value: _replace(target, field, value)
            if field.is_repeated:
                yield here, lambda target, field=field, value=value: _many(target, field, value)
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            for value in ("", "\0", "=", "x" * 5000):
                pair = {value: value}
                yield here, lambda target, name=field.name, pair=pair: getattr(target, name).update(pair)
            many = {f"K{number}": "v" for number in range(5000)}
            yield here, lambda target, name=field.name, many=many: getattr(target, name).update(many)


def _replace(message: Message, field: Any, value: Any) -> None:
    message.ClearField(field.name)
    _set(message, field, value)


def _many(message: Message, field: Any, value: Any) -> None:
    message.ClearField(field.name)
    if isinstance(value, str | bytes) and len(value) > 1000:
        value = value[:100]
    getattr(message, field.name).extend([value] * 2000)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return bytes that are nearly a request: cut, flipped, doubled, or nothing of one at all."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        way = rng.randrange(5)
        at = rng.randrange(len(changed) + 1)
        if way == 0:
            del changed[at:]
        elif way == 1 and at < len(changed):
            changed[at] = rng.randrange(256)
        elif way == 2:
            changed[at:at] = rng.randbytes(rng.randint(1, 20))
        elif way == 3:
            changed += changed[: rng.randint(0, len(changed))]
        else:
            changed[at:at] = b"\x0a" * rng.randint(1, 300)
    return bytes(changed)
