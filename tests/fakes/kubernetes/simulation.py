"""A cluster in virtual time: the store, its controllers, and a client that tests use as that of a real one."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from eldr_operator import clock
from eldr_operator.kube.api import RESOURCES
from tests.fakes.kubernetes.controllers import Controllers
from tests.fakes.kubernetes.loop import VirtualLoop
from tests.fakes.kubernetes.store import Object, Store
from tests.support.kube import Conditions

T = TypeVar("T")
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_STEP_SECONDS = 0.25
_USER = "kubectl"


class Simulation:
    """A cluster without operators.

    Parameters
    ----------
    seed : int
        Of everything that is left to chance.

    Attributes
    ----------
    programs : list of Task
        None of which may end by itself.
    addresses : dict
        What listens where.
    numbers : iterator of int
        For addresses.
    """

    def __init__(self, seed: int) -> None:
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.draw = random.Random(seed)
        self.store = Store(lambda: clock.stamp(self.now()))
        self.controllers = Controllers(self.store)
        self.programs: list[asyncio.Task[None]] = []
        self.addresses: dict[str, Any] = {}
        self.numbers = itertools.count(1)

    def now(self) -> datetime:
        """Return the time, to the second."""
        return (_BEGIN + timedelta(seconds=self.loop.time())).replace(microsecond=0)

    def until(
        self,
        condition: Callable[[], T],
        what: str,
        seconds: float = 60.0,
        show: Callable[[], object] | None = None,
    ) -> T:
        """Let time pass until the condition is true; fail with ``what``, and with what ``show`` returns, when it never is."""
        end = self.loop.time() + seconds
        while True:
            self.controllers.step()
            if value := condition():
                return value
            if self.loop.time() > end:
                seen = f"; last seen: {show()}" if show else ""
                raise AssertionError(f"timed out after {seconds:.0f} s waiting for {what}{seen}")
            self.pass_(_STEP_SECONDS)

    def pass_(self, seconds: float) -> None:
        """Let time pass; raise what a program of the cluster has ended with."""
        self.loop.run_until_complete(asyncio.sleep(seconds))
        for program in self.programs:
            if program.done():
                program.result()

    def close(self) -> None:
        """End what still runs."""
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            _, left = self.loop.run_until_complete(asyncio.wait(tasks, timeout=60.0))
            assert not left, f"not over a minute after they were cancelled: {left}"
        asyncio.set_event_loop(None)
        self.loop.close()


class SimulatedKube(Conditions):
    """Requests of a person in one namespace, as :class:`tests.support.kube.Kube` has them."""

    def __init__(self, simulation: Simulation, namespace: str) -> None:
        self.simulation, self.namespace = simulation, namespace
        self._store = simulation.store
        self.until, self.now = simulation.until, simulation.now

    def get(self, kind: str, name: str) -> Object:
        return self._store.get(kind, self.namespace, name)

    def find(self, kind: str, name: str) -> Object | None:
        return self._store.find(kind, self.namespace, name)

    def list(self, kind: str, labels: str = "") -> list[Object]:
        return self._store.list(kind, self.namespace, labels)

    def create(self, kind: str, metadata: Object, **fields: Any) -> Object:
        head = {"apiVersion": RESOURCES[kind].api_version, "kind": kind}
        return self._store.create(
            {**head, "metadata": {"namespace": self.namespace, **metadata}, **fields}, _USER
        )

    def merge(self, kind: str, name: str, body: Object, subresource: str = "") -> Object:
        return self._store.merge((kind, self.namespace, name), body, _USER, subresource)

    def strategic(self, kind: str, name: str, body: Object, subresource: str = "") -> Object:
        return self.merge(kind, name, body, subresource)

    def delete(self, kind: str, name: str) -> None:
        self._store.delete((kind, self.namespace, name))
