"""The routing ConfigMap: settings and centroid sets for routers, and the operator's memory of activations. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eldr import contract
from eldr_operator import clock, meta
from eldr_operator.models import CentroidSet, EldrDeployment

Object = dict[str, Any]

MEMORY_KEY = "activation.json"
"""Read by the operator only: ``{"previous": SET | null, "activatedAt", "stagedAt": time | null, "reason": str}``.
It stands beside the routing table, so that both change in one write."""


@dataclass(frozen=True, slots=True)
class Table:
    """Which centroid sets routers use.

    Parameters
    ----------
    epoch : int
        Grows by one with every change of ``active``.
    active, staged, previous : CentroidSet or None
    activated_at, staged_at : datetime or None
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
    def sets(self) -> list[CentroidSet]:
        """The sets whose shards must stay readable."""
        return [found for found in (self.active, self.staged, self.previous) if found is not None]

    @property
    def shards(self) -> list[str]:
        """Names of their ConfigMaps."""
        return [shard.name for found in self.sets for shard in found.shards]


def config_map(cr: EldrDeployment, table: Table) -> Object:
    """Return the routing ConfigMap; its format is told at :data:`eldr.contract.ROUTING_VERSION`."""
    spec = cr.spec
    routing = {
        "version": contract.ROUTING_VERSION,
        "model": cr.served_model,
        "epoch": table.epoch,
        "policy": spec.router.policy,
        "tau": spec.router.tau,
        "min_candidates": spec.router.min_candidates,
        "max_load": spec.router.max_load,
        "domains": [domain.model_dump() for domain in spec.router.domains],
        "max_in_flight": spec.router.max_in_flight_per_decode,
        "sample_rate": spec.signatures.sample_percent / 100,
        "lease_seconds": float(spec.engine.lease_seconds),
        "slots": spec.decode.replicas,
        "active": _dump(table.active),
        "staged": _dump(table.staged),
    }
    memory = {
        "previous": _dump(table.previous),
        "activatedAt": table.activated_at and clock.stamp(table.activated_at),
        "stagedAt": table.staged_at and clock.stamp(table.staged_at),
        "reason": table.reason,
    }
    head = meta.manifest("v1", "ConfigMap", cr, contract.routing_name(cr.name), meta.ROUTER)
    return head | {"data": {contract.ROUTING_KEY: _json(routing), MEMORY_KEY: _json(memory)}}


def read(live: Mapping[str, Any] | None, last_epoch: int = 0) -> Table:
    """Return the table of a live ConfigMap.

    An absent or damaged one is an empty table, written anew; it goes on from ``last_epoch``, because an epoch must
    never name two tables.
    """
    try:
        data = (live or {})["data"]
        routing = json.loads(data[contract.ROUTING_KEY])
        memory = json.loads(data.get(MEMORY_KEY, "{}"))
        return Table(
            epoch=int(routing["epoch"]),
            active=_load(routing["active"]),
            staged=_load(routing["staged"]),
            previous=_load(memory.get("previous")),
            activated_at=clock.read(memory.get("activatedAt")),
            staged_at=clock.read(memory.get("stagedAt")),
            reason=str(memory.get("reason", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return Table(epoch=last_epoch)


def _load(pointer: Object | None) -> CentroidSet | None:
    return None if pointer is None else CentroidSet.model_validate(pointer)


def _dump(pointer: CentroidSet | None) -> Object | None:
    return None if pointer is None else pointer.model_dump(mode="json")


def _json(value: Object) -> str:
    return json.dumps(value, indent=1, sort_keys=True)
