"""What an agent should not do and some do: one directive each, for those who must bear it."""

from __future__ import annotations

import os
import signal
import sys
import time

from .play import GIVE_WAY, Player, Wait, pause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .script import Step

_CHUNK = 64 * 1024
_HANG = 3600.0
UNQUEUE_OUTCOMES = ("dropped", "read", "unknown")


class Troublemaker(Player):
    """All directives."""

    def do_burst(self, step: Step) -> Iterator[Wait]:
        """`!burst [@RATE|@flat] [size=BYTES] [kind=text|think] [stamp=1] N`: N deltas `#1 `, `#2 `...

        With `stamp` the time of writing follows the number, in nanoseconds since the epoch.
        """
        count, rate, stamped = int(step.rest), step.rate(), bool(step.integer("stamp"))
        kind, size = step.text("kind", "text"), step.integer("size", 0) or 0
        block = self.agent.new_id("b")
        head, tail = f'{{"kind":"{kind}","delta":"#', f' ","block":"{block}"}}\n'
        # The line without its number, padded to the size asked for.
        fill = "." * max(0, size - len(head) - len(tail) - len(str(count)))
        per_chunk = max(1, _CHUNK // (len(head) + len(tail) + len(str(count)) + len(fill)))
        start, done = time.monotonic(), 0
        while done < count:
            due = int((time.monotonic() - start) * rate) + 1 if rate else count
            upto = min(count, done + per_chunk, due)
            if upto > done:
                time_of = f"{time.time_ns()} " if stamped else ""
                lines = [f"{head}{n} {time_of}{fill}{tail}" for n in range(done + 1, upto + 1)]
                self.agent.write("".join(lines).encode())
                done = upto
            yield Wait(until=start + done / rate) if rate else GIVE_WAY

    def do_huge(self, step: Step) -> Iterator[Wait]:
        """`!huge [as=text|tool|raw] MEGABYTES`: one enormous line."""
        big = "x" * int(float(step.rest) * 1_000_000)
        shape = step.text("as", "text")
        if shape == "raw":
            self.agent.write(big.encode() + b"\n")
        elif shape == "tool":
            tool = self.agent.start_tool("huge", "{}", "")
            self.agent.say("tool_end", id=tool, output=big, outcome="ok")
        else:
            self.agent.say("text", delta=big)
        yield GIVE_WAY

    def do_raw(self, step: Step) -> Iterator[Wait]:
        r"""`!raw TEXT`: write a line as it is, with `\xNN` for any byte and `\\` for a backslash."""
        line = step.rest.encode().decode("latin-1").encode("latin-1").decode("unicode_escape")
        self.agent.write(line.encode("latin-1") + b"\n")
        yield GIVE_WAY

    def do_garbage(self, step: Step) -> Iterator[Wait]:
        """`!garbage N`: N lines of seeded random bytes."""
        for _ in range(int(step.rest or "1")):
            self.agent.write(
                self.random.randbytes(self.random.randrange(1, 200)).replace(b"\n", b"") + b"\n"
            )
            yield GIVE_WAY

    def do_invalid(self, step: Step) -> Iterator[Wait]:
        """`!invalid [utf8|nul|surrogate|nonobject|truncated|deep|number]`: a bad line (default: all)."""
        lines = {
            "utf8": b'{"kind":"text","delta":"caf\xe9 \xff\xfe"}',
            "nul": b'{"kind":"text","delta":"a\\u0000b"}\x00',
            "surrogate": b'{"kind":"text","delta":"\\ud83d alone"}',
            "nonobject": b'["kind","text"]',
            "truncated": b'{"kind":"text","delta":"cut',
            "deep": b"[" * 10_000,
            "number": b'{"kind":"usage","input":1e999,"output":123456789012345678901234567890}',
        }
        if step.rest and step.rest not in lines:
            raise ValueError(f"not one of {', '.join(lines)}")
        for name, line in lines.items():
            if step.rest in ("", name):
                self.agent.write(line + b"\n")
        yield GIVE_WAY

    def do_unknown(self, step: Step) -> Iterator[Wait]:
        """`!unknown KIND`: a record of a kind that nobody knows."""
        self.agent.say(step.rest or "riddle", detail="nobody knows this kind")
        yield GIVE_WAY

    def do_open(self, step: Step) -> Iterator[Wait]:
        """`!open NAME`: start a tool call and never end it."""
        self.agent.start_tool(step.rest or "open", "{}", "")
        yield GIVE_WAY

    def do_hang(self, step: Step) -> Iterator[Wait]:
        """`!hang [hard=1] [SECONDS]`: hear nothing for a time (an hour); `hard`: nor SIGTERM."""
        if "hard" in step.options:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.agent.drain()
        time.sleep(float(step.rest or _HANG))
        yield GIVE_WAY

    def do_crash(self, step: Step) -> Iterator[Wait]:
        """`!crash [CODE|SIGNAL]`: end at once, with a code (1) or by a signal (KILL...)."""
        self.agent.drain()
        how = step.rest or "1"
        if how.isdigit():
            sys.stderr.write("echo agent: crashed as told\n")
            sys.stderr.flush()
            os._exit(int(how))
        number = getattr(signal, f"SIG{how.removeprefix('SIG')}", None)
        if number is None:
            raise ValueError("neither a code nor a signal")
        os.kill(os.getpid(), number)
        yield pause(1.0)

    def do_exit(self, step: Step) -> Iterator[Wait]:
        """`!exit [CODE]`: end the turn, then exit (default 0)."""
        code = int(step.rest or "0")
        self.agent.end_turn("done", "done", "")
        self.agent.exit_code = code
        yield GIVE_WAY

    def do_close_stdout(self, step: Step) -> Iterator[Wait]:
        """`!close_stdout`: fall silent, and live on."""
        self.agent.drain()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)
        yield GIVE_WAY

    def do_stderr(self, step: Step) -> Iterator[Wait]:
        """`!stderr TEXT`: write to standard error."""
        sys.stderr.write(f"{step.rest}\n")
        sys.stderr.flush()
        yield GIVE_WAY

    def do_refuse(self, step: Step) -> Iterator[Wait]:
        """`!refuse [N]`: refuse the next N (default 1) settings, clears, compacts or commands."""
        self.agent.refusals += int(step.rest or "1")
        yield GIVE_WAY

    def do_drop(self, step: Step) -> Iterator[Wait]:
        """`!drop [N]`: throw the next N (default 1) messages away unread, and say so."""
        self.agent.drops += int(step.rest or "1")
        yield GIVE_WAY

    def do_unqueue(self, step: Step) -> Iterator[Wait]:
        """`!unqueue dropped|read|unknown`: what to say to the next unqueue, whatever is true."""
        if step.rest not in UNQUEUE_OUTCOMES:
            raise ValueError(f"not one of {', '.join(UNQUEUE_OUTCOMES)}")
        self.agent.unqueue_outcome = step.rest
        yield GIVE_WAY

    def do_spawn(self, step: Step) -> Iterator[Wait]:
        """`!spawn SECONDS`: leave a child process behind that sleeps; says its pid."""
        program = [sys.executable, "-I", "-S", "-c", f"import time; time.sleep({float(step.rest)})"]
        nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        pid = os.posix_spawn(sys.executable, program, os.environ, file_actions=nothing)
        yield from self.stream("text", [f"pid {pid}"], 0)
