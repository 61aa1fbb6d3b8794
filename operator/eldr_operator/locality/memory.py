"""Everything about locality that the operator must not forget, beside the routing table in one ConfigMap. Pure.

The status shows it and holds nothing of its own. Whoever writes says which version it has read, so that of two operators,
or of two passes, one always starts from what the other has left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from eldr import contract
from eldr_operator import clock, meta
from eldr_operator.conditions import NO_SET
from eldr_operator.drift.state import State
from eldr_operator.locality import drift_day, routing
from eldr_operator.locality.drift_day import Day
from eldr_operator.locality.routing import Table
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]

KEY = "memory.json"
"""Read by the operator only: ``{"previous": SET | null, "activatedAt", "stagedAt": time | null, "reason": str,
"history": [...], "refit": {...},
"drift": {...}, "driftDay": {...}, "baselines": {digest: {...}}, "protective": bool}``; history, refit and driftDay are as
``status`` shows them."""
HISTORY = 10


@dataclass(frozen=True, slots=True)
class Memory:
    """What one pass leaves to the next.

    Parameters
    ----------
    table : Table
        Which centroid sets routers use.
    history : tuple of dict
        Activations, as ``status.history`` shows them, the latest last.
    refit : dict
        Of the schedule and the last fit, as ``status.refit`` shows it.
    drift : State
        What is known of drift.
    day : tuple of HalfHour
        The drift score of the last day, the oldest first.
    baselines : dict
        What fits expected of the sets in use, by digest; empty where a fit stored nothing.
    protective : bool
        Whether JSQ is in effect in place of a set that harms.
    """

    table: Table = field(default_factory=Table)
    history: tuple[Object, ...] = ()
    refit: Object = field(default_factory=dict)
    drift: State = field(default_factory=State)
    day: Day = ()
    baselines: Object = field(default_factory=dict)
    protective: bool = False

    def with_table(self, table: Table) -> Memory:
        """Return it with a new table; an activation becomes history."""
        history = self.history
        if table.activated_at is not None and table.epoch > _last(history):
            entry = {
                "time": clock.stamp(table.activated_at),
                "fit": NO_SET if table.active is None else table.active.fit,
                "epoch": table.epoch,
                "reason": table.reason,
            }
            history = (*history, entry)[-HISTORY:]
        return replace(self, table=table, history=history)


def config_map(cr: EldrDeployment, memory: Memory) -> Object:
    """Return the routing ConfigMap."""
    table = memory.table
    told = {
        "previous": routing.dump(table.previous),
        "activatedAt": table.activated_at and clock.stamp(table.activated_at),
        "stagedAt": table.staged_at and clock.stamp(table.staged_at),
        "reason": table.reason,
        "history": memory.history,
        "refit": memory.refit,
        "drift": memory.drift.to_json(),
        "driftDay": drift_day.dump(memory.day),
        "baselines": memory.baselines,
        "protective": memory.protective,
    }
    head = meta.manifest("v1", "ConfigMap", cr, contract.routing_name(cr.name), meta.ROUTER)
    data = {
        contract.ROUTING_KEY: routing.document(cr, table, protective=memory.protective),
        KEY: json.dumps(told, indent=1, sort_keys=True),
    }
    return head | {"data": data}


def read(live: Mapping[str, Any] | None, status: Mapping[str, Any]) -> Memory:
    """Return what a live ConfigMap holds.

    Parameters
    ----------
    live : mapping or None
    status : mapping
        Of the deployment: if the ConfigMap is lost or damaged, the table is made anew, but goes on from the epoch that is
        shown there, because an epoch must never name two tables.
    """
    try:
        data = (live or {})["data"]
        table = routing.read(data[contract.ROUTING_KEY])
    except (KeyError, TypeError, ValueError, AttributeError):
        return _shown(status)
    try:
        told = json.loads(data[KEY])
        return Memory(
            table=replace(
                table,
                previous=routing.load(told["previous"]),
                activated_at=clock.read(told["activatedAt"]),
                staged_at=clock.read(told["stagedAt"]),
                reason=str(told["reason"]),
            ),
            history=tuple(dict(entry) for entry in told["history"]),
            refit=dict(told["refit"]),
            drift=State.model_validate(told["drift"]),
            day=drift_day.load(told.get("driftDay")),
            baselines=dict(told["baselines"]),
            protective=bool(told["protective"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return replace(_shown(status), table=table)


def _shown(status: Mapping[str, Any]) -> Memory:
    history = tuple(status.get("history") or ())
    day = drift_day.load((status.get("locality") or {}).get("driftDay"))
    return Memory(Table(epoch=_last(history)), history, dict(status.get("refit") or {}), day=day)


def _last(history: tuple[Object, ...]) -> int:
    return int(history[-1]["epoch"]) if history else 0
