"""Writes the status of a deployment, from what both reconciliations have found of it last."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from eldr import contract
from eldr_operator.clock import Clock
from eldr_operator.errors import Problem
from eldr_operator.kube.cache import Cache
from eldr_operator.kube.recorder import Recorder
from eldr_operator.locality.outcome import Outcome
from eldr_operator.models import EldrDeployment, parse
from eldr_operator.status import status
from eldr_operator.workloads.roles import Workloads

Key = tuple[str, str]
Of = tuple[str, int]
"""Uid and generation of the deployment that something was found of."""


@dataclass(slots=True)
class _Observed:
    workloads: tuple[Of, Sequence[Problem], Workloads] | None = None
    locality: tuple[Of, Outcome] | None = None
    writes: asyncio.Lock = field(default_factory=asyncio.Lock)


class Reporter:
    """Keeps what was found last, and writes what follows; nothing before both have looked at the same generation."""

    def __init__(self, cache: Cache, recorder: Recorder, clock: Clock) -> None:
        self._cache = cache
        self._recorder = recorder
        self._clock = clock
        self._observed: dict[Key, _Observed] = {}

    async def workloads(self, cr: EldrDeployment, problems: Sequence[Problem], running: Workloads) -> None:
        """Take what runs."""
        observed = self._of(cr)
        observed.workloads = (_of(cr), problems, running)
        await self._write(cr, observed)

    async def locality(self, cr: EldrDeployment, outcome: Outcome) -> None:
        """Take what was decided about centroids."""
        observed = self._of(cr)
        observed.locality = (_of(cr), outcome)
        await self._write(cr, observed)

    def forget(self, key: Key) -> None:
        """Drop what is known of a deployment that is gone."""
        self._observed.pop(key, None)

    def _of(self, cr: EldrDeployment) -> _Observed:
        return self._observed.setdefault((cr.namespace, cr.name), _Observed())

    async def _write(self, cr: EldrDeployment, observed: _Observed) -> None:
        # one after the other: each starts from the status that the other has left
        async with observed.writes:
            body = self._cache.get(contract.KIND_DEPLOYMENT, cr.namespace, cr.name)
            if body is None or observed.workloads is None or observed.locality is None:
                return
            cr, now = parse(EldrDeployment, body), self._clock()
            (of_workloads, problems, running), (of_locality, outcome) = observed.workloads, observed.locality
            if of_workloads == of_locality == _of(cr):
                await self._recorder.deployment(cr, status(cr, problems, running, outcome, now), now)


def _of(cr: EldrDeployment) -> Of:
    return cr.metadata.uid, cr.metadata.generation
