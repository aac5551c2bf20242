"""Write the reference of the contract: every element of the protos with its comments, as Markdown.

Usage: python proto/reference.py DESCRIPTOR_SET > reference.md

DESCRIPTOR_SET is a google.protobuf.FileDescriptorSet with source info. proto/generate.py calls this.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import descriptor_pb2 as d

PACKAGE = "sessiond.v1"
ORDER = ("session_service", "event", "session", "attachment_service", "server_service", "error_reason")
REASONS = "ErrorReason"

# Numbers of the fields of descriptor.proto that paths are made of.
_FILE_SYNTAX, _FILE_MESSAGE, _FILE_ENUM, _FILE_SERVICE = 12, 4, 5, 6
_MESSAGE_FIELD, _MESSAGE_ONEOF, _ENUM_VALUE, _SERVICE_METHOD = 2, 8, 2, 2

_F = d.FieldDescriptorProto
_SCALARS = {
    _F.TYPE_STRING: "string",
    _F.TYPE_BYTES: "bytes (JSON: base64)",
    _F.TYPE_BOOL: "bool",
    _F.TYPE_INT32: "int32",
    _F.TYPE_INT64: "int64 (JSON: string)",
    _F.TYPE_DOUBLE: "double",
}


@dataclass(frozen=True)
class File:
    """A proto file with its comments by path."""

    proto: d.FileDescriptorProto
    comments: dict[tuple[int, ...], str]

    @property
    def name(self) -> str:
        """The file's name without folder and ending."""
        return Path(self.proto.name).stem

    def comment(self, *path: int) -> str:
        """Return the comment of the element at a path of descriptor.proto's field numbers."""
        return self.comments.get(path, "")


def load(descriptor_set: bytes) -> list[File]:
    """Return the package's files in reading order."""
    parsed = d.FileDescriptorSet.FromString(descriptor_set)
    files = []
    for proto in parsed.file:
        if proto.package == PACKAGE:
            locations = proto.source_code_info.location
            comments = {tuple(at.path): _clean(at.leading_comments) for at in locations}
            files.append(File(proto, {k: v for k, v in comments.items() if v}))
    return sorted(files, key=lambda file: ORDER.index(file.name))


def _clean(comment: str) -> str:
    return "\n".join(line.removeprefix(" ").rstrip() for line in comment.splitlines()).strip("\n")


def prose(comment: str) -> str:
    """Return a comment as Markdown: indented lists are lists, other indented lines keep their shape."""
    blocks = []
    for block in re.split(r"\n\n", comment):
        if re.match(r" +(- |\d+\. )", block):
            blocks.append("\n".join(line.removeprefix("  ") for line in block.split("\n")))
        elif block.startswith(" "):
            blocks.append(_kept(block))
        else:
            blocks += _mixed(block)
    return "\n\n".join(blocks)


def _mixed(block: str) -> list[str]:
    # A paragraph whose second half is indented, without an empty line between.
    lines = block.split("\n")
    cut = next((i for i, line in enumerate(lines) if line.startswith("  ")), len(lines))
    head = ["\n".join(lines[:cut])]
    return head if cut == len(lines) else [*head, _kept("\n".join(lines[cut:]))]


def _kept(block: str) -> str:
    return f"```text\n{textwrap.dedent(block)}\n```"


def cell(comment: str) -> str:
    """Return a comment as one cell of a table."""
    paragraphs = [" ".join(p.split()) for p in comment.split("\n\n")]
    return "<br>".join(paragraphs).replace("|", "\\|")


def link(name: str, shown: str = "") -> str:
    """Return a link to an element of this page."""
    return f"[{shown or name}](#{name.lower().replace('.', '')})"


def type_of(field: d.FieldDescriptorProto, message: d.DescriptorProto) -> str:
    """Return a field's type for people, with a link where this page has it."""
    if field.type in _SCALARS:
        name = _SCALARS[field.type]
    else:
        full = field.type_name.removeprefix(".")
        entries = {f"{PACKAGE}.{message.name}.{n.name}": n for n in message.nested_type}
        if full in entries:
            key, value = entries[full].field
            return f"map of {type_of(key, message)} to {type_of(value, message)}"
        short = full.removeprefix(f"{PACKAGE}.")
        name = link(short) if short != full else f"`{full}`"
    if field.label == _F.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def file_section(file: File) -> Iterator[str]:
    """Yield the blocks of one file."""
    yield f"## {file.name}.proto"
    yield prose(file.comment(_FILE_SYNTAX))
    for index, service in enumerate(file.proto.service):
        yield from service_section(file, index, service)
    for index, message in enumerate(file.proto.message_type):
        yield from message_section(file, index, message)
    for index, enum in enumerate(file.proto.enum_type):
        yield from enum_section(file, index, enum)


