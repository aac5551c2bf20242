"""A daemon that breaks one promise, once in a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from unittest.mock import patch

from sessiond_server.session import Core, Product
from sessiond_server.store import Step, Store
from tests.support.daemon import Daemon


def drop() -> None:
    """The last event of a step is not stored, as if it had been."""
    _on_product(lambda product: product.records.pop(), events=1, every=30)


def double() -> None:
    """The last event of a step is stored twice."""
    _on_product(lambda product: product.records.append(product.records[-1]), events=1, every=30)


def swap() -> None:
    """Two events of a step change places."""
    # On an idle machine a streamed event has a step of its own; a turn begins with several in one.
    _on_product(lambda product: product.records.insert(0, product.records.pop(1)), events=2, every=2)


def forget() -> None:
    """A step is said to be durable and is not."""
    commit, steps = Store.commit, count(1)

    def forgetful(store: Store, step: Step) -> asyncio.Future[None]:
        if next(steps) % 40 or step.state is not None:
            return commit(store, step)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    patch.object(Store, "commit", forgetful).start()


def repeat() -> None:
    """A message is written to the agent twice."""
    write, lines = Core.write, count(1)

    def repetitive(core: Core, kind: int, data: bytes) -> None:
        for _ in range(1 + (b'"message"' in data and next(lines) == 2)):
            write(core, kind, data)

    patch.object(Core, "write", repetitive).start()


def _on_product(spoil: Callable[[Product], object], *, events: int, every: int) -> None:
    """Spoil each `every`th of the steps that have at least so many events."""
    finish, steps = Core.finish, count(1)

    def spoiling(core: Core) -> Product:
        product = finish(core)
        if len(product.records) >= events and next(steps) % every == 0:
            spoil(product)
        return product

    patch.object(Core, "finish", spoiling).start()


SABOTAGE = {"drop": drop, "double": double, "swap": swap, "forget": forget, "repeat": repeat}


def sabotaged(how: str) -> type[Daemon]:
    """Return a kind of daemon that is sabotaged so."""

    class Sabotaged(Daemon):
        prelude = f"from {__name__} import SABOTAGE; SABOTAGE[{how!r}]()"

    return Sabotaged
