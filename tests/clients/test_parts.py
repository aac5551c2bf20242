"""The parts of the conformance runner: a suite that can't fail proves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import conformance
from tests.clients.expect import complaints, look_up
from tests.clients.languages import BuildError, Language, languages, read_manifest
from tests.clients.proxy import CuttingProxy
from tests.clients.scenario import Scenario, SharedDaemon, filled, run, scenarios


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": {"b": "x"}}, {"a": {"b": "x"}}),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}]}),
        ({"a": 0, "b": "", "c": "0", "d": False, "e": [], "f": {}}, {}),
        ({"a": {"$at_least": 2, "$at_most": 3}}, {"a": 2}),
        ({"a": {"$matches": "^b+$"}}, {"a": "bbb"}),
        ({"a": {"$absent": True}, "b": {"$present": True}}, {"b": None}),
        ({"a": {"$not": 1}}, {"a": 2}),
        ({"a": {"$same_as": "b.0"}}, {"a": 7, "b": [7]}),
    ],
)
def test_what_is_expected_is_found(wanted: Any, got: Any) -> None:
    assert complaints(wanted, got, got) == []


@pytest.mark.parametrize(
    ("wanted", "got", "where"),
    [
        ({"a": 1}, {"a": 2}, "a"),
        ({"a": 1}, {}, "a"),
        ({"a": {"b": "x"}}, {"a": {"b": "y"}}, "a.b"),
        ({"a": {"b": "x"}}, {}, "a"),
        ({"a": [1]}, {"a": [1, 2]}, "a"),
        ({"a": []}, {"a": [1]}, "a"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "a.0.b"),
        ({"a": {"$at_least": 2}}, {"a": 1}, "a"),
        ({"a": {"$at_least": 2}}, {}, "a"),
        ({"a": {"$at_most": 2}}, {"a": 3}, "a"),
        ({"a": {"$matches": "b"}}, {"a": 5}, "a"),
        ({"a": {"$absent": True}}, {"a": None}, "a"),
        ({"a": {"$present": True}}, {}, "a"),
        ({"a": {"$not": 1}}, {"a": 1}, "a"),
        ({"a": {"$same_as": "b"}}, {"a": 1, "b": 2}, "a"),
        (1, {}, ""),
    ],
)
def test_what_differs_is_told(wanted: Any, got: Any, where: str) -> None:
    found = complaints(wanted, got, got)
    assert len(found) == 1
    assert found[0].startswith(f"{where}:")


def test_a_path_that_leads_nowhere() -> None:
    assert look_up("a.1.b", {"a": [0, {"b": 5}]}) == 5
    for path in ("b", "a.2", "a.x", "a.0.b"):
        with pytest.raises(LookupError, match=path):
            look_up(path, {"a": [0, {"b": 5}]})


def test_placeholders_are_filled_everywhere() -> None:
    value = {"a": ["${x}/${y}", {"b": "${x}"}], "c": 1}
    assert filled(value, {"x": "1", "y": "2"}) == {"a": ["1/2", {"b": "1"}], "c": 1}


def test_every_scenario_says_what_it_is_about() -> None:
    for scenario in scenarios():
        data = scenario.data
        assert data["name"] == scenario.name
        assert data["about"].endswith(".")
        assert {"expect", "expect_lines", "expect_last"} & data.keys(), scenario.name
        steps = [step["id"] for step in data.get("steps", [])]
        assert len(steps) == len(set(steps))
        # What is expected of a step that is not there would be no expectation at all.
        assert data.get("expect", {}).keys() <= set(steps), scenario.name


@contextlib.asynccontextmanager
async def _echo_server(folder: Path) -> AsyncIterator[Path]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    path = folder / "echo"
    server = await asyncio.start_unix_server(echo, path=path)
    yield path
    server.close()


async def test_the_proxy_cuts_where_it_was_told() -> None:
    with tempfile.TemporaryDirectory(prefix="sdp") as name:
        folder = Path(name)
        async with _echo_server(folder) as target:
            proxy = CuttingProxy(target, [5])
            port = await proxy.start(folder / "proxy")
            reader, writer = await asyncio.open_unix_connection(folder / "proxy")
            writer.write(b"0123456789")
            assert await _rest(reader) == b"01234"
            writer.close()

            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"0123456789")
            assert await reader.readexactly(10) == b"0123456789"
            proxy.cut()
            assert await _rest(reader) == b""
            writer.close()
            assert proxy.cuts == 2
            await proxy.stop()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """Return what is left until the connection ends, one way or the other."""
    found = b""
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100):
                found += data
    return found


def _language(folder: Path, program: str, **manifest: Any) -> Language:
    (folder / "program.py").write_text(program)
    base = {
        "language": "Test",
        "conformance": ["{python}", str(folder / "program.py")],
        "inputs": ["*.py"],
    }
    return Language("test", folder, folder / "out", {**base, **manifest})


async def _outcome(folder: Path, program: str, **scenario: Any) -> list[str]:
    data = {
        "server": {"scripted": {}},
        "steps": [{"id": "one", "do": "call", "method": "GetServerInfo"}],
        "expect": {"one": {"response": {"server_version": "scripted"}}},
        **scenario,
    }
    outcome = await run(Scenario("made-up", data), _language(folder, program), SharedDaemon())
    return outcome.complaints


async def test_a_program_that_does_nothing_fails(tmp_path: Path) -> None:
    assert await _outcome(tmp_path, "")


async def test_a_program_that_lies_fails(tmp_path: Path) -> None:
    said = {"results": {"one": {"response": {"server_version": "another"}}}}
    found = await _outcome(tmp_path, f"print({json.dumps(json.dumps(said))})")
    assert found == ["[unix] one.response.server_version: 'another' instead of 'scripted'"]


async def test_a_program_that_never_called_fails(tmp_path: Path) -> None:
    said = {"results": {"one": {"response": {"server_version": "scripted"}}}}
    program = f"print({json.dumps(json.dumps(said))})"
    assert await _outcome(tmp_path, program) == []
    found = await _outcome(tmp_path, program, expect_server={"calls": [{"method": "GetServerInfo"}]})
    assert found == ["[unix] server.calls: [] instead of 1 items"]


async def test_a_program_that_crashes_after_its_results_fails(tmp_path: Path) -> None:
    said = {"results": {"one": {"response": {"server_version": "scripted"}}}}
    program = f"import sys; print({json.dumps(json.dumps(said))}); sys.exit('boom')"
    assert await _outcome(tmp_path, program) == ["[unix] exit code 1: boom"]


async def test_a_program_that_is_not_there_fails_alone(tmp_path: Path) -> None:
    language = _language(tmp_path, "", conformance=[str(tmp_path / "nothing")])
    scenario = Scenario("made-up", {"server": {"scripted": {}}, "steps": [], "expect": {}})
    found = (await run(scenario, language, SharedDaemon())).complaints
    assert len(found) == 1
    assert "FileNotFoundError" in found[0]
    assert "JSONDecodeError" in (await _outcome(tmp_path, "print('hello')"))[0]


async def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    found = await _outcome(tmp_path, "import time; time.sleep(600)", limit_s=0.5)
    assert found[0].startswith("[unix] took more than 0.5 s")


def test_a_client_is_built_again_only_when_it_changed(tmp_path: Path) -> None:
    language = _language(tmp_path, "1", build=[["{python}", "-c", "open('built', 'a').write('x')"]])
    assert language.build()
    assert not language.build()
    (tmp_path / "program.py").write_text("2")
    assert language.build()
    assert (tmp_path / "built").read_text() == "xx"


def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    language = _language(tmp_path, "", build=[["{python}", "-c", "raise SystemExit('no such header')"]])
    with pytest.raises(BuildError, match="no such header"):
        language.build()


def test_a_missing_toolchain_is_named(tmp_path: Path) -> None:
    assert _language(tmp_path, "", needs=[[sys.executable, "-c", ""]]).missing() == ""
    assert _language(tmp_path, "", needs=[["no-such-compiler"]]).missing() == "no-such-compiler"
    assert _language(tmp_path, "", needs=[[sys.executable, "-c", "exit(1)"]]).missing()


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "conformance.json"
    path.write_text('{"language": "Test", "checks": [["true"]], "checks": []}')
    with pytest.raises(ValueError, match="more than once: checks"):
        read_manifest(path)


@pytest.mark.parametrize(("ci", "code", "failed"), [("", 0, 0), ("true", 1, 1)])
def test_a_run_that_could_only_skip(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ci: str,
    code: int,
    failed: int,
) -> None:
    language = _language(tmp_path, "", needs=[["no-such-compiler"]])
    monkeypatch.setattr(conformance, "languages", lambda: [language])
    monkeypatch.setattr(sys, "argv", ["conformance", "--language", "test"])
    monkeypatch.setenv("CI", ci)
    assert conformance.main() == code
    said = capsys.readouterr().out.splitlines()
    assert "its toolchain is missing: no-such-compiler" in said[0]
    assert json.loads(said[-1])["failed"] == failed


async def test_every_variant_is_played(tmp_path: Path) -> None:
    variants = [{"exit": 0}, {"exit": 3}]
    program = "import sys; print('what: it is'); sys.exit(3)"
    found = await _outcome(tmp_path, program, expect={}, expect_text="^what", variants=variants[1:])
    assert found == []
    found = await _outcome(tmp_path, program, expect={}, expect_text="how", variants=variants)
    assert found == [
        "[unix, variant 0] exit code 3: ",
        "[unix, variant 0] stdout: 'what: it is\\n' fails $matches 'how'",
    ]


def test_every_client_folder_has_a_manifest() -> None:
    keys = {language.key for language in languages()}
    folders = {p.name for p in (Path(__file__).parents[2] / "clients").iterdir() if p.is_dir()}
    assert keys == folders
