"""One scenario with one client: start what it asks for, run the program, compare what it said.

The file format is described in README.md, section 5.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from tests.clients.daemon import Place, act
from tests.clients.expect import complaints
from tests.clients.languages import Language
from tests.clients.proxy import CuttingProxy
from tests.clients.scripted import ScriptedServer
from tests.support.daemon import Daemon

__all__ = ["Outcome", "Scenario", "SharedDaemon", "run", "scenarios"]

_FOLDER = Path(__file__).parent / "scenarios"
_LINE_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True)
class Scenario:
    """One file of scenarios/."""

    name: str
    data: dict[str, Any]

    @property
    def transports(self) -> list[str]:
        """Of `unix`, `tcp` and `tls`: the program runs once with each."""
        wanted = self.data.get("transport", "unix")
        return wanted if isinstance(wanted, list) else [wanted]

    @property
    def variants(self) -> list[Scenario]:
        """The scenario once with each of its `variants`, or as it is when it has none."""
        return [Scenario(self.name, {**self.data, **v}) for v in self.data.get("variants", [{}])]

    @property
    def seconds(self) -> float:
        """The time limit of one run of the program."""
        limit: float = self.data.get("limit_s", 60)
        return limit


@dataclass
class Outcome:
    """What a run came to: no complaints is a pass. `results` are the program's own."""

    complaints: list[str] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)


def scenarios() -> list[Scenario]:
    """Return all scenarios in the order of their names."""
    return [Scenario(p.stem, json.loads(p.read_text())) for p in sorted(_FOLDER.glob("*.json"))]


def filled(value: Any, places: dict[str, str]) -> Any:
    """Return `value` with every `${name}` in its texts replaced."""
    if isinstance(value, str):
        for name, text in places.items():
            value = value.replace("${" + name + "}", text)
        return value
    if isinstance(value, dict):
        return {k: filled(v, places) for k, v in value.items()}
    if isinstance(value, list):
        return [filled(v, places) for v in value]
    return value


class SharedDaemon:
    """One daemon for all scenarios that leave it as it is, started with the first of them."""

    def __init__(self) -> None:
        self._daemon: Daemon | None = None

    async def get(self) -> Daemon:
        """Return the daemon, running."""
        if self._daemon is None:
            self._daemon = Daemon()
            await self._daemon.start()
        return self._daemon

    async def close(self) -> None:
        """End the daemon and its sessions."""
        if self._daemon is not None:
            await self._daemon.close()


class _Stage:
    """The servers and the proxy of one run, in a folder of its own.

    `${session}` names a session that is this run's alone.
    """

    def __init__(
        self, scenario: Scenario, session: str, transport: str, shared: SharedDaemon, folder: Path
    ) -> None:
        self.folder = folder
        self._session = session
        self._shared = shared
        self._own: Daemon | None = None
        self._wanted = scenario.data["server"]
        self._transport = transport
        self.scripted: ScriptedServer | None = None
        self.daemon: Daemon | None = None
        self.proxy: CuttingProxy | None = None
        self._unix = folder / "server.sock"
        self._port = self._tls_port = 0
        self._token_file = folder / "token"
        self._workspace = folder

    async def start(self) -> None:
        if "scripted" in self._wanted:
            self.scripted = ScriptedServer(self._wanted["scripted"], self._token_file)
            self._port, self._tls_port = await self.scripted.start(self._unix, self.folder / "ca.pem")
        else:
            self.daemon = await self._get_daemon()
            place = Place(self.daemon)
            self._unix, self._port = place.unix, place.port
            self._token_file, self._workspace = place.token_file, place.workspace
        if "proxy" in self._wanted:
            self.proxy = CuttingProxy(self._unix, self._wanted["proxy"].get("cut_after", []))
            self._unix = self.folder / "proxy.sock"
            self._port = await self.proxy.start(self._unix)

    async def _get_daemon(self) -> Daemon:
        if not self._wanted["daemon"].get("own"):
            return await self._shared.get()
        self._own = Daemon(settings=self._wanted["daemon"].get("settings"))
        await self._own.start()
        return self._own

    async def stop(self) -> None:
        if self.proxy is not None:
            await self.proxy.stop()
        if self.scripted is not None:
            await self.scripted.stop()
        if self._own is not None:
            await self._own.close()
        elif self.daemon is not None:
            # An agent less for the scenarios that follow.
            with contextlib.suppress(grpc.RpcError):
                await act(self.daemon, {"do": "delete", "session": self._session})

    def places(self) -> dict[str, str]:
        """Return what the `${...}` of the scenario stand for."""
        addresses = {
            "unix": f"unix://{self._unix}",
            "tcp": f"127.0.0.1:{self._port}",
            "tls": f"https://localhost:{self._tls_port}",
        }
        return {
            **addresses,
            "address": addresses[self._transport],
            "runtime_dir": str(self._token_file.parent),
            "token_file": str(self._token_file),
            "folder": str(self.folder),
            "workspace": str(self._workspace),
            "session": self._session,
        }

    def connection(self) -> dict[str, str]:
        places = self.places()
        given = {"address": places["address"]}
        if self._transport != "unix":
            given["token_file"] = places["token_file"]
        if self._transport == "tls":
            given["tls_ca"] = str(self.folder / "ca.pem")
        return given

    async def act(self, action: dict[str, Any], process: asyncio.subprocess.Process | None) -> None:
        """Carry out one thing of `prepare` or `during`."""
        match action["do"]:
            case "cut":
                assert self.proxy is not None
                self.proxy.cut()
            case "signal":
                assert process is not None
                process.send_signal(signal.Signals[action["signal"]])
            case "sleep":
                await asyncio.sleep(action["ms"] / 1000)
            case _:
                assert self.daemon is not None
                await act(self.daemon, {"session": self._session, **action})


