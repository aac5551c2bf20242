"""The daemon's configuration: flags over environment over a TOML file over defaults.

One frozen model. An unknown key is an error wherever it stands, and so is an unknown `SESSIOND_`
variable: a limit that was misspelt is a limit that does not hold. Nothing in here is a secret except the
drivers' `env` tables, which are never printed.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

__all__ = [
    "Config",
    "ConfigError",
    "Limits",
    "ListenAddress",
    "Log",
    "Store",
    "TcpAddress",
    "Tls",
    "UnixAddress",
    "parse_address",
]

_PREFIX = "SESSIOND_"
# Variables of the same family that only clients read.
_CLIENT_VARIABLES = frozenset(
    f"{_PREFIX}{name}" for name in ("ADDRESS", "TOKEN", "TLS_CA", "TLS_CERT", "TLS_KEY")
)
_HIDDEN = "[not shown]"

KIB = 1024
MIB = 1024 * KIB
# What an event with a client's text holds beside it: ids, names, 32 attachments with long names.
BESIDE_TEXT = 24 * KIB


class ConfigError(Exception):
    """The configuration can't be used; the text names the key and says what it accepts."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A unix socket; whoever may open its directory may use the daemon."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host (name or literal, no brackets) and a port; 0 picks a free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


ListenAddress: TypeAlias = UnixAddress | TcpAddress


def parse_address(text: str) -> ListenAddress:
    """Parse `unix:/path`, `host:port` or `[ipv6]:port`; raises ValueError saying so."""
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute():
            raise ValueError(f"{text!r}: a unix socket needs an absolute path")
        return UnixAddress(path)
    match = re.fullmatch(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>\d{1,5})", text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{text!r} is no address: write unix:/path, host:port or [ipv6]:port")
    return TcpAddress(match["v6"] or match["host"], int(match["port"]))


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Store(_Table):
    """`[store]`: the file that holds every transcript."""

    synchronous: Literal["normal", "full"] = "normal"
    """`normal` loses nothing when a process dies; `full` also survives a power cut, at the pace of the
    disk."""


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


_Path: TypeAlias = Annotated[Path, AfterValidator(_absolute)]


class Tls(_Table):
    """`[tls]`: set, every TCP address speaks TLS. All are PEM files."""

    cert: _Path | None = None
    """Certificate chain of the daemon (default: none, TCP on loopback only)."""

    key: _Path | None = None
    """Private key of `cert` (default: none)."""

    ca: _Path | None = None
    """What clients on this machine verify `cert` with; written to `address.json` (default: `cert`
    itself, right for a self-signed one)."""

    client_ca: _Path | None = None
    """Set, TCP clients must show a certificate that it signed, and its common name is the actor of their
    events (default: none)."""

    @model_validator(mode="after")
    def _check_pairs(self) -> Tls:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together: set both or neither")
        if self.cert is None and (self.ca is not None or self.client_ca is not None):
            raise ValueError("ca and client_ca need cert and key")
        return self


class Limits(_Table):
    """`[limits]`: told by GetServerInfo, enforced on every call."""

    max_text_bytes: Annotated[int, Field(ge=1, le=3 * MIB)] = 512 * KIB
    """Longest text of a message, answer (with its note) or command, in bytes of UTF-8; at least 24,576
    below `max_event_bytes`."""

    max_attachment_bytes: Annotated[int, Field(ge=1)] = 32 * MIB
    """Biggest attachment, in bytes."""

    max_chunk_bytes: Annotated[int, Field(ge=1, le=3 * MIB)] = MIB
    """Most data in one WriteAttachment call, in bytes."""

    max_event_bytes: Annotated[int, Field(ge=32 * KIB, le=3 * MIB)] = MIB
    """Biggest event, in bytes as encoded; longer output becomes an attachment with a preview."""

    max_batch_bytes: Annotated[int, Field(ge=KIB, le=3 * MIB)] = 256 * KIB
    """Events joined into one response stay under this many bytes (one bigger event goes alone)."""

    max_queue_length: Annotated[int, Field(ge=1)] = 100
    """Messages that may wait in one session."""

    max_sessions: Annotated[int, Field(ge=1)] = 1000
    """Sessions that exist at once, exited ones included."""

    max_subscribers: Annotated[int, Field(ge=1)] = 10_000
    """Open Subscribe streams, all sessions together."""

    @model_validator(mode="after")
    def _check_room(self) -> Limits:
        least = self.max_text_bytes + BESIDE_TEXT
        if self.max_event_bytes < least:
            raise ValueError(
                f"a text of max_text_bytes ({self.max_text_bytes}) does not fit in an event of "
                f"max_event_bytes ({self.max_event_bytes}): lower the one to "
                f"{self.max_event_bytes - BESIDE_TEXT} or raise the other to {least}"
            )
        return self


