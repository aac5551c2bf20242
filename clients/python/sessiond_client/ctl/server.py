"""The daemon itself: info."""

from __future__ import annotations

import typer

from sessiond.v1 import server_service_pb2

from .cli import JsonOption, command, connect
from .words import duration, size

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(info)


@command
async def info(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show the daemon's version, its limits and its drivers."""
    async with connect(ctx, as_json) as ctl:
        answer = await ctl.client.server_info()
        if ctl.out.as_json:
            ctl.out.message(answer)
            return
        ctl.out.line(f"sessiond {answer.server_version} at {ctl.client.endpoint}")
        ctl.out.line(f"contract revision {answer.contract_revision}, server {answer.server_id}")
        for line in _limits(answer.limits):
            ctl.out.line(line)
        ctl.out.line("")
        ctl.out.table(("DRIVER", "AGENT", "VERSION", "CAN"), (_row(d) for d in answer.drivers))


def _limits(limits: server_service_pb2.Limits) -> list[str]:
    return [
        f"text up to {size(limits.max_text_bytes)}, "
        f"attachments up to {size(limits.max_attachment_bytes)} "
        f"in chunks of {size(limits.max_chunk_bytes)}, events up to {size(limits.max_event_bytes)}",
        f"up to {limits.max_sessions} sessions, {limits.max_queue_length} waiting messages in each, "
        f"{limits.max_subscribers} subscribers, heartbeat every {duration(limits.heartbeat_interval)}",
    ]


def _row(driver: server_service_pb2.DriverInfo) -> tuple[str, ...]:
    can = ", ".join(field.name for field, value in driver.capabilities.ListFields() if value)
    if not driver.available:
        can = f"not available: {driver.unavailable_reason}"
    return (driver.name, driver.display_name, driver.agent_version, can)
