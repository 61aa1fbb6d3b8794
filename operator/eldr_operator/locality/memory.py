"""Everything about locality that the operator must not forget, beside the routing table in one ConfigMap. Pure.

Routers read the routing table, which is written from the memory. The status shows it and holds nothing of its own. Whoever
writes says which version it has read, so that of two operators, or of two passes, one always starts from what the other
has left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainSerializer

from eldr import contract
from eldr_operator import meta, parsing, records
from eldr_operator.conditions import NO_SET, PROTECTIVE, SERVES_AGAIN
from eldr_operator.drift import counts
from eldr_operator.drift.counts import Baseline
from eldr_operator.drift.state import State
from eldr_operator.locality import drift_history, routing
from eldr_operator.locality.drift_history import Day
from eldr_operator.locality.routing import Table
from eldr_operator.models import EldrDeployment
from eldr_operator.records import Count, Flag, Label, Name, Record, Time, read_by

Object = dict[str, Any]

KEY = "memory.json"
"""Read by the operator only: what :class:`Memory` holds."""
HISTORY = 10
_POINTERS = ("active", "staged")
_OF_ROUTERS = ("epoch", *_POINTERS)
"""What is in the routing table too, for a memory that is lost, or was written by a version that told it there only."""
_LONGEST_SCHEDULE = 4096


def _spec_text(value: object) -> str:
    """Return a text as it stands, because it is compared with one of the spec; empty where it cannot be one."""
    known = isinstance(value, str) and len(value) <= _LONGEST_SCHEDULE
    return str(value) if known and all(one.isprintable() or one.isspace() for one in str(value)) else ""


class Refit(Record):
    """What is remembered of the schedule and the last fit; ``status.refit``.

    Attributes
    ----------
    schedule : str
        With its time zone: that ``next_schedule_time`` was reckoned from.
    """

    schedule: Annotated[str, read_by(_spec_text)] = ""
    last_fit: Label = ""
    last_schedule_time: Time | None = None
    next_schedule_time: Time | None = None

    def to_json(self) -> Object:
        """Return it as the status shows it, without what is not known."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


class Entry(Record):
    """An activation, or that the active set went out of service or came back; an item of ``status.history``."""

    time: Time
    fit: Name
    epoch: Count
    reason: Name


class Memory(Record):
    """What one pass leaves to the next; ``history``, ``refit`` and ``day`` are as the status shows them.

    Attributes
    ----------
    history : tuple of Entry
        The latest last.
    baselines : dict
        What fits expected of the sets in use, by digest; None where a fit stored nothing.
    protective : bool
        Whether JSQ is in effect in place of a set that harms.
    replicas, replicas_since : int, datetime or None
        How many decode replicas are wanted, and since when.
    """

    table: Table = Table()
    history: Annotated[tuple[Entry, ...], AfterValidator(lambda entries: entries[-HISTORY:])] = ()
    refit: Refit = Refit()
    drift: State = State()
    day: Annotated[Day, read_by(drift_history.load), PlainSerializer(drift_history.dump)] = Field(
        default_factory=dict, alias="driftDay"
    )
    baselines: Annotated[
        dict[str, Baseline | None], read_by(counts.read_baselines), PlainSerializer(counts.dump)
    ] = Field(default_factory=dict)
    protective: Flag = False
    replicas: Count = 0
    replicas_since: Time | None = None

    def with_table(self, table: Table) -> Memory:
        """Return it with a new table; an activation becomes history."""
        changed = self.but(table=table)
        if table.activated_at is None or not table.reason or table.epoch <= self.epoch_of_history:
            return changed
        fit = NO_SET if table.active is None else table.active.fit
        return _noting(changed, table.activated_at, fit, table.reason)

    def with_replicas(self, count: int, now: datetime) -> Memory:
        """Return it with the number of decode replicas that are wanted now."""
        since = self.replicas_since if self.replicas == count else None
        return self.but(replicas=count, replicas_since=min(since or now, now))

    def not_after(self, now: datetime) -> Memory:
        """Return it with no time that lies ahead, but for what is to come: the clock was ahead, when it was written."""
        return self.but(table=records.not_after(self.table, now), drift=records.not_after(self.drift, now))

    def with_protection(self, protective: bool, now: datetime) -> Memory:  # noqa: FBT001 - the one thing it is about
        """Return it with JSQ in effect or not; where the active set goes out of service, or comes back, that becomes history."""
        changed, active = self.but(protective=protective), self.table.active
        # another set may have followed the one that was out of service
        last = self.history[-1] if self.history else None
        ended = last is not None and (last.reason, last.epoch) == (PROTECTIVE, self.table.epoch)
        if active is None or protective == ended or not (protective or self.protective):
            return changed
        return _noting(changed, now, active.fit, PROTECTIVE if protective else SERVES_AGAIN)

    @property
    def epoch_of_history(self) -> int:
        """The last one that history tells of."""
        return self.history[-1].epoch if self.history else 0


