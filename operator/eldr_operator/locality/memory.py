"""Everything about locality that the operator must not forget, beside the routing table in one ConfigMap. Pure.

The status shows it and holds nothing of its own. Whoever writes says which version it has read, so that of two operators,
or of two passes, one always starts from what the other has left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from eldr import contract
from eldr_operator import border, clock, meta
from eldr_operator.conditions import NO_SET, PROTECTIVE, SERVES_AGAIN
from eldr_operator.drift.state import State
from eldr_operator.locality import drift_history, recovery, routing
from eldr_operator.locality.drift_history import Day
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
        Activations and protective periods, as ``status.history`` shows them, the latest last.
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

    def not_after(self, now: datetime) -> Memory:
        """Return it with no time that lies ahead: the clock was, when it was written."""
        table = self.table
        activated, staged = (at and min(at, now) for at in (table.activated_at, table.staged_at))
        table = replace(table, activated_at=activated, staged_at=staged)
        return replace(self, table=table, drift=recovery.not_after(self.drift, now))

    def with_protection(self, protective: bool, now: datetime) -> Memory:  # noqa: FBT001 - the one thing it is about
        """Return it with JSQ in effect or not; where the active set goes out of service, or comes back, that becomes history."""
        history, active = self.history, self.table.active
        reason = PROTECTIVE if protective else SERVES_AGAIN
        # another set may have followed the one that was out of service
        ended = bool(history) and (history[-1]["reason"], history[-1]["epoch"]) == (
            PROTECTIVE,
            self.table.epoch,
        )
        if active is not None and protective != ended and (protective or self.protective):
            entry = {"time": clock.stamp(now), "fit": active.fit, "epoch": self.table.epoch, "reason": reason}
            history = (*history, entry)[-HISTORY:]
        return replace(self, protective=protective, history=history)


def config_map(cr: EldrDeployment, memory: Memory) -> Object:
    """Return the routing ConfigMap."""
    head = meta.manifest("v1", "ConfigMap", cr, contract.routing_name(cr.name), meta.ROUTER)
    data = {
        contract.ROUTING_KEY: routing.document(cr, memory.table, protective=memory.protective),
        KEY: json.dumps(_told(memory), sort_keys=True, separators=(",", ":")),
    }
    return head | {"data": data}


def _told(memory: Memory) -> Object:
    table = memory.table
    return {
        "previous": routing.dump(table.previous),
        "activatedAt": table.activated_at and clock.stamp(table.activated_at),
        "stagedAt": table.staged_at and clock.stamp(table.staged_at),
        "reason": table.reason,
        "history": memory.history,
        "refit": memory.refit,
        "drift": memory.drift.to_json(),
        "driftDay": drift_history.dump(memory.day),
        "baselines": memory.baselines,
        "protective": memory.protective,
    }


def lost(live: Mapping[str, Any] | None, found: Memory) -> tuple[str, ...]:
    """Return what of a live ConfigMap could not be read as it stands.

    Parameters
    ----------
    found : Memory
        What :func:`read` made of it.
    """
    if live is None:
        return ()
    told = _stored(live)
    again = json.loads(json.dumps(_told(found)))
    return tuple(key for key in again if key in told and told[key] != again[key]) if told else (KEY,)


def read(live: Mapping[str, Any] | None, status: Mapping[str, Any]) -> Memory:
    """Return what a live ConfigMap holds.

    Parameters
    ----------
    status : mapping
        Of the deployment: if the ConfigMap is lost or damaged, the table is made anew, but goes on from the epoch that is
        shown there, because an epoch must never name two tables.
    """
    try:
        table = routing.read((live or {})["data"][contract.ROUTING_KEY])
    except (KeyError, TypeError, ValueError):
        return _shown(status)
    told = _stored(live)
    if not told:
        return replace(_shown(status), table=table)
    return Memory(
        table=replace(
            table,
            previous=recovery.pointer(told.get("previous")),
            activated_at=clock.read(told.get("activatedAt")),
            staged_at=clock.read(told.get("stagedAt")),
            reason=border.name(told.get("reason")),
        ),
        history=recovery.history(told.get("history"), HISTORY),
        refit=recovery.refit(told.get("refit")),
        drift=recovery.state(told.get("drift")),
        day=drift_history.load(told.get("driftDay")),
        baselines=recovery.baselines(told.get("baselines")),
        protective=told.get("protective") is True,
    )


def _stored(live: Mapping[str, Any] | None) -> Mapping[str, Any]:
    try:
        return recovery.mapping(border.load((live or {})["data"][KEY]))
    except (KeyError, TypeError, ValueError):
        return {}


def _shown(status: Mapping[str, Any]) -> Memory:
    history = recovery.history(status.get("history"), HISTORY)
    day = drift_history.load(recovery.mapping(status.get("locality")).get("driftDay"))
    return Memory(Table(epoch=_last(history)), history, recovery.refit(status.get("refit")), day=day)


def _last(history: tuple[Object, ...]) -> int:
    return int(history[-1]["epoch"]) if history else 0
