"""Routers that share a pool and hear of each other late, and routers that refit their own centroids."""

from __future__ import annotations

from collections.abc import Sequence

from eldr.core.policy import Policy
from eldr.core.signature import Floats
from eldr.simulate import routing
from eldr.simulate.routing import Knowledge
from eldr_lab.pool.rolling import Refits, Rolling


class Router(routing.Router):
    """One of several routers; it believes what the others tell of their requests.

    Parameters
    ----------
    name, policy, knowledge, seed
        As of :class:`eldr.simulate.routing.Router`.
    refits : Refits, optional
        In place of the centroids that it knows: what it refits them on.
    """

    def __init__(
        self, name: str, policy: Policy, knowledge: Knowledge, seed: int, refits: Refits | None = None
    ) -> None:
        super().__init__(name, policy, knowledge, seed)
        self._told = [0] * len(knowledge.step_times)
        self._heard = False
        self._rolling = None if refits is None else Rolling(refits)

    @property
    def fits(self) -> int:
        """How often it has refitted its centroids."""
        return 0 if self._rolling is None else self._rolling.fits

    def table(self) -> dict[str, tuple[int, Floats]]:
        """Return what this router tells others of the experts of its requests."""
        return {} if self._unions is None else self._unions.table()

    def hear(self, others: Sequence[Router]) -> None:
        """Take what all other routers say of their own requests now."""
        self._heard = True
        self._told = [sum(column) for column in zip(*(other.in_flight for other in others), strict=True)]
        if self._unions is not None:
            for other in others:
                self._unions.heard(other.name, other.table())

    def _loads(self) -> list[int]:
        if not self._heard:
            return self._own
        return [own + told for own, told in zip(self._own, self._told, strict=True)]

    def _similarity(self, record: int, now: float) -> list[float] | None:
        if self._rolling is not None:
            return self._rolling.similarity(record, now)
        return super()._similarity(record, now)


def exchange(routers: Sequence[Router]) -> None:
    """Let routers tell each other what each of them placed."""
    for router in routers:
        router.hear([other for other in routers if other is not router])
