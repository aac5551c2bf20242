"""The reference is complete, and what the contract's comments say of errors is what the server does."""

from __future__ import annotations

import re
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf import descriptor_pb2 as d

from sessiond.v1 import error_reason_pb2 as reasons
from sessiond_server.errors import CODES
from tests.gates.base import ROOT

PAGE = (ROOT / "gen" / "docs" / "reference.md").read_text()
ERROR_PROTO = (ROOT / "proto" / "sessiond" / "v1" / "error_reason.proto").read_text()
# Capitals in comments that name neither a value of an enum nor a gRPC code.
WORDS = {"UPPER_SNAKE_CASE", "ERROR_REASON_"}


def _files() -> list[d.FileDescriptorProto]:
    image = (ROOT / "gen" / "descriptor" / "sessiond.binpb").read_bytes()
    return [f for f in d.FileDescriptorSet.FromString(image).file if f.package == "sessiond.v1"]


def _section(heading: str) -> str:
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.M | re.S)
    assert found, f"{heading}: not in the reference"
    return found[1]


def _calls() -> Iterator[str]:
    for file in _files():
        for service in file.service:
            yield from (f"{service.name}.{method.name}" for method in service.method)


@pytest.mark.parametrize("call", list(_calls()))
def test_every_call_is_documented(call: str) -> None:
    assert len(_section(call).split()) > 8


def test_every_field_is_documented() -> None:
    missing = []
    for file in _files():
        for message in file.message_type:
            section = _section(message.name)
            for field in message.field:
                row = re.search(rf"^\| `{field.name}` \| {field.number} \| .+ \| .+ \|$", section, re.M)
                if row is None:
                    missing.append(f"{message.name}.{field.name}")
    assert missing == []


def test_every_value_is_documented() -> None:
    missing = []
    for file in _files():
        for enum in file.enum_type:
            section = _section(enum.name)
            for value in enum.value:
                name = value.name.removeprefix("ERROR_REASON_")
                if not re.search(rf"^\| `{name}` \| {value.number} \| .+ \|$", section, re.M):
                    missing.append(value.name)
    assert missing == []


def test_every_link_leads_somewhere() -> None:
    headings = re.findall(r"^#+ (.+)$", PAGE, re.M)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) <= anchors


@pytest.mark.parametrize("reason", [value.name for value in reasons.ErrorReason.DESCRIPTOR.values[1:]])
def test_every_reason_names_the_code_that_the_server_sends(reason: str) -> None:
    comment = re.search(rf"((?:  //.*\n)+)  {reason} = \d+;", ERROR_PROTO)
    assert comment
    code = CODES[reasons.ErrorReason.Value(reason)].name
    assert re.match(rf"  // {code}(, and event)?\.", comment[1]), f"{reason} is sent with {code}"


def test_capitals_in_comments_are_names_that_exist() -> None:
    known = WORDS | {code.name for code in grpc.StatusCode}
    for file in _files():
        for enum in file.enum_type:
            prefix = re.sub(r"(?<!^)([A-Z])", r"_\1", enum.name).upper() + "_"
            for value in enum.value:
                known |= {value.name, value.name.removeprefix(prefix)}
    used = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", PAGE))
    assert used <= known
