"""A limit split between routers: who has what part of an engine, and what they tell each other of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from eldr_router.plan.affinity import seed

_seed = lru_cache(maxsize=4096)(seed)


class View(NamedTuple):
    """By what a limit is split: the routers' ids in order, and the limit per engine."""

    members: tuple[str, ...]
    limit: int

    def share(self, router: str, engine: str, held: int = 0) -> int:
        """Return a member's part of an engine, of which ``held`` places belong to nobody; engines differ in who gets the remainder."""
        count, limit = len(self.members), max(0, self.limit - held)
        if count == 1:
            return limit
        each, rest = divmod(limit, count)
        return each + ((self.members.index(router) - _seed(engine)) % count < rest)


class Report(NamedTuple):
    """What a router says of itself to the router that asks.

    ``rights`` is what it may have on each engine under its view, ``granted`` what it gave to the asker in its ``term``,
    ``got`` what it counts of the asker's grants, ``waiting`` its sequences without an engine, those refused lately too.
    ``prefill`` is what it has in flight on prefill engines: that ranks them, and is not limited. ``held`` is what members
    that left without a word had in flight when it last heard them, by their address. ``tokens`` of KV are what its
    sequences are expected to hold: they rank engines and tell which are full, and are not split. ``leaving`` says that it takes no new requests: room is lost on it.
    """

    router: str
    seq: int
    view: View
    term: int
    in_flight: Mapping[str, int]
    rights: Mapping[str, int]
    granted: Mapping[str, int]
    got: Mapping[str, int]
    waiting: int
    prefill: Mapping[str, int] = MappingProxyType({})
    held: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    tokens: Mapping[str, int] = MappingProxyType({})
    leaving: bool = False


@dataclass
class Rights:
    """A router's rights in one term, and what others hold beyond theirs.

    ``held`` is what members that left without a word had in flight, by address; None for one that was never heard. ``told``
    is what the other members say of that.
    """

    view: View
    got: dict[str, Mapping[str, int]] = field(default_factory=dict)
    given: dict[str, dict[str, int]] = field(default_factory=dict)
    excess: dict[str, Mapping[str, int]] = field(default_factory=dict)
    held: dict[str, Mapping[str, int] | None] = field(default_factory=dict)
    told: dict[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)

    def share(self, router: str, engine: str) -> int:
        """Return a member's part of what nobody holds who has left."""
        return self.view.share(router, engine, self._lost(engine) if self.held or self.told else 0)

    def _lost(self, engine: str) -> int:
        found: dict[str, int] = {}
        for said in (
            {at: counts for at, counts in self.held.items() if counts is not None},
            *self.told.values(),
        ):
            for address, counts in said.items():
                found[address] = max(found.get(address, 0), counts.get(engine, 0))
        unknown = len(self.held.keys() - found.keys())
        part = self.view.limit // (len(self.view.members) + unknown)  # as if each had its even part in flight
        return sum(found.values()) + unknown * part

    def rights(self, router: str, engine: str) -> int:
        """Return a router's part of an engine, given and taken."""
        total = self.share(router, engine)
        for granted in self.got.values():
            total += granted.get(engine, 0)
        for given in self.given.values():
            total -= given.get(engine, 0)
        return total

    def bound(self, router: str, engine: str) -> int:
        """Return the rights less what others still have beyond theirs."""
        return self.rights(router, engine) - sum(excess.get(engine, 0) for excess in self.excess.values())