class _Program:
    """The client's program: fed, listened to, and bounded in time."""

    def __init__(self, scenario: Scenario, language: Language, stage: _Stage) -> None:
        self._scenario = filled(scenario.data, stage.places())
        self._language = language
        self._stage = stage
        self.lines: list[dict[str, Any]] = []
        self.progress: list[dict[str, Any]] = []
        self.exit_code = -1
        self.text = ""
        self.errors = ""

    async def run(self) -> None:
        name = self._scenario.get("program", "conformance")
        arguments = self._scenario.get("args", [])
        environment = {**self._language.environment(), **self._scenario.get("environment", {})}
        self._write_files()
        process = await asyncio.create_subprocess_exec(
            *self._language.command(name),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            cwd=self._stage.folder,
            limit=_LINE_LIMIT,
        )
        try:
            await asyncio.gather(self._feed(process), self._listen(process), self._complain(process))
            self.exit_code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _write_files(self) -> None:
        for name, content in self._scenario.get("files", {}).items():
            path = self._stage.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    async def _feed(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        document = {
            "connection": self._scenario.get("connection", self._stage.connection()),
            "steps": self._scenario.get("steps", []),
        }
        with contextlib.suppress(ConnectionError):
            if "steps" in self._scenario:
                process.stdin.write(json.dumps(document).encode())
                await process.stdin.drain()
        process.stdin.close()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        if "expect_text" in self._scenario:
            self.text = (await process.stdout.read()).decode(errors="replace")
            return
        during = list(self._scenario.get("during", []))
        while line := await process.stdout.readline():
            said = json.loads(line)
            if "progress" in said:
                self.progress.append(said["progress"])
            else:
                self.lines.append(said)
            now = [d for d in during if self._is_time(d["on"], said)]
            during = [d for d in during if d not in now]
            for action in now:
                await self._stage.act(action, process)

    def _is_time(self, on: dict[str, Any], said: dict[str, Any]) -> bool:
        if "lines" in on:
            return len(self.lines) >= int(on["lines"])
        return bool(said.get("progress") == on)

    async def _complain(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        self.errors = (await process.stderr.read()).decode(errors="replace")


def _judge(scenario: dict[str, Any], program: _Program) -> Outcome:
    outcome = Outcome()
    if program.exit_code != scenario.get("exit", 0):
        outcome.complaints.append(f"exit code {program.exit_code}: {program.errors.strip()[-600:]}")
    if "expect_text" in scenario:
        wanted = {"$matches": scenario["expect_text"]}
        outcome.complaints += complaints(wanted, program.text, program.text, "stdout")
    if "expect_lines" in scenario:
        outcome.complaints += complaints(scenario["expect_lines"], program.lines, program.lines, "lines")
    if "expect_last" in scenario:
        last = program.lines[-1] if program.lines else {}
        outcome.complaints += complaints(scenario["expect_last"], last, program.lines, "last line")
    if "expect" in scenario:
        outcome.results = (program.lines or [{}])[-1].get("results", {})
        outcome.complaints += complaints(scenario["expect"], outcome.results, outcome.results)
    return outcome


async def _run_once(
    scenario: Scenario, language: Language, transport: str, shared: SharedDaemon
) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix="sdc"))
    session = f"{scenario.name}-{language.key}-{transport}".replace("_", "-")
    stage = _Stage(scenario, session, transport, shared, folder)
    try:
        await stage.start()
        for action in filled(scenario.data.get("prepare", []), stage.places()):
            await stage.act(action, None)
        program = _Program(scenario, language, stage)
        try:
            await asyncio.wait_for(program.run(), scenario.seconds)
        except TimeoutError:
            said = f"{program.progress} {program.errors.strip()[-1500:]}"
            return Outcome([f"took more than {scenario.seconds} s: {said}"])
        outcome = _judge(filled(scenario.data, stage.places()), program)
        if stage.scripted is not None and "expect_server" in scenario.data:
            seen = await stage.scripted.seen()
            outcome.complaints += complaints(scenario.data["expect_server"], seen, seen, "server")
        return outcome
    finally:
        await stage.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def _attempt(
    scenario: Scenario, language: Language, transport: str, shared: SharedDaemon
) -> Outcome:
    try:
        return await _run_once(scenario, language, transport, shared)
    except (OSError, RuntimeError, ValueError, grpc.RpcError) as error:
        # The program is not there, the daemon does not come up, a line is no JSON: one cell fails.
        return Outcome([repr(error)])


async def run(scenario: Scenario, language: Language, shared: SharedDaemon) -> Outcome:
    """Run each variant of the scenario over each of its transports; the first that fails decides."""
    outcome = Outcome()
    for transport in scenario.transports:
        for number, variant in enumerate(scenario.variants):
            outcome = await _attempt(variant, language, transport, shared)
            if outcome.complaints:
                which = f"{transport}, variant {number}" if "variants" in scenario.data else transport
                outcome.complaints = [f"[{which}] {c}" for c in outcome.complaints]
                return outcome
    return outcome
