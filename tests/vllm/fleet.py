"""The engines of a test run, of which only a few run at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from tests.vllm.engines import Engine, wait_for

START_SECONDS = 240.0


class Fleet:
    """The engines of a test run: started when first asked for, never more than three at a time.

    Parameters
    ----------
    engines : iterable of Engine
    most : int
        Engines at a time.
    """

    def __init__(self, engines: Iterable[Engine], most: int = 3) -> None:
        self._engines = {engine.name: engine for engine in engines}
        self._most = most

    def __getitem__(self, name: str) -> Engine:
        return self._engines[name]

    def up(self, *names: str) -> list[Engine]:
        """Return these engines, running; those missing are started together, others make room."""
        wanted = [self._engines[name] for name in names]
        assert len(wanted) <= self._most
        for engine in self._engines.values():
            if not engine.running():
                engine.stop()
        others = [e for e in self._engines.values() if e.running() and e not in wanted]
        missing = [engine for engine in wanted if not engine.running()]
        room = self._most - len(wanted)
        for engine in others[room:] if missing else ():
            engine.stop()
        for engine in missing:
            engine.start()
        for engine in missing:
            wait_for(engine.ready, f"engine {engine.name} to serve", START_SECONDS, engine.tail)
        return wanted

    def stop(self) -> None:
        """End them all."""
        for engine in self._engines.values():
            engine.stop()


@contextlib.contextmanager
def serving(*engines: Engine) -> Iterator[None]:
    """Have engines serve, and end them."""
    fleet = Fleet(engines, most=len(engines))
    try:
        fleet.up(*(engine.name for engine in engines))
        yield
    finally:
        fleet.stop()
