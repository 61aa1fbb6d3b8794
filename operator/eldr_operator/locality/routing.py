"""The routing table: settings and centroid sets for routers. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eldr import contract
from eldr_operator import border
from eldr_operator.conditions import ROLLED_BACK
from eldr_operator.locality import recovery
from eldr_operator.models import CentroidSet, EldrDeployment

Object = dict[str, Any]


POLICY_PROTECTIVE = "JSQ"


@dataclass(frozen=True, slots=True)
class Table:
    """Which centroid sets routers use.

    Parameters
    ----------
    epoch : int
        Grows by one with every change of ``active``.
    reason : str
        Why ``active`` was activated.
    """

    epoch: int = 0
    active: CentroidSet | None = None
    staged: CentroidSet | None = None
    previous: CentroidSet | None = None
    activated_at: datetime | None = None
    staged_at: datetime | None = None
    reason: str = ""

    @property
    def rolled_back_to_none(self) -> bool:
        """Whether the last set was taken out of use, and no other serves."""
        return self.active is None and self.reason == ROLLED_BACK

    @property
    def sets(self) -> list[CentroidSet]:
        """The sets whose shards must stay readable."""
        return [found for found in (self.active, self.staged, self.previous) if found is not None]

    @property
    def shards(self) -> list[str]:
        """Names of their ConfigMaps."""
        return [shard.name for found in self.sets for shard in found.shards]


def document(cr: EldrDeployment, table: Table, *, protective: bool = False) -> str:
    """Return what routers read; its format is told at :data:`eldr.contract.ROUTING_VERSION`.

    Parameters
    ----------
    protective : bool
        The set harms: it stays loaded, so that routers tell how traffic looks to it, and JSQ places.
    """
    spec = cr.spec
    routing = {
        "version": contract.ROUTING_VERSION,
        "model": cr.served_model,
        "epoch": table.epoch,
        "policy": POLICY_PROTECTIVE if protective else spec.router.policy,
        "tau": spec.router.tau,
        "min_candidates": spec.router.min_candidates,
        "max_load": spec.router.max_load,
        "domains": [domain.model_dump() for domain in spec.router.domains],
        "max_in_flight": spec.router.max_in_flight_per_decode,
        "sample_rate": spec.signatures.sample_percent / 100,
        "lease_seconds": float(spec.engine.lease_seconds),
        "slots": spec.decode.replicas,
        "active": dump(table.active),
        "staged": dump(table.staged),
    }
    return json.dumps(routing, indent=1, sort_keys=True)


def read(text: str) -> Table:
    """Return what a document says of centroid sets; what routers need not know is not in it. Half a pointer is none.

    Raises
    ------
    ValueError
        If it is no document, or has no epoch.
    """
    told = recovery.mapping(border.load(text))
    if (epoch := border.count(told.get("epoch"))) is None:
        raise ValueError("epoch: expected a count")
    return Table(
        epoch=epoch, active=recovery.pointer(told.get("active")), staged=recovery.pointer(told.get("staged"))
    )


def dump(pointer: CentroidSet | None) -> Object | None:
    """Write a pointer to a set."""
    return None if pointer is None else pointer.model_dump(mode="json")