def _noting(memory: Memory, time: datetime, fit: str, reason: str) -> Memory:
    entry = Entry(time=time, fit=fit, epoch=memory.table.epoch, reason=reason)
    return memory.but(history=(*memory.history, entry)[-HISTORY:])


def config_map(cr: EldrDeployment, memory: Memory) -> Object:
    """Return the routing ConfigMap."""
    head = meta.manifest("v1", "ConfigMap", cr, contract.routing_name(cr.name), meta.ROUTER)
    data = {
        contract.ROUTING_KEY: routing.document(cr, memory.table, protective=memory.protective),
        KEY: json.dumps(_serialised(memory), sort_keys=True, separators=(",", ":")),
    }
    return head | {"data": data}


def _serialised(memory: Memory) -> Object:
    document = memory.to_json() | {"drift": memory.drift.to_json(), "refit": memory.refit.to_json()}
    table: Object = document.pop("table")
    return document | table


def lost(live: Mapping[str, Any] | None, memory: Memory) -> tuple[str, ...]:
    """Return what of a live ConfigMap could not be read as it stands, of which :func:`read` made a memory."""
    if live is None:
        return ()
    stored, again = _loaded(live, KEY), json.loads(json.dumps(_serialised(memory)))
    return tuple(key for key in again if key in stored and stored[key] != again[key]) if stored else (KEY,)


def read(live: Mapping[str, Any] | None, status: Mapping[str, Any]) -> Memory:
    """Return what a live ConfigMap holds.

    What is lost or damaged of the table is what routers have. Without that, it starts empty, in the epoch after the last one
    that the deployment's status shows, because an epoch must never name two tables.
    """
    stored, routers = _loaded(live, KEY), _loaded(live, contract.ROUTING_KEY)
    if not stored:
        day = _mapping(status.get("locality")).get("driftDay")
        stored = {"history": status.get("history"), "refit": status.get("refit"), "driftDay": day}
    epoch = parsing.count(stored.get("epoch"))
    if epoch is None:
        stored |= {key: routers.get(key) for key in _OF_ROUTERS}
        epoch = parsing.count(stored["epoch"])
    elif epoch == parsing.count(routers.get("epoch")):
        table = records.read(Table, stored)
        bad = [key for key in _POINTERS if getattr(table, key) is None and stored.get(key, "") is not None]
        stored |= {key: routers.get(key) for key in bad}
    memory = records.read(Memory, stored | {"table": stored})
    if epoch is None:
        return memory.but(table=Table(epoch=memory.epoch_of_history + bool(memory.history)))
    return memory.but(history=tuple(entry for entry in memory.history if entry.epoch <= epoch))


def _loaded(live: Mapping[str, Any] | None, key: str) -> Object:
    try:
        return _mapping(parsing.load((live or {})["data"][key]))
    except (KeyError, TypeError, ValueError):
        return {}


def _mapping(value: object) -> Object:
    return value if isinstance(value, dict) else {}
