"""The shim: the small process that is an agent's parent and outlives the server.

Started as `python -I -S -X utf8 program.py DIRECTORY RUN`, with the order (argv, env, cwd, limits) as
JSON on stdin, so that nothing secret stands in an argument list, an environment or a file. The process
started is only a launcher: it forks the shim away (init becomes its parent), passes on the shim's report
as one JSON line and exits 0 (`ready`), 1 (`failed`) or 75 (`running`: another shim holds the lock).

Standard library only, one file, one thread: whatever an upgrade does to the server's environment, a
running shim has all it needs. Importing this file does nothing: the server's end shares its constants.

Frames on the unix socket are one JSON header line, then `len` bytes when the header has a `len`; a kind
that the reader doesn't know is skipped. After `hello` nothing about the output is sent before `attach`.

    shim -> server: hello, out{offset, len}, ack{id}, paused{reason, disk}, resumed, eof, deaf,
                    exit{...}, pong
    server -> shim: attach{offset}, input{id, len}, close_stdin{id}, signal{signal}, kill,
                    committed{offset}, collected, ping
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable

PROTOCOL = 1
OLDEST_PROTOCOL = 1
EXIT_RUNNING = 75
SESSION_MARKER = "SESSIOND_SESSION"
SHIM_MARKER = "SESSIOND_SHIM"

LOCK_NAME = "lock"
STATE_NAME = "shim.json"
EXIT_NAME = "exit.json"
SOCKET_NAME = "sock"
STDERR_NAME = "stderr.log"
TROUBLE_NAME = "shim.log"

CHUNK_BYTES = 256 << 10
MAX_INPUT_BYTES = 64 << 20
MAX_HEADER_BYTES = 4 << 10
LOG_CAP_BYTES = 256 << 20
SEGMENT_BYTES = 16 << 20
STDERR_CAP_BYTES = 1 << 20
LINGER_SECONDS = 60.0

_PIPE_BYTES = 1 << 20
# A few small reads are pushed at once; when they come faster than one in this time, bursts are batched.
_PACE_SECONDS = 0.004
_PACE_CREDIT = 10.0
_PACE_BYTES = 64 << 10
_QUIET_SECONDS = 0.5
_RETRY_SECONDS = 0.5
_DRAIN_SECONDS = 5.0
_SWEEP_SECONDS = 0.02
# The shim of the run before may be on its way out, and a test of the lock holds it for a moment.
_LOCK_PATIENCE_SECONDS = 1.0
_ENDED = ("Z", "X", "")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

Header = dict[str, object]


def run_name(run: int) -> str:
    """Folder of a run inside the session's directory."""
    return f"run-{run}"


def segment_name(base: int) -> str:
    """File name of the raw-log segment that starts at byte `base`."""
    return f"out.{base}.log"


def segment_base(name: str) -> int | None:
    """Inverse of `segment_name`; None for any other file."""
    parts = name.split(".")
    if len(parts) == 3 and parts[0] == "out" and parts[2] == "log" and parts[1].isdigit():
        return int(parts[1])
    return None


def encode(header: Header) -> bytes:
    """One frame's header line."""
    return json.dumps(header, separators=(",", ":")).encode() + b"\n"


def start_time(pid: int) -> int:
    """Start of a process in clock ticks since boot (proc(5), stat field 22); 0 when none runs."""
    state, _, started = _stat(pid)
    # A zombie has ended; whoever is its parent may never look at it.
    return 0 if state in _ENDED else started


def processes() -> list[int]:
    """Every process id now; empty where there is no /proc."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _stat(pid: int) -> tuple[str, int, int]:
    """State letter, parent and start time; ("", 0, 0) when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field is the name in brackets and may hold anything, brackets too.
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[1]), int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0, 0


def _descendants(root: int) -> set[int]:
    stats = {pid: _stat(pid) for pid in processes()}
    tree = {root}
    while True:
        more = {pid for pid, (_, parent, _) in stats.items() if parent in tree} - tree
        if not more:
            return {pid for pid in tree if pid != root and stats[pid][0] not in _ENDED}
        tree |= more


