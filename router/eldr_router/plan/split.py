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

    def share(self, router: str, engine: str) -> int:
        """Return a member's part of an engine; engines differ in who gets the remainder."""
        count = len(self.members)
        if count == 1:
            return self.limit
        each, rest = divmod(self.limit, count)
        return each + ((self.members.index(router) - _seed(engine)) % count < rest)


class Report(NamedTuple):
    """What a router says of itself to the router that asks.

    ``rights`` is what it may have on each engine under its view, ``granted`` what it gave to the asker in its ``turn``,
    ``got`` what it counts of the asker's grants, ``waiting`` its sequences without an engine, those refused lately too.
    ``prefill`` is what it has in flight on prefill engines: that ranks them, and is not limited.
    """

    router: str
    seq: int
    view: View
    turn: int
    in_flight: Mapping[str, int]
    rights: Mapping[str, int]
    granted: Mapping[str, int]
    got: Mapping[str, int]
    waiting: int
    prefill: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class Rights:
    """A router's rights under one view, and what others hold beyond theirs."""

    view: View
    got: dict[str, Mapping[str, int]] = field(default_factory=dict)
    given: dict[str, dict[str, int]] = field(default_factory=dict)
    excess: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def rights(self, router: str, engine: str) -> int:
        """Return a router's part of an engine, given and taken."""
        total = self.view.share(router, engine)
        for granted in self.got.values():
            total += granted.get(engine, 0)
        for given in self.given.values():
            total -= given.get(engine, 0)
        return total

    def bound(self, router: str, engine: str) -> int:
        """Return the rights less what others still have beyond theirs."""
        return self.rights(router, engine) - sum(excess.get(engine, 0) for excess in self.excess.values())
