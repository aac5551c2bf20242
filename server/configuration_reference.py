"""Write the reference of the daemon's configuration: every key, as Markdown, from the model itself.

Usage: python server/configuration_reference.py > configuration.md

proto/generate.py calls this; it needs the environment that the daemon runs in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sessiond_server.config import Config

_BOUNDS = {"ge": "from", "gt": "above", "le": "up to", "lt": "below"}

_HEAD = """\
<!-- Made by proto/generate.py from server/sessiond_server/config.py. Do not edit. -->

# Configuration of sessiond

Flags win over the environment, the environment over the file, the file over the defaults. The file is
TOML: the one given with `--config`, else `$XDG_CONFIG_HOME/sessiond/config.toml`, else
`~/.config/sessiond/config.toml` if it exists. An unknown key or `SESSIOND_` variable is an error.
`sessiond serve --print-config` prints what is in force, in the form of the file."""


def tables(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the tables below `model`, by name."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name, field.annotation


def rows(model: type[BaseModel], table: str = "") -> Iterator[str]:
    """Yield the rows of a table of keys."""
    below = dict(tables(model))
    for name, field in model.model_fields.items():
        if name not in below:
            key = f"{table}.{name}" if table else name
            variable = "SESSIOND_" + key.upper().replace(".", "__")
            meaning = " ".join((field.description or "").split()).replace("|", "\\|")
            yield f"| `{name}` | {_accepts(field)} | {_default(field)} | `{variable}` | {meaning} |"


def _accepts(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f'`"{value}"`' for value in get_args(field.annotation))
    bounds = {
        words: getattr(item, name)
        for item in field.metadata
        for name, words in _BOUNDS.items()
        if hasattr(item, name)
    }
    return ", ".join(f"{words} {value}" for words, value in bounds.items())


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None or field.default in (None, (), {}):
        return "see text"
    if isinstance(field.default, str):
        return f'`"{field.default}"`'
    return f"`{field.default}`"


def render() -> str:
    """Return the whole page."""
    columns = ["| key | accepts | default | environment | |", "|---|---|---|---|---|"]
    blocks = [_HEAD, "\n".join([*columns, *rows(Config)])]
    for name, model in tables(Config):
        about = " ".join((model.__doc__ or "").split()).partition(": ")[2]
        blocks.append(f"## `[{name}]`\n\n{about[:1].upper()}{about[1:]}")
        blocks.append("\n".join([*columns, *rows(model, name)]))
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
