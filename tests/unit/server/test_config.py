"""The configuration: who wins, what is refused, what is printed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from sessiond_server.config import Config, ConfigError, TcpAddress, UnixAddress, parse_address


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import os

    for name in list(os.environ):
        if name.startswith(("SESSIOND_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(home: Path, text: str) -> Path:
    path = home / ".config" / "sessiond" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_flags_win_over_environment_over_file_over_defaults(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        home,
        'log.format = "json"\n[limits]\nmax_sessions = 1\nmax_queue_length = 1\nmax_subscribers = 1\n',
    )
    monkeypatch.setenv("SESSIOND_LIMITS__MAX_QUEUE_LENGTH", "2")
    monkeypatch.setenv("SESSIOND_LIMITS__MAX_SUBSCRIBERS", "2")
    config = Config.load(flags={"limits": {"max_subscribers": 3}})
    limits = config.limits
    assert (limits.max_sessions, limits.max_queue_length, limits.max_subscribers) == (1, 2, 3)
    assert config.log.format == "json"
    assert limits.max_chunk_bytes == 1024 * 1024


def test_directories_follow_the_variables(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.load()
    assert config.data_dir == home / ".local/share/sessiond"
    assert config.runtime_dir == config.data_dir / "run"
    assert config.token_file == config.runtime_dir / "token"
    assert config.addresses() == (
        UnixAddress(config.runtime_dir / "sessiond.sock"),
        TcpAddress("127.0.0.1", 7419),
    )
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg/data")
    assert Config.load().runtime_dir == Path("/xdg/data/sessiond/run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/xdg/run")
    assert Config.load().runtime_dir == Path("/xdg/run/sessiond")
    monkeypatch.setenv("SESSIOND_DATA_DIR", "/data")
    monkeypatch.setenv("SESSIOND_RUNTIME_DIR", "/run/it")
    config = Config.load()
    assert (config.data_dir, config.token_file) == (Path("/data"), Path("/run/it/token"))
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.delenv("SESSIOND_DATA_DIR")
    assert Config.load().data_dir == home / ".local/share/sessiond"


def test_workspaces_are_below_home_and_the_current_directory(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Config.load().workspace_roots == (home,)
    other = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(other)
    assert Config.load().workspace_roots == (home, other)
    monkeypatch.chdir("/")
    assert Config.load().workspace_roots == (home,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limit = 3", "limit: there is no such setting"),
        ("[limits]\nmax_sesions = 3", "limits.max_sesions: there is no such setting"),
        (
            "[limits]\nmax_sessions = 0",
            "limits.max_sessions: Input should be greater than or equal to 1",
        ),
        ("[limits]\nmax_text_bytes = 2000000", "lower the one to 1024000 or raise the other to 2024576"),
        ("[limits]\nmax_event_bytes = 40000", "limits: a text of max_text_bytes (524288) does not fit"),
        ('listen = ["nowhere"]', "listen: 'nowhere' is no address"),
        ("listen = []", "listen: needs at least one address"),
        ('listen = ["unix:relative"]', "needs an absolute path"),
        ('listen = ["127.0.0.1:65536"]', "is no address"),
        ("workspace_roots = []", "workspace_roots: needs at least one directory"),
        ('[tls]\ncert = "a.pem"', "tls: cert and key belong together"),
        ('[tls]\nclient_ca = "a.pem"', "tls: ca and client_ca need cert and key"),
        ('[store]\nsynchronous = "off"', "store.synchronous: Input should be 'normal' or 'full'"),
        ("x = = 1", "config.toml: "),
    ],
)
def test_a_bad_file_is_refused_by_name(home: Path, text: str, said: str) -> None:
    write(home, text)
    with pytest.raises(ConfigError) as caught:
        Config.load()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "default factory" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("SESSIOND_LIMIT", "SESSIOND_LIMIT is no setting"),
        ("SESSIOND_LIMITS__MAX_SESIONS", "limits.max_sesions: there is no such setting"),
        ("SESSIOND_DRIVERS__ECHO__ENV__KEY", "set SESSIOND_DRIVERS to a JSON object"),
        ("SESSIOND_DRIVERS", "environment: "),
    ],
)
def test_a_bad_variable_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, said: str
) -> None:
    monkeypatch.setenv(variable, "not json")
    with pytest.raises(ConfigError) as caught:
        Config.load()
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["ADDRESS", "TOKEN", "TLS_CA", "TLS_CERT", "TLS_KEY"])
def test_what_clients_read_is_let_pass(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"SESSIOND_{name}", "x")
    assert Config.load().tls.cert is None


def test_lists_and_drivers_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIOND_LISTEN", "127.0.0.1:0, [::1]:7000")
    monkeypatch.setenv("SESSIOND_WORKSPACE_ROOTS", "/a,~/b")
    monkeypatch.setenv("SESSIOND_DRIVERS", '{"echo": {"env": {"Key": "v"}}}')
    config = Config.load()
    assert config.addresses() == (TcpAddress("127.0.0.1", 0), TcpAddress("::1", 7000))
    assert config.workspace_roots == (Path("/a"), Path.home() / "b")
    assert config.drivers == {"echo": {"env": {"Key": "v"}}}


def test_a_named_file_must_exist(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        Config.load(home / "absent.toml")


def test_printed_it_gives_itself_again_but_for_secrets(home: Path) -> None:
    path = write(home, 'drain_grace = 2.5\n[drivers.echo]\nbinary = "b"\nenv = {KEY = "hunter2"}\n')
    config = Config.load(path)
    printed = config.to_toml()
    assert "hunter2" not in printed
    again = home / "again.toml"
    again.write_text(printed)
    assert Config.load(again).model_dump(exclude={"drivers"}) == config.model_dump(exclude={"drivers"})
    assert tomllib.loads(printed)["drivers"] == {"echo": {"binary": "b", "env": {"KEY": "[not shown]"}}}


def test_every_setting_is_described() -> None:
    def undescribed(model: type, prefix: str = "") -> list[str]:
        missing: list[str] = []
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            kind = field.annotation
            if isinstance(kind, type) and hasattr(kind, "model_fields"):
                missing += undescribed(kind, f"{prefix}{name}.")
            elif not field.description:
                missing.append(prefix + name)
        return missing

    assert undescribed(Config) == []


@pytest.mark.parametrize("text", ["unix:/run/s.sock", "127.0.0.1:0", "[::1]:7419", "localhost:1"])
def test_addresses_print_as_they_are_written(text: str) -> None:
    assert str(parse_address(text)) == text


def test_it_can_not_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config.load().drain_grace = 3.0
