"""A driver and its real agent, over pipes; everything that happens can be kept as a recording."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from sessiond_drivers.base import Driver, Effect, ExitStatus, LaunchSpec, StopPlan, Write
from tests.conformance.host import SPEC, DriverHost

__all__ = ["LiveHost"]

_BOUND = 20.0


class LiveHost(DriverHost):
    """A `DriverHost` whose driver has a process. Use it as a context manager: the process dies with it.

    Everything that waits is bounded and raises TimeoutError with what was seen last.
    """

    def __init__(self, create: Callable[[], Driver], reload: bool = False) -> None:
        super().__init__(create, reload)
        self.stdout = bytearray()
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._early: list[bytes] = []
        self._fed = 0

    def __enter__(self) -> LiveHost:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()
            self._reap()

    # --- the process ---

    @property
    def pid(self) -> int:
        """The pid of the living process."""
        return self._living().pid

    def start(self, spec: LaunchSpec = SPEC, resume: bool = False) -> None:
        """Start the agent."""
        launch = self.launch(spec, resume)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            launch.argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=spec.workspace,
            env={**os.environ, **launch.env},
            start_new_session=True,
        )
        early, self._early = self._early, []
        for line in early:
            self._to_stdin(line)

    def start_ready(self, spec: LaunchSpec = SPEC, resume: bool = False) -> None:
        """Start the agent and wait until a message would start a turn."""
        self.start(spec, resume)
        self.until(lambda: self.driver.between_turns)

    def until(self, met: Callable[[], object], timeout: float = _BOUND) -> None:
        """Feed what the agent says until `met` is true; stops right after the line that made it so."""
        end = time.monotonic() + timeout
        while not met():
            if self._feed_one():
                continue
            if not self._more(end - time.monotonic()):
                raise TimeoutError(f"the agent closed its stdout; last: {self.kinds[-5:]}")

    def until_idle(self) -> None:
        """Feed until nothing runs and nothing waits."""
        self.until(lambda: self.driver.between_turns)

    def until_kind(self, kind: str, count: int = 1) -> Any:
        """Feed until that many events of a kind have come; return the body of the last of them."""
        self.until(lambda: self.kinds.count(kind) >= count)
        return self.bodies(kind)[count - 1]

    def drain_and_exit(self, timeout: float = _BOUND) -> ExitStatus:
        """Feed all that is left, wait for the end and tell the driver."""
        end = time.monotonic() + timeout
        while self._more(end - time.monotonic()):
            pass
        while self._feed_one():
            pass
        status = self._reap()
        self.exited(status)
        return status

    def stop_and_exit(self) -> ExitStatus:
        """End the process as the driver plans it."""
        plan: StopPlan = self.stop()
        process = self._living()
        if plan.close_stdin and process.stdin:
            process.stdin.close()
        if plan.signal:
            os.killpg(process.pid, plan.signal)
        return self.drain_and_exit(plan.grace)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process group."""
        try:
            os.killpg(self._living().pid, number)
        except ProcessLookupError:
            return

    def write_raw(self, data: bytes) -> None:
        """Write to the agent behind the driver's back."""
        self._to_stdin(data)

    # --- recordings ---

    def record(self, folder: Path) -> None:
        """Write what happened so far as a recording (see tests/golden/compare.py)."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stdout.jsonl").write_bytes(self.stdout)
        steps: list[dict[str, Any]] = []
        taken = 0
        for verb, given in self.inputs:
            if verb != "line":
                steps.append({verb: given})
            elif steps and "stdout" in steps[-1]:
                steps[-1]["stdout"][1] += 1
            else:
                steps.append({"stdout": [taken, taken + 1]})
            taken += verb == "line"
        text = "".join(f"{json.dumps(step, ensure_ascii=False)}\n" for step in steps)
        (folder / "steps.jsonl").write_text(text, encoding="utf-8")

    # --- inside ---

    def written(self, effects: Sequence[Effect]) -> None:
        """Pass the lines on, or keep them until the process is there."""
        for effect in effects:
            if isinstance(effect, Write):
                if self._process is None:
                    self._early.append(effect.line)
                else:
                    self._to_stdin(effect.line)

    def _living(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "no process was started"
        return self._process

    def _to_stdin(self, data: bytes) -> None:
        stdin = self._living().stdin
        assert stdin is not None
        try:
            while data:
                data = data[os.write(stdin.fileno(), data) :]
        except BrokenPipeError:
            return  # the exit will tell

    def _feed_one(self) -> bool:
        """Feed the next whole line, if there is one."""
        end = self.stdout.find(b"\n", self._fed)
        if end < 0:
            return False
        line = bytes(self.stdout[self._fed : end])
        self._fed = end + 1
        self.line(line)
        return True

    def _more(self, timeout: float) -> bool:
        """Read more output; False at its end. Raises TimeoutError when nothing comes."""
        stdout = self._living().stdout
        assert stdout is not None
        if timeout <= 0 or not select.select([stdout], [], [], timeout)[0]:
            raise TimeoutError(f"the agent is silent; last: {self.kinds[-5:]}")
        data = os.read(stdout.fileno(), 1 << 20)
        self.stdout += data
        return bool(data)

    def _reap(self) -> ExitStatus:
        process, self._process = self._living(), None
        code = process.wait(_BOUND)
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()
        assert self._stderr is not None
        self._stderr.seek(0)
        tail = self._stderr.read()[-4096:].decode("utf-8", "replace")
        self._stderr.close()
        if code < 0:
            return ExitStatus(signal=-code, stderr_tail=tail)
        return ExitStatus(exit_code=code, stderr_tail=tail)