def service_section(file: File, index: int, service: d.ServiceDescriptorProto) -> Iterator[str]:
    """Yield the blocks of a service and its calls."""
    yield f"### {service.name}"
    yield prose(file.comment(_FILE_SERVICE, index))
    for at, method in enumerate(service.method):
        yield f"#### {service.name}.{method.name}"
        ask, reply = (t.rsplit(".", 1)[1] for t in (method.input_type, method.output_type))
        stream = "stream of " if method.server_streaming else ""
        yield f"{link(ask)} → {stream}{link(reply)}"
        yield prose(file.comment(_FILE_SERVICE, index, _SERVICE_METHOD, at))


def message_section(file: File, index: int, message: d.DescriptorProto) -> Iterator[str]:
    """Yield the blocks of a message: its comment and the table of its fields."""
    yield f"### {message.name}"
    yield prose(file.comment(_FILE_MESSAGE, index))
    for at, oneof in enumerate(message.oneof_decl):
        comment = file.comment(_FILE_MESSAGE, index, _MESSAGE_ONEOF, at)
        if comment:  # an `optional` field is a oneof of the compiler's making, without a comment
            yield f"One of `{oneof.name}`: {' '.join(comment.split())}"
    if not message.field:
        return
    rows = ["| field | no. | type | |", "|---|---|---|---|"]
    for at, field in enumerate(message.field):
        comment = cell(file.comment(_FILE_MESSAGE, index, _MESSAGE_FIELD, at))
        if field.HasField("oneof_index") and not field.proto3_optional:
            comment = f"(`{message.oneof_decl[field.oneof_index].name}`) {comment}"
        rows.append(f"| `{field.name}` | {field.number} | {type_of(field, message)} | {comment} |")
    yield "\n".join(rows)


def enum_section(file: File, index: int, enum: d.EnumDescriptorProto) -> Iterator[str]:
    """Yield the blocks of an enum: its comment and the table of its values."""
    yield f"### {enum.name}"
    yield prose(file.comment(_FILE_ENUM, index))
    prefix = re.sub(r"(?<!^)([A-Z])", r"_\1", enum.name).upper() + "_"
    if enum.name == REASONS:
        rows = ["| reason | no. | gRPC code | |", "|---|---|---|---|"]
    else:
        rows = ["| value | no. | |", "|---|---|---|"]
    for at, value in enumerate(enum.value):
        comment = cell(file.comment(_FILE_ENUM, index, _ENUM_VALUE, at))
        if enum.name == REASONS:
            code, rest = split_code(comment)
            rows.append(f"| `{value.name.removeprefix(prefix)}` | {value.number} | {code} | {rest} |")
        else:
            rows.append(f"| `{value.name}` | {value.number} | {comment} |")
    yield "\n".join(rows)


def split_code(comment: str) -> tuple[str, str]:
    """Return the gRPC code that a reason's comment begins with, and the rest."""
    match = re.match(r"([A-Z_]+)(, and event)?\. (.*)", comment, re.DOTALL)
    if match is None:
        return "", comment
    code, event, rest = match.groups()
    return (f"{code}; event" if event else code), rest


def contents(files: list[File]) -> Iterator[str]:
    """Yield the table of contents."""
    for file in files:
        yield f"- {link(file.name + '.proto')}"
        for service in file.proto.service:
            calls = ", ".join(link(f"{service.name}.{m.name}", m.name) for m in service.method)
            yield f"  - {link(service.name)}: {calls}"
        names = [m.name for m in file.proto.message_type] + [e.name for e in file.proto.enum_type]
        if names:
            yield f"  - {', '.join(link(name) for name in names)}"


def render(files: list[File]) -> str:
    """Return the whole page."""
    blocks = [
        "<!-- Made by proto/generate.py from proto/. Do not edit. -->",
        f"# Reference of {PACKAGE}",
        "Every file, service, call, message, field, enum and value of the contract, with the comments "
        "of the protos, which are the manual for writing a client.",
        "\n".join(contents(files)),
    ]
    for file in files:
        blocks += file_section(file)
    return "\n\n".join(block for block in blocks if block) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render(load(Path(sys.argv[1]).read_bytes())))
