"""`sessiond`: the daemon's command line."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import sqlite3
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer

from sessiond_server import logs
from sessiond_server.config import Config, ConfigError, ListenAddress, UnixAddress

__all__ = ["app", "main"]

app = typer.Typer(
    name="sessiond",
    help="Hosts coding-agent sessions and serves them over gRPC.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # "[ipv6]" is no markup.
    rich_markup_mode=None,
)

_ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file (default: $XDG_CONFIG_HOME/sessiond/config.toml, if it is there).",
    ),
]
_DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Transcripts, attachments, running sessions."),
]
_RuntimeDir = Annotated[
    Path | None, typer.Option("--runtime-dir", metavar="DIR", help="Socket, token and address.json.")
]
_Listen = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS",
        help="unix:/path, host:port or [ipv6]:port; repeat for several. Replaces the configured ones.",
    ),
]
_WorkspaceRoot = Annotated[
    list[Path] | None,
    typer.Option(
        "--workspace-root",
        metavar="DIR",
        help="Sessions may work below this directory; repeat for several.",
    ),
]
_LogLevel = Annotated[
    str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
]
_LogFormat = Annotated[
    str | None, typer.Option("--log-format", metavar="FORMAT", help="console or json.")
]
_Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting, as limits.max_sessions=5; repeat for several."
    ),
]


_COLORS = {"ok": "green", "note": "yellow", "wrong": "red"}


def main() -> None:
    """Run the command line. Must be the first to import gRPC: it reads these variables only once."""
    # Fork handlers broke children under live streams, and the daemon never forks (grpc/grpc#43055).
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app()


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"sessiond {installed_version('sessiond')}")
        raise typer.Exit


@app.command()
def serve(
    config_file: _ConfigFile = None,
    data_dir: _DataDir = None,
    runtime_dir: _RuntimeDir = None,
    listen: _Listen = None,
    workspace_root: _WorkspaceRoot = None,
    log_level: _LogLevel = None,
    log_format: _LogFormat = None,
    settings: _Set = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the settings in effect as TOML and exit.")
    ] = False,
) -> None:
    """Run the daemon until SIGTERM or Ctrl-C. Its sessions live on and are found again."""
    flags: dict[str, Any] = {
        "data_dir": data_dir,
        "runtime_dir": runtime_dir,
        "listen": listen,
        "workspace_roots": workspace_root,
        "log": {"level": log_level, "format": log_format},
    }
    config = _load(config_file, flags, settings)
    if print_config:
        typer.echo(config.to_toml(), nl=False)
        raise typer.Exit
    logs.setup(config.log)
    _run(config)


def _run(config: Config) -> None:
    # Not at the top: gRPC reads its variables when it is imported.
    from sessiond_server import daemon, directories, server, store

    def announce(addresses: Sequence[ListenAddress]) -> None:
        typer.echo(_announcement(config, addresses))

    try:
        asyncio.run(daemon.serve(config, announce))
    except (ConfigError, directories.InUse, server.CannotServe) as error:
        raise _failure(error) from error
    except store.StoreTooNew as error:
        raise _failure(f"{config.data_dir}: {error}") from error
    except (store.StorageFull, sqlite3.DatabaseError) as error:
        raise _failure(f"{config.data_dir}: {error}; nothing was changed") from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        where = error.filename or config.data_dir
        hint = "; make room there" if full else ""
        raise _failure(f"{where}: {error.strerror or error}{hint}") from error


@app.command()
def doctor(
    config_file: _ConfigFile = None,
    data_dir: _DataDir = None,
    runtime_dir: _RuntimeDir = None,
    settings: _Set = None,
) -> None:
    """Check drivers, directories and leftovers; exit 1 when something is wrong."""
    from sessiond_server.doctor import examine

    config = _load(config_file, {"data_dir": data_dir, "runtime_dir": runtime_dir}, settings)
    try:
        findings = asyncio.run(examine(config))
    except (ConfigError, OSError) as error:
        raise _failure(error) from error
    for finding in findings:
        mark = typer.style(f"{finding.verdict:5}", fg=_COLORS[finding.verdict])
        typer.echo(f"{mark} {finding.subject}: {finding.text}")
    if any(finding.verdict == "wrong" for finding in findings):
        raise typer.Exit(1)


_BackupFile = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]


@app.command()
def backup(
    file: _BackupFile,
    config_file: _ConfigFile = None,
    data_dir: _DataDir = None,
    settings: _Set = None,
) -> None:
    """Write all transcripts and attachments to FILE, a tar; the daemon may run meanwhile."""
    from sessiond_server import backup as backups

    config = _load(config_file, {"data_dir": data_dir}, settings)
    # What is unfinished is removed, also when the machine is shut down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        saved = backups.backup(config, file)
    except (backups.BackupError, OSError, sqlite3.Error) as error:
        raise _failure(error) from error
    size = f"{saved.size_bytes / 2**20:.1f} MiB"
    typer.echo(f"{saved.sessions} sessions and {saved.attachments} attachments in {file}, {size}")
    if saved.missing:
        text = f"{saved.missing} attachments are not in it: their files are gone from {config.data_dir}"
        typer.echo(f"sessiond: {text}", err=True)


@app.command()
def restore(
    file: _BackupFile,
    config_file: _ConfigFile = None,
    data_dir: _DataDir = None,
    settings: _Set = None,
) -> None:
    """Put what FILE holds into an empty data directory, before the daemon is started on it."""
    from sessiond_server import backup as backups
    from sessiond_server import directories

    config = _load(config_file, {"data_dir": data_dir}, settings)
    try:
        asyncio.run(backups.restore(config, file))
    except (backups.BackupError, directories.InUse, ConfigError, OSError) as error:
        raise _failure(error) from error
    typer.echo(f"restored to {config.data_dir}; its sessions are exited, Control restart goes on")


def _load(file: Path | None, flags: dict[str, Any], settings: list[str] | None) -> Config:
    try:
        for item in settings or ():
            _set(flags, item)
        return Config.load(file, _given(flags))
    except ConfigError as error:
        raise _failure(error) from error


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that were on the command line."""
    nested = {k: _given(v) if isinstance(v, dict) else v for k, v in flags.items()}
    return {key: value for key, value in nested.items() if value not in (None, [], {})}