class Log(_Table):
    """`[log]`: what goes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least serious level that is written."""

    format: Literal["console", "json"] = "console"
    """`console` for people, `json` for one object per line."""


def _environment_dir(variable: str) -> Path | None:
    # The XDG rules: a relative path in one of these variables is to be ignored.
    value = os.environ.get(variable, "")
    return Path(value) if os.path.isabs(value) else None


def _default_data_dir() -> Path:
    base = _environment_dir("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return base / "sessiond"


def _default_runtime_dir(data: dict[str, Any]) -> Path:
    base = _environment_dir("XDG_RUNTIME_DIR")
    if base is not None:
        return base / "sessiond"
    # When data_dir itself was refused, pydantic still asks for the other defaults.
    data_dir: Path = data.get("data_dir") or _default_data_dir()
    return data_dir / "run"


def _default_listen(data: dict[str, Any]) -> tuple[str, ...]:
    runtime_dir: Path = data.get("runtime_dir") or _default_runtime_dir(data)
    return (f"unix:{runtime_dir / 'sessiond.sock'}", "127.0.0.1:7419")


def _default_token_file(data: dict[str, Any]) -> Path:
    runtime_dir: Path = data.get("runtime_dir") or _default_runtime_dir(data)
    return runtime_dir / "token"


def _default_workspace_roots() -> tuple[Path, ...]:
    home, here = Path.home(), Path.cwd()
    # A service manager starts daemons in "/", which would allow everything.
    return (home,) if here == Path("/") or here.is_relative_to(home) else (home, here)


class Config(BaseSettings):
    """Every setting of the daemon. Constructing it directly reads neither environment nor file."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
        use_attribute_docstrings=True,
    )

    data_dir: _Path = Field(default_factory=_default_data_dir)
    """Transcripts, attachments and running sessions (default `$XDG_DATA_HOME/sessiond`, else
    `~/.local/share/sessiond`); made with mode 0700."""

    runtime_dir: _Path = Field(default_factory=_default_runtime_dir)
    """Socket, token and `address.json` (default `$XDG_RUNTIME_DIR/sessiond`, else `<data_dir>/run`);
    made with mode 0700."""

    listen: Annotated[tuple[str, ...], NoDecode] = Field(default_factory=_default_listen)
    """Addresses to serve on: `unix:/path`, `host:port`, `[ipv6]:port`; port 0 picks a free one (default
    `unix:<runtime_dir>/sessiond.sock` and `127.0.0.1:7419`). TCP asks for the token; an address that is
    not loopback also needs `[tls]`. In the environment: separated by commas."""

    token_file: _Path = Field(default_factory=_default_token_file)
    """Holds the bearer token that TCP clients send (default `<runtime_dir>/token`); made with a random
    token and mode 0600 when it does not exist."""

    workspace_roots: Annotated[tuple[_Path, ...], NoDecode] = Field(
        default_factory=_default_workspace_roots
    )
    """A session's workspace must lie inside one of these, symbolic links resolved (default: the home
    directory, and the directory the daemon was started in unless that is `/`). In the environment:
    separated by commas."""

    heartbeat_interval: Annotated[float, Field(ge=0.05, le=300)] = 15.0
    """Seconds after which an idle Subscribe gets an empty response."""

    live_pause: Annotated[float, Field(ge=0, le=1)] = 0.005
    """Seconds a Subscribe waits after each live response, so that bursts travel together."""

    drain_grace: Annotated[float, Field(ge=0, le=600)] = 5.0
    """Seconds that running calls get to finish when the daemon is told to stop."""

    launch_timeout: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Seconds within which an agent's process must have started."""

    raw_log_cap: Annotated[int, Field(ge=MIB)] = 256 * MIB
    """Bytes of one agent's output that may wait to be recorded; beyond that the agent waits."""

    tls: Tls = Tls()
    store: Store = Store()
    limits: Limits = Limits()
    log: Log = Log()

    drivers: dict[str, dict[str, Any]] = {}
    """One table per driver, `[drivers.NAME]`: `binary`, `args`, `env` and what the driver adds (default:
    none). In the environment: one JSON object."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read from arguments alone; `load` puts them together."""
        return (init_settings,)

    @classmethod
    def load(cls, file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Config:
        """Read `file` (default: the standard place, if it is there), the environment and `flags`.

        `flags` are keys as in the file, nested tables as mappings. Raises ConfigError.
        """
        values = _read_file(file)
        _reject_unknown_variables(cls)
        try:
            environment = EnvSettingsSource(cls)()
        except ValueError as error:
            raise ConfigError(f"environment: {error}") from error
        values = _merged(_merged(values, environment), flags or {})
        try:
            return cls(**values)
        except ValidationError as error:
            raise ConfigError(_explain(error)) from error

    @field_validator("listen", "workspace_roots", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("needs at least one address")
        for text in value:
            parse_address(text)
        return value

    @field_validator("workspace_roots")
    @classmethod
    def _check_roots(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        if not value:
            raise ValueError("needs at least one directory, or no session can be created")
        return value

    def addresses(self) -> tuple[ListenAddress, ...]:
        """Return `listen`, parsed."""
        return tuple(parse_address(text) for text in self.listen)

    def to_toml(self) -> str:
        """Return the effective configuration as the file that would give it; no secret is in it."""
        values = self.model_dump(mode="json", exclude_none=True)
        for table in values["drivers"].values():
            if "env" in table:
                names = table["env"] if isinstance(table["env"], dict) else ()
                table["env"] = dict.fromkeys(names, _HIDDEN)
        return tomli_w.dumps(values)


def default_file() -> Path:
    """Return where the configuration file is looked for when none is named."""
    base = _environment_dir("XDG_CONFIG_HOME") or Path.home() / ".config"
    return base / "sessiond" / "config.toml"


def _read_file(file: Path | None) -> dict[str, Any]:
    path = default_file() if file is None else file
    if file is None and not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _reject_unknown_variables(model: type[Config]) -> None:
    known = {f"{_PREFIX}{name}".upper() for name in model.model_fields}
    for variable in sorted(os.environ):
        if not variable.upper().startswith(_PREFIX) or variable.upper() in _CLIENT_VARIABLES:
            continue
        name, _, below = variable.upper().partition("__")
        # What stands below a table is checked with the table.
        if name not in known:
            raise ConfigError(f"environment: {variable} is no setting of the daemon")
        # Names of variables lose their case on the way, and a driver's `env` table has names for keys.
        if below and name == f"{_PREFIX}DRIVERS":
            raise ConfigError(f"environment: {variable}: set {name} to a JSON object instead")


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(old, value) if both and isinstance(old, Mapping) else value
    return result


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False, include_input=False):
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "default_factory_not_called":
            continue  # it only follows from another entry
        if item["type"] == "extra_forbidden":
            lines.append(f"{key}: there is no such setting")
        else:
            text = item["msg"].removeprefix("Value error, ")
            lines.append(f"{key}: {text}" if key else text)
    return "; ".join(lines)
