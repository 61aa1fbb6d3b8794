"""Routers that share a pool and hear of each other late, and routers that refit their own centroids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eldr.core.policy import Policy
from eldr.core.profiles import Learned, Profiles
from eldr.core.signature import Floats
from eldr.core.tolls import Tolls
from eldr.simulate.routing import Placement
from eldr_lab.pool.rolling import Refits, Rolling
from eldr_lab.synthetic import routers as routing
from eldr_lab.synthetic.routers import Knowledge


@dataclass(frozen=True, slots=True)
class Churn:
    """What comes and goes.

    Attributes
    ----------
    joins : sequence of (int, float)
        Engines that are not there from the start, and when each comes, seconds.
    restarts : float
        When each router forgets its tolls and what it learned of engines, seconds.
    """

    joins: Sequence[tuple[int, float]] = ()
    restarts: float = math.inf


class Router(routing.Router):
    """One of several routers; it believes what the others tell of their requests.

    Parameters
    ----------
    name, policy, knowledge, seed
        As of :class:`eldr_lab.synthetic.routers.Router`.
    refits : Refits, optional
        In place of the centroids that it knows: what it refits them on.
    churn : Churn, optional
        Without, all stays as it is.
    """

    def __init__(  # noqa: PLR0917 - what it is, and what becomes of it
        self,
        name: str,
        policy: Policy,
        knowledge: Knowledge,
        seed: int,
        refits: Refits | None = None,
        churn: Churn | None = None,
    ) -> None:
        super().__init__(name, policy, knowledge, seed)
        self._told = [0] * len(knowledge.step_times)
        self._heard = False
        self._told_until = 0
        self._rolling = None if refits is None else Rolling(refits)
        self._churn = churn or Churn()
        self._restarts = self._churn.restarts

    @property
    def fits(self) -> int:
        """How often it has refitted its centroids."""
        return 0 if self._rolling is None else self._rolling.fits

    def place(self, record: int, now: float) -> Placement:
        """Choose an engine for a request, and count it there."""
        if now >= self._restarts:
            self._restarts = math.inf
            self._tolls = Tolls()
            if self._profiles is not None and self._unions is not None:
                self._profiles = Profiles(self._unions.shape.cells)
        return super().place(record, now)

    def table(self) -> dict[str, tuple[int, Floats]]:
        """Return what this router tells others of the experts of its requests."""
        return {} if self._unions is None else self._unions.table()

    def learned(self) -> dict[str, Learned]:
        """Return what this router tells others that it has learned of engines since it last told."""
        return {} if self._profiles is None else self._profiles.table(self._told_until)

    def has_told(self) -> None:
        """Take note that everybody has heard."""
        self._told_until = 0 if self._unions is None else self._unions.version

    def hear(self, others: Sequence[Router]) -> None:
        """Take what all other routers say of their own requests now."""
        self._heard = True
        self._told = [sum(column) for column in zip(*(other.in_flight for other in others), strict=True)]
        if self._unions is not None:
            for other in others:
                self._unions.merge(other.name, other.table())
        if self._profiles is not None:
            for other in others:
                self._profiles.merge(other.name, other.learned())

    def _slots(self, now: float) -> Sequence[int]:
        missing = {slot for slot, comes in self._churn.joins if comes > now}
        slots = super()._slots(now)
        return [slot for slot in slots if slot not in missing] if missing else slots

    def _loads(self) -> Sequence[int]:
        if not self._heard:
            return self._own
        return [own + told for own, told in zip(self._own, self._told, strict=True)]

    def _similarity(self, record: int, now: float) -> Sequence[float] | None:
        if self._rolling is not None:
            return self._rolling.similarity(record, now)
        return super()._similarity(record, now)


def exchange(routers: Sequence[Router]) -> None:
    """Let routers tell each other what each of them placed."""
    for router in routers:
        router.hear([other for other in routers if other is not router])
    for router in routers:
        router.has_told()