def _kill_descendants(root: int) -> bool:
    """Kills every process below `root`, a subreaper (orphans hang below it); true when none is left."""
    for _ in range(10):
        tree = _descendants(root)
        if not tree:
            return True
        for pid in tree:
            try:
                handle = os.pidfd_open(pid)
            except OSError:
                continue
            try:
                # Looked at again through the handle's lifetime: a number could have changed hands.
                if _stat(pid)[1] in tree | {root}:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            except OSError:
                pass
            finally:
                os.close(handle)
    return False


def _write_atomically(name: str, content: Header) -> None:
    temporary = f"{name}.new"
    with open(temporary, "wb") as file:
        file.write(encode(content))
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, name)


def _whole(header: Header, key: str) -> int:
    value = header.get(key)
    if type(value) is not int or value < 0:
        raise ValueError(f"{key} must be a whole number")
    return value


class _Log:
    """The raw output: segments that are named by the offset of their first byte."""

    def __init__(self, segment_bytes: int) -> None:
        self.size = 0
        self._segment_bytes = segment_bytes
        self._bases: list[int] = []
        self._fd = -1

    @property
    def base(self) -> int:
        return self._bases[0] if self._bases else 0

    def append(self, data: memoryview) -> int:
        """Writes what there is room for and returns how much; raises OSError when nothing went in."""
        if self._fd < 0 or self.size - self._bases[-1] >= self._segment_bytes:
            self._begin_segment()
        # At an offset of our own counting: whatever a failed write left behind it is written over.
        at = self.size - self._bases[-1]
        written = os.pwrite(self._fd, data[: self._segment_bytes - at], at)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += written
        return written

    def read(self, offset: int, limit: int) -> bytes:
        """At least one byte from `offset`, which lies below the size."""
        base = max(base for base in self._bases if base <= offset)
        if base == self._bases[-1]:
            return os.pread(self._fd, min(limit, self.size - offset), offset - base)
        fd = os.open(segment_name(base), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, limit, offset - base)
        finally:
            os.close(fd)

    def forget(self, offset: int) -> None:
        """Removes the segments that lie wholly below `offset`, but for the current one."""
        while len(self._bases) > 1 and self._bases[1] <= offset:
            try:
                os.unlink(segment_name(self._bases[0]))
            except FileNotFoundError:
                pass
            except OSError:
                return
            del self._bases[0]

    def _begin_segment(self) -> None:
        fd = os.open(segment_name(self.size), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._bases.append(self.size)


class _TailFile:
    """The agent's stderr: a file that keeps at least the last half of its cap."""

    def __init__(self, name: str, cap: int) -> None:
        self._name = name
        self._cap = cap
        self._fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._size = 0

    def append(self, data: bytes) -> None:
        try:
            if self._size + len(data) > self._cap:
                self._shorten()
            self._size += os.pwrite(self._fd, data[-self._cap :], self._size)
        except OSError:
            # Diagnostics only: on a full disk they are given up, the output is not.
            pass

    def _shorten(self) -> None:
        keep = min(self._size, self._cap // 2)
        tail = os.pread(self._fd, keep, self._size - keep)
        temporary = f"{self._name}.new"
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._size = os.pwrite(fd, tail, 0)
        os.rename(temporary, self._name)
        os.close(self._fd)
        self._fd = fd


class _Connection:
    """The attached server: bytes in, frames out, and its own position in the raw log."""

    def __init__(self, sock: socket.socket, handle: Callable[[Header, bytes], None]) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.position: int | None = None
        self.told_eof = False
        self.told_deaf = False
        self.told_exit = False
        self._handle = handle
        self._inbox = bytearray()
        self._header: Header | None = None
        self._outbox = bytearray()

    @property
    def backlog(self) -> int:
        return len(self._outbox)

    def queue(self, header: Header, payload: bytes = b"") -> None:
        self._outbox += encode(header)
        self._outbox += payload

    def flush(self) -> None:
        """Sends what the socket takes; raises OSError when the server is gone."""
        with contextlib.suppress(BlockingIOError):
            while self._outbox:
                sent = self.sock.send(self._outbox)
                del self._outbox[:sent]

    def read(self) -> bool:
        """Handles the frames that are here, False when none; raises OSError or ValueError at the end."""
        try:
            data = self.sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionResetError
        self._inbox += data
        while self._next_frame():
            pass
        return True

    def _next_frame(self) -> bool:
        if self._header is None:
            end = self._inbox.find(b"\n", 0, MAX_HEADER_BYTES)
            if end < 0:
                if len(self._inbox) >= MAX_HEADER_BYTES:
                    raise ValueError("not a header")
                return False
            header = json.loads(self._inbox[:end])
            if not isinstance(header, dict):
                raise ValueError("not a header")
            del self._inbox[: end + 1]
            self._header = header
        length = _whole(self._header, "len") if "len" in self._header else 0
        if length > MAX_INPUT_BYTES:
            raise ValueError("frame too long")
        if len(self._inbox) < length:
            return False
        header, self._header = self._header, None
        with memoryview(self._inbox) as view:
            payload = bytes(view[:length])
        del self._inbox[:length]
        self._handle(header, payload)
        return True


class _Order:
    """What to start and the limits, as the server's end wrote them to the launcher's stdin."""

    def __init__(self, header: Header) -> None:
        argv, env = header["argv"], header["env"]
        if not isinstance(argv, list) or not isinstance(env, dict):
            raise ValueError("the order needs argv and env")
        self.argv = [str(argument) for argument in argv]
        self.env = {str(name): str(value) for name, value in env.items()}
        self.cwd = str(header["cwd"])
        self.session_id = str(header["session_id"])
        self.log_cap = _whole(header, "log_cap")
        self.segment_bytes = _whole(header, "segment_bytes")
        self.stderr_cap = _whole(header, "stderr_cap")
        self.linger_ms = _whole(header, "linger_ms")

    def explain(self, error: Exception) -> str:
        """Why the agent can't be started, for people."""
        program = self.argv[0] if self.argv else ""
        if isinstance(error, OSError) and error.filename == self.cwd:
            return f"the working directory {self.cwd!r} can't be entered: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            return f"the program {program!r} was not found (or the interpreter its first line names)"
        if isinstance(error, OSError) and error.errno == errno.E2BIG:
            return (
                f"the program {program!r} can't be started: the system takes no arguments and no "
                "environment of this size; shorten the system prompt, environment or driver arguments"
            )
        if isinstance(error, OSError):
            return f"the program {program!r} can't be started: {error.strerror}"
        return f"the program {program!r} can't be started: {error}"


class _Agent:
    """The agent process and our ends of its pipes."""

    def __init__(self, order: _Order) -> None:
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        me = os.getpid()
        if libc is not None:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

        def die_with_the_shim() -> None:
            if libc is not None:
                libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
                if os.getppid() != me:
                    os._exit(1)

        markers = {SESSION_MARKER: order.session_id, SHIM_MARKER: f"{me}.{start_time(me)}"}
        stdin, self.stdin = os.pipe()
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self._process = subprocess.Popen(
            order.argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=order.cwd,
            env=order.env | markers,
            start_new_session=True,
            # This process has one thread, so running code between fork and exec is safe here.
            preexec_fn=die_with_the_shim,
        )
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        for fd in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)
        if sys.platform == "linux":
            # Refused when the user's budget for big pipes is spent; a small one only costs speed.
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.pid = self._process.pid
        self.exit: int | None = None

    def reap(self) -> None:
        """Takes the exit status of the agent, and of the orphans that came to us as the subreaper."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.exit = self._process.returncode = os.waitstatus_to_exitcode(status)

    def signal(self, number: int) -> None:
        """Signals the agent's process group; nothing once it is reaped: its number may be another's."""
        if self.exit is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


class _Shim:
    """The loop: pipes, log, socket, clock. Its state is all that a server's end can ask for."""

    def __init__(self, run: int, order: _Order) -> None:
        self._run = run
        self._order = order
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, int] = {}
        self._wake = self._catch_signals()
        self._listener = _listen()
        self._log = _Log(order.segment_bytes)
        self._stderr = _TailFile(STDERR_NAME, order.stderr_cap)
        self._agent = _Agent(order)
        # The order holds the agent's environment, and this process lives long.
        order.env.clear()
        self._connection: _Connection | None = None
        self._committed = 0
        self._pending = memoryview(b"")
        self._trouble = ""
        self._paused = ""
        self._inputs: deque[memoryview] = deque()
        self._closing_stdin = False
        self._last_input = 0
        self._eof_at: float | None = None
        self._deaf_at: float | None = None
        self._exited_at = 0.0
        self._heard_at = 0.0
        self._credit = _PACE_CREDIT
        self._read_at = self._retry_at = self._sweep_at = 0.0
        self._killing = False
        self._drained = False
        self._killed = False
        self._exit: Header | None = None
        self._finished_at = 0.0
        self._collected = False

    @property
    def agent_pid(self) -> int:
        return self._agent.pid

    @staticmethod
    def _catch_signals() -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: what is ignored stays ignored in the agent.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda _number, _frame: None)
        return reader

    def save_state(self) -> None:
        """Writes who lives here, for people and for the check of leftovers."""
        state: Header = {
            "protocol": PROTOCOL,
            "run": self._run,
            "session_id": self._order.session_id,
            "shim_pid": os.getpid(),
            "shim_start_time": start_time(os.getpid()),
            "agent_pid": self._agent.pid,
            "agent_start_time": start_time(self._agent.pid),
            "boot_id": boot_id(),
        }
        _write_atomically(STATE_NAME, state)

    def kill_agent(self) -> None:
        """The last act of a shim that can't go on."""
        self._agent.signal(signal.SIGKILL)

    def serve(self) -> None:
        """Runs until the exit was collected, or nobody came for it in the linger time."""
        self._watch(self._wake, selectors.EVENT_READ, self._on_signal)
        self._watch(self._listener.fileno(), selectors.EVENT_READ, self._on_connect)
        self._watch(self._agent.stderr, selectors.EVENT_READ, self._on_stderr)
        # The agent may have died before the wakeup pipe was watched.
        self._on_signal()
        while True:
            now = time.monotonic()
            pause = self._advance(now)
            if self._over(now):
                return
            self._push(now)
            self._watch_changing(now)
            for key, events in self._selector.select(pause):
                key.data(events)

    # -- the clock --

    def _advance(self, now: float) -> float | None:
        """Everything that waits for a moment; returns the seconds until the next one."""
        if self._killing and now >= self._sweep_at:
            self._sweep(now)
        if self._pending and now >= self._retry_at:
            self._write_pending(now)
        self._settle_pause()
        if self._exit is None and self._agent.exit is not None:
            self._drained = self._drained or self._is_drained(now)
            if self._drained:
                self._finish(now)
        moments = []
        if self._killing:
            moments.append(self._sweep_at)
        if self._pending or self._trouble:
            moments.append(self._retry_at)
        if self._read_at > now:
            moments.append(self._read_at)
        for closed_at in (self._eof_at, self._deaf_at):
            if closed_at is not None and self._agent.exit is None and now < closed_at + _QUIET_SECONDS:
                moments.append(closed_at + _QUIET_SECONDS)
        if self._agent.exit is not None and self._exit is None:
            moments.append(now + _QUIET_SECONDS / 5)
        if self._exit is not None:
            moments.append(self._finished_at + self._order.linger_ms / 1000)
        return max(0.0, min(moments) - now) if moments else None

    def _over(self, now: float) -> bool:
        if self._exit is None or self._killing:
            return False
        return self._collected or now >= self._finished_at + self._order.linger_ms / 1000

    def _sweep(self, now: float) -> None:
        self._agent.signal(signal.SIGKILL)
        self._killing = not _kill_descendants(os.getpid())
        self._agent.reap()
        self._note_exit(now)
        self._sweep_at = now + _SWEEP_SECONDS

    def _is_drained(self, now: float) -> bool:
        """Whether the agent's last output is in the log. If others hold the pipe, silence decides."""
        if self._killed and now >= self._exited_at + _DRAIN_SECONDS:
            # Nobody wants it any more: a full disk mustn't keep a killed session from ending.
            return True
        if self._killing or self._pending:
            return False
        if self._eof_at is not None:
            return True
        if self._paused:
            if not self._killed:
                self._exited_at = self._heard_at = now
            return False
        quiet = now >= max(self._exited_at, self._heard_at) + _QUIET_SECONDS
        return quiet or now >= self._exited_at + _DRAIN_SECONDS

    def _finish(self, now: float) -> None:
        if self._trouble and now < self._retry_at and not self._killed:
            return
        code = self._agent.exit or 0
        content: Header = {
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "size": self._log.size,
            "time": time.time(),
        }
        try:
            _write_atomically(EXIT_NAME, content)
        except OSError as error:
            if not self._killed:
                self._complain(error, now)
                return
        self._on_stderr(0)
        self._trouble = ""
        self._exit = content
        self._finished_at = now
        self._settle_pause()

    # -- output --

    def _on_stdout(self, _events: int) -> None:
        now = time.monotonic()
        try:
            data = os.read(self._agent.stdout, _PIPE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._eof_at = now
            return
        self._credit = min(_PACE_CREDIT, self._credit + (now - self._heard_at) / _PACE_SECONDS)
        self._heard_at = now
        if len(data) < _PACE_BYTES:
            self._credit -= 1
            if self._credit < 0:
                self._read_at = now + _PACE_SECONDS
        self._pending = memoryview(data)
        self._write_pending(now)
        self._settle_pause()

    def _write_pending(self, now: float) -> None:
        try:
            while self._pending:
                self._pending = self._pending[self._log.append(self._pending) :]
        except OSError as error:
            self._complain(error, now)
        else:
            self._trouble = ""

    def _complain(self, error: OSError, now: float) -> None:
        self._trouble = f"the session's files can't be written: {error.strerror}"
        self._retry_at = now + _RETRY_SECONDS

    def _settle_pause(self) -> None:
        """Decides whether the agent's output is read on, and tells the server when that changes."""
        cap = self._order.log_cap
        unread = self._log.size - self._committed
        reason = self._trouble
        # Resumes below three quarters only, so that it doesn't flutter at the edge.
        if not reason and unread >= (cap * 3 // 4 if self._paused else cap):
            reason = f"{unread} bytes of output wait to be recorded (the limit is {cap})"
        changed = bool(reason) != bool(self._paused)
        self._paused = reason
        if changed and self._connection is not None and self._connection.position is not None:
            self._reply(self._pause() if reason else {"kind": "resumed"})

    def _pause(self) -> Header:
        return {"kind": "paused", "reason": self._paused, "disk": bool(self._trouble)}

    def _push(self, now: float) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            self._queue_output(connection, now)
            connection.flush()
        except (OSError, ValueError):
            # A server that hung up may have said something just before: a kill must not get lost.
            with contextlib.suppress(OSError, ValueError, RecursionError):
                while connection.read():
                    pass
            self._drop()

    def _queue_output(self, connection: _Connection, now: float) -> None:
        position = connection.position
        if position is None:
            return
        while position < self._log.size and connection.backlog < CHUNK_BYTES:
            data = self._log.read(position, CHUNK_BYTES)
            if not data:
                raise ValueError("the raw log is shorter than it was")
            connection.queue({"kind": "out", "offset": position, "len": len(data)}, data)
            position += len(data)
        connection.position = position
        if position < self._log.size:
            return
        if self._exit is not None:
            if not connection.told_exit:
                connection.told_exit = True
                connection.queue({"kind": "exit"} | self._exit)
            return
        if self._lives_without(self._eof_at, now) and not connection.told_eof:
            connection.told_eof = True
            connection.queue({"kind": "eof"})
        if self._lives_without(self._deaf_at, now) and not connection.told_deaf:
            connection.told_deaf = True
            connection.queue({"kind": "deaf"})

    def _lives_without(self, closed_at: float | None, now: float) -> bool:
        """Whether the agent lives without a pipe; not at once: one that ends closes it just before."""
        return self._agent.exit is None and closed_at is not None and now >= closed_at + _QUIET_SECONDS

    def _on_stderr(self, _events: int) -> None:
        try:
            data = os.read(self._agent.stderr, _PACE_BYTES)
        except BlockingIOError:
            return
        if data:
            self._stderr.append(data)
        else:
            self._watch(self._agent.stderr, 0, self._on_stderr)

    # -- input --

    def _take_input(self, header: Header, payload: bytes) -> None:
        input_id = _whole(header, "id")
        if input_id > self._last_input:
            self._last_input = input_id
            if header["kind"] == "close_stdin":
                self._closing_stdin = True
            elif payload and not self._closing_stdin:
                self._inputs.append(memoryview(payload))
            self._on_stdin(0)
        self._reply({"kind": "ack", "id": input_id})

    def _on_stdin(self, _events: int) -> None:
        if self._agent.stdin < 0:
            self._inputs.clear()
            return
        try:
            while self._inputs:
                rest = self._inputs[0][os.write(self._agent.stdin, self._inputs[0]) :]
                if rest:
                    self._inputs[0] = rest
                else:
                    self._inputs.popleft()
        except BlockingIOError:
            return
        except OSError:
            # The agent closed its stdin. What it will never read was still taken, once; the server is
            # told, unless it wanted no more than that.
            if not self._closing_stdin:
                self._deaf_at = time.monotonic()
            self._closing_stdin = True
            self._inputs.clear()
        if self._closing_stdin:
            self._close_stdin()

    def _close_stdin(self) -> None:
        self._watch(self._agent.stdin, 0, self._on_stdin)
        os.close(self._agent.stdin)
        self._agent.stdin = -1

    # -- the server --

    def _on_connect(self, _events: int) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self._drop()
        connection = _Connection(sock, self._on_frame)
        self._connection = connection
        connection.queue(
            {
                "kind": "hello",
                "protocol": PROTOCOL,
                "run": self._run,
                "shim_pid": os.getpid(),
                "agent_pid": self._agent.pid,
                "base": self._log.base,
                "size": self._log.size,
                "last_input_id": self._last_input,
                "exit": self._exit,
                "paused": self._paused,
            }
        )

    def _on_connection(self, events: int) -> None:
        if self._connection is not None and events & selectors.EVENT_READ:
            try:
                self._connection.read()
            except (OSError, ValueError, RecursionError):
                self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._watch(self._connection.sock.fileno(), 0, self._on_connection)
            self._connection.sock.close()
            self._connection = None

    def _reply(self, header: Header) -> None:
        if self._connection is not None:
            self._connection.queue(header)

    def _on_frame(self, header: Header, payload: bytes) -> None:
        """One frame of the server; raises ValueError when it makes no sense."""
        kind = header.get("kind")
        self._finished_at = time.monotonic()
        if kind in ("input", "close_stdin"):
            self._take_input(header, payload)
        elif kind == "attach":
            self._attach(_whole(header, "offset"))
        elif kind == "committed":
            self._commit(_whole(header, "offset"))
        elif kind == "signal":
            number = _whole(header, "signal")
            if number not in signal.valid_signals():
                raise ValueError("not a signal")
            self._agent.signal(number)
        elif kind == "kill":
            self._killing = self._killed = True
        elif kind == "collected":
            self._collected = self._exit is not None
        elif kind == "ping":
            self._reply({"kind": "pong"})

    def _attach(self, offset: int) -> None:
        connection = self._connection
        if connection is None or connection.position is not None:
            raise ValueError("attached already")
        if not self._log.base <= offset <= self._log.size:
            raise ValueError("no such offset")
        connection.position = offset
        if self._paused:
            connection.queue(self._pause())

    def _commit(self, offset: int) -> None:
        if offset > self._log.size:
            raise ValueError("no such offset")
        self._committed = max(self._committed, offset)
        self._log.forget(self._committed)
        # Space may have come free: look at once.
        self._retry_at = 0.0

    # -- watching --

    def _on_signal(self, _events: int = 0) -> None:
        try:
            numbers = os.read(self._wake, 512)
        except BlockingIOError:
            numbers = b""
        if signal.SIGTERM in numbers:
            # The host shuts down, or somebody means the session: the agent may end in its own way.
            self._agent.signal(signal.SIGTERM)
        self._agent.reap()
        self._note_exit(time.monotonic())

    def _note_exit(self, now: float) -> None:
        if self._agent.exit is not None and not self._exited_at:
            self._exited_at = now
            self._closing_stdin = True
            self._inputs.clear()
            self._on_stdin(0)

    def _watch_changing(self, now: float) -> None:
        """Watches what is wanted just now: output there is room for, input and frames still to write."""
        read, write = selectors.EVENT_READ, selectors.EVENT_WRITE
        wanted = self._eof_at is None and self._exit is None and not self._paused and not self._pending
        self._watch(self._agent.stdout, read if wanted and now >= self._read_at else 0, self._on_stdout)
        if self._agent.stdin >= 0:
            self._watch(self._agent.stdin, write if self._inputs else 0, self._on_stdin)
        if self._connection is not None:
            # Written by `_push`; being writable only has to wake the loop.
            position = self._connection.position
            behind = position is not None and position < self._log.size
            events = read | (write if behind or self._connection.backlog else 0)
            self._watch(self._connection.sock.fileno(), events, self._on_connection)

    def _watch(self, fd: int, events: int, handle: Callable[[int], None]) -> None:
        before = self._watched.get(fd, 0)
        if events == before:
            return
        if not events:
            self._selector.unregister(fd)
            del self._watched[fd]
            return
        if before:
            self._selector.modify(fd, events, handle)
        else:
            self._selector.register(fd, events, handle)
        self._watched[fd] = events


def boot_id() -> str:
    """Name of this boot of the machine; empty where the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _listen() -> socket.socket:
    """By a name relative to the run's folder: a whole path may be too long for a socket address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET_NAME)
    listener.listen(16)
    listener.setblocking(False)
    return listener


def _lock(path: str, run: int) -> bool:
    """Takes the session's lock for the life of this process; False when another shim has it.

    The file then says whose it is: the run's number, for a reader that finds the lock held.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return False
            time.sleep(0.01)
        else:
            os.ftruncate(fd, 0)
            # On a full disk it stays empty, which fits every run.
            with contextlib.suppress(OSError):
                os.pwrite(fd, str(run).encode(), 0)
            return True


def _clear_stale_files() -> None:
    """Removes what a start that never got ready left; a run that had an agent is not written over."""
    if os.path.exists(STATE_NAME):
        raise ValueError("this run was started before: each process of a session needs a new run number")
    for name in os.listdir("."):
        if name in (SOCKET_NAME, EXIT_NAME, STDERR_NAME) or segment_base(name) is not None:
            os.unlink(name)


def _tell(report: int, header: Header) -> bool:
    try:
        os.write(report, encode(header))
    except BrokenPipeError:
        return False
    os.close(report)
    return True


def _run_shim(directory: str, run: int, order: _Order, report: int) -> None:
    os.makedirs(os.path.join(directory, run_name(run)), mode=0o700, exist_ok=True)
    os.chdir(os.path.join(directory, run_name(run)))
    if not _lock(os.path.join("..", LOCK_NAME), run):
        _tell(report, {"status": "running"})
        return
    shim: _Shim | None = None
    _keep_troubles()
    try:
        _clear_stale_files()
        shim = _Shim(run, order)
        shim.save_state()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if shim is not None:
            shim.kill_agent()
        _tell(report, {"status": "failed", "error": order.explain(error)})
        return
    try:
        if _tell(report, {"status": "ready"}):
            shim.serve()
        else:
            # The launcher was ended: whoever wanted this session was told that it didn't start.
            os.unlink(STATE_NAME)
    finally:
        shim.kill_agent()
        os.unlink(SOCKET_NAME)


def _detach() -> None:
    """Lets go of the launcher's pipes."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)


def _keep_troubles() -> None:
    """A crash of the shim is written to a file of the run."""
    fd = os.open(TROUBLE_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(fd, 2)
    os.close(fd)


def main(arguments: list[str]) -> int:
    """The launcher: 0 when the shim is ready, 1 when it failed, 75 when another one is running."""
    directory, run = arguments[0], int(arguments[1])
    order = _Order(json.load(sys.stdin.buffer))
    os.umask(0o077)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(reader)
            _detach()
            _run_shim(directory, run, order, writer)
            return 0
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader, "rb") as file:
        report = file.read() or encode({"status": "failed", "error": "the shim ended before it began"})
    # If the server is gone by now, the shim lives on and will be found by its lock.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, report)
    return {"ready": 0, "running": EXIT_RUNNING}.get(json.loads(report)["status"], 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
