"""The real daemon for one scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["Daemon"]


class Daemon:
    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.unix = folder / "run" / "sessiond.sock"
        self.port = 0
        self.token_file = folder / "run" / "token"

    async def start(self) -> None:
        raise RuntimeError("not yet")

    async def stop(self) -> None:
        pass

    async def act(self, action: dict[str, Any]) -> None:
        pass