def _set(flags: dict[str, Any], item: str) -> None:
    path, equals, text = item.partition("=")
    if not equals:
        raise ConfigError(f"--set {item}: write KEY=VALUE")
    *tables, key = path.split(".")
    for name in tables:
        table = flags.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {path}: {name} is no table")
        flags = table
    try:
        flags[key] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        # Bare words need no quotes.
        flags[key] = text


def _announcement(config: Config, addresses: Sequence[ListenAddress]) -> str:
    lines = [f"sessiond {installed_version('sessiond')} is serving on"]
    for address in addresses:
        note = "" if isinstance(address, UnixAddress) else f"  (token in {config.token_file})"
        lines.append(f"  {address}{note}")
    here = (
        ""
        if config.runtime_dir == Config().runtime_dir
        else f"SESSIOND_RUNTIME_DIR={config.runtime_dir} "
    )
    lines += ["Next, in another terminal:", f"  {here}{_client()} new --driver echo"]
    return "\n".join(lines)


def _client() -> str:
    """Return what to type for the client that was installed with this daemon."""
    beside = Path(sys.argv[0]).with_name("sessionctl")
    on_path = shutil.which("sessionctl")
    if on_path is not None and Path(on_path).resolve() == beside.resolve():
        return "sessionctl"
    return str(beside) if beside.exists() else "sessionctl"


def _failure(error: Exception | str) -> typer.Exit:
    typer.echo(f"sessiond: {error}", err=True)
    return typer.Exit(1)
