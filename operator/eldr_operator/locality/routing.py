"""The routing table: settings and centroid sets for routers. Pure."""

from __future__ import annotations

import json
from typing import Annotated, Any

from eldr import contract
from eldr_operator.conditions import ROLLED_BACK
from eldr_operator.models import CentroidSet, EldrDeployment
from eldr_operator.records import Complete, Count, Label, Record, Time

Object = dict[str, Any]

Pointer = Annotated[CentroidSet, Complete]
POLICY_PROTECTIVE = "JSQ"


class Table(Record):
    """Which centroid sets routers use; the epoch grows by one with every change of ``active``, for the reason told."""

    epoch: Count = 0
    active: Pointer | None = None
    staged: Pointer | None = None
    previous: Pointer | None = None
    activated_at: Time | None = None
    staged_at: Time | None = None
    reason: Label = ""

    @property
    def rolled_back_to_none(self) -> bool:
        """Whether the last set was taken out of use, and no other serves."""
        return self.active is None and self.reason == ROLLED_BACK

    @property
    def sets(self) -> list[CentroidSet]:
        """The sets whose shards must stay readable."""
        return [pointer for pointer in (self.active, self.staged, self.previous) if pointer is not None]

    @property
    def shards(self) -> list[str]:
        """Names of their ConfigMaps."""
        return [shard.name for pointer in self.sets for shard in pointer.shards]


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
        "min_prefill_tokens": spec.router.min_prefill_tokens,
        "sample_rate": spec.signatures.sample_percent / 100,
        "lease_seconds": float(spec.engine.lease_seconds),
        "slots": spec.decode.replicas,
        "active": dump(table.active),
        "staged": dump(table.staged),
    }
    # what is not set is left to the options among spec.router.args
    waiting = {
        "max_waiting": spec.router.max_waiting,
        "max_wait_seconds": spec.router.max_wait_seconds,
    }
    routing |= {name: value for name, value in waiting.items() if value is not None}
    return json.dumps(routing, indent=1, sort_keys=True)


def dump(pointer: CentroidSet | None) -> Object | None:
    """Write a pointer to a set."""
    return None if pointer is None else pointer.model_dump(mode="json")
