"""The program in the Python client's README, run as it stands there."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from tests.support.daemon import Daemon

_README = Path(__file__).parents[2] / "clients" / "python" / "README.md"


async def test_the_program_of_the_readme_runs(daemon: Daemon) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", _README.read_text(), re.DOTALL | re.MULTILINE)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", program),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=daemon.workspace,
        env={**daemon.env, "GRPC_VERBOSITY": "NONE"},
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert (process.returncode, out.decode(), err.decode()) == (0, "hello from Python\n", "")
