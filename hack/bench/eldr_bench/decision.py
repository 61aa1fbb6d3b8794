"""CPU time of one routing decision: signature off the wire, similarities, unions, policy, occupancy; and a request that leaves.

Different requests come and go: with every one that joins, the oldest leaves. Every decision's policy and reason are kept, and the
unions are held against who is in flight; a pool that decided otherwise than its row says ends the program. Prints one JSON list of
figures, see ``__main__.py``.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from eldr.centroids import CentroidSet
from eldr.contract import POLICY_ELDR, POLICY_MARGINAL, ROLE_DECODE
from eldr.core.marginal import MarginalUnion
from eldr.core.union import MOST_LAYERS
from eldr.wire import ExpertCounts, encode_counts
from eldr_bench.machine import one_thread
from eldr_bench.proof import Unproven, require
from eldr_router.engines.endpoint import Occupancy
from eldr_router.engines.registry import Registry
from eldr_router.engines.spec import EndpointSpec
from eldr_router.placement.locality import Locality
from eldr_router.placement.placer import Placer
from eldr_router.placement.signature import NO_SIGNATURE, read_signature
from eldr_router.placement.table import RoutingDocument, make_table

LAYERS, EXPERTS, TOP_K, TOKENS = 48, 128, 8, 512
KINDS = 16
DIFFERENT = 509
"""Requests; prime, so that nobody joins as the like of him leaves."""
ROUNDS, REPEATS = 7, 300
IN_FLIGHT = 16
AIMS = {(POLICY_ELDR, 16, 0): 40.0, (POLICY_ELDR, 256, 0): 150.0, (POLICY_MARGINAL, 16, LAYERS): 100.0}
"""Microseconds, by policy, engines and layers of the unions, for signed requests: the last one is for all cells of all layers."""

Wire = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A pool: policy, engines, over how many layers unions are looked at.

    Attributes
    ----------
    mixed : bool
        Every second request is unsigned, and the row is about these.
    learned : bool
        There is no centroid set, so that the prior is the one that routers learn.
    """

    policy: str
    k: int
    layers: int = 0
    mixed: bool = False
    learned: bool = False

    @property
    def name(self) -> str:
        """Return what rows call it."""
        if self.policy == POLICY_ELDR:
            return f"band, K = {self.k}"
        unsigned = ", an unsigned request" if self.mixed else ""
        prior = "a learned prior" if self.learned else "a fitted prior"
        return f"MarginalUnion with {prior} on {self.layers} layers, K = {self.k}{unsigned}"

    def expected(self, *, signed: bool) -> tuple[str, str]:
        """Return by which policy, and why, a request is placed."""
        if self.policy == POLICY_ELDR:
            return (POLICY_ELDR, "similarity") if signed else ("JSQ", "no_signature")
        return POLICY_MARGINAL, "union" if signed else "no_signature"


CASES = (
    *(Case(POLICY_ELDR, k) for k in (4, 16, 256)),
    *(
        Case(POLICY_MARGINAL, k, MOST_LAYERS, mixed, learned=True)
        for k in (4, 16, 256)
        for mixed in (False, True)
    ),
    *(
        Case(POLICY_MARGINAL, k, layers, mixed)
        for layers in (MOST_LAYERS, LAYERS)
        for k in (4, 16, 256)
        for mixed in (False, True)
    ),
)


class Decided(NamedTuple):
    """A decision as it was timed."""

    request: int
    signed: bool
    policy: str
    reason: str
    compared: bool
    nanoseconds: int


class Traffic:
    """Requests of several kinds, and a centroid for each engine that is near to one of them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._kinds = rng.standard_normal((KINDS, LAYERS, EXPERTS))
        own = 0.5 * rng.standard_normal((DIFFERENT, LAYERS, EXPERTS))
        chances = np.exp(self._kinds[rng.integers(0, KINDS, DIFFERENT)] + own)
        chances *= TOP_K / chances.sum(axis=-1, keepdims=True)
        counts = rng.binomial(TOKENS, np.minimum(chances, 1.0)).astype(np.uint16)
        self.wires: list[Wire] = [
            encode_counts(ExpertCounts(one, top_k=TOP_K, tokens=TOKENS, exact=False)) for one in counts
        ]

    def centroids(self, k: int) -> CentroidSet:
        """Return a set of as many."""
        own = 0.2 * self._rng.standard_normal((k, LAYERS, EXPERTS))
        centers = np.exp(self._kinds[np.arange(k) % KINDS] + own).reshape(k, -1).astype(np.float32)
        centers /= np.linalg.norm(centers, axis=1, keepdims=True)
        ones = np.ones((LAYERS, EXPERTS), dtype=np.float32)
        kept = tuple(range(LAYERS))
        return CentroidSet("m", LAYERS, EXPERTS, TOP_K, kept, "counts", ones, centers, 1, 0.0)


class Pool:
    """A router's decode engines, as full at any time."""

    def __init__(self, case: Case, traffic: Traffic) -> None:
        self.case = case
        self.turns: list[list[Decided]] = []
        self._wires = traffic.wires
        self._next = count()
        self._registry = Registry(time.monotonic)
        self._registry.replace(
            ROLE_DECODE, [EndpointSpec(ROLE_DECODE, f"d{i}", "h", i, i) for i in range(case.k)]
        )
        self._placer = Placer(self._registry, np.random.default_rng(0))
        if case.layers:
            self._placer.locality = Locality(most_layers=case.layers)
        centroids = None if case.learned else traffic.centroids(case.k)
        self._table = make_table(
            RoutingDocument(policy=case.policy), epoch=1, active=None, centroids=centroids
        )
        self._placer.locality.follow(centroids, wanted=case.policy == POLICY_MARGINAL)  # as the router does
        self._in_flight: deque[tuple[Occupancy, str, bool]] = deque()
        self._sent: set[str] = set()
        for _ in range(IN_FLIGHT * case.k):
            self._place()

    def turn(self, n: int) -> None:
        """Place so many requests, each after the oldest has left."""
        self.turns.append([self._place(self._in_flight.popleft()[0]) for _ in range(n)])

    def microseconds(self, turn: list[Decided]) -> float:
        """Return the mean time of a turn's decisions, of those that the row is about."""
        spent = [one.nanoseconds for one in turn if one.signed is not self.case.mixed]
        return sum(spent) / len(spent) / 1e3

    def _place(self, leaving: Occupancy | None = None) -> Decided:
        number = next(self._next)
        signed = not (self.case.mixed and number % 2)
        wire = self._wires[number % len(self._wires)] if signed else None
        begun = time.process_time_ns()
        if leaving is not None:
            leaving.release()
        placement = self._placer.place(self._table, read_signature(wire))
        spent = time.process_time_ns() - begun
        self._in_flight.append((placement.occupancy, placement.endpoint.name, signed))
        if signed:
            self._sent.add(placement.endpoint.name)
        compared = placement.similarity is not None or (signed and self._placer.locality.profiles is not None)
        return Decided(number % len(self._wires), signed, placement.policy, placement.reason, compared, spent)

    def prove(self) -> None:
        """Hold what was decided, and the unions as they are, against what the row names."""
        case, decided = self.case, [one for turn in self.turns for one in turn]
        require(self._table.policy_in_effect == case.policy, f"{case.name}: {self._table.policy_in_effect}")
        for signed in {True, not case.mixed}:
            some = [one for one in decided if one.signed is signed]
            found = Counter((one.policy, one.reason, one.compared) for one in some)
            policy, reason = case.expected(signed=signed)
            require(
                some and found == {(policy, reason, signed): len(some)},
                f"{case.name}: expected {policy} for reason {reason!r}, got {dict(found)} (policy, reason, similarities)",
            )
        different = len({one.request for one in decided})
        require(
            different >= min(DIFFERENT, len(decided)) // 2, f"{case.name}: {different} different requests"
        )
        if case.policy == POLICY_MARGINAL:
            self._prove_unions()
        if case.learned:
            self._prove_profiles()

    def _prove_profiles(self) -> None:
        """A prior was learned, of every engine that was sent a signature, and each signed request is compared with it."""
        locality, wire = self._placer.locality, self._wires[0]
        learned = self._placer.decide(self._table, read_signature(wire), (), 1, 0).candidates.learned
        known = locality.profiles.table() if locality.profiles is not None else {}
        require(
            known.keys() == self._sent and len(known) > self.case.k // 2,
            f"{self.case.name}: {len(known)} engines have a profile, {len(self._sent)} were sent a signature",
        )
        require(learned is not None and len(set(learned)) > 1, f"{self.case.name}: {learned}")

    def _prove_unions(self) -> None:
        """Unions hold the signed requests in flight, and count the others as strangers."""
        name, unions = self.case.name, self._placer.locality.unions
        policy = self._table.policy
        require(isinstance(policy, MarginalUnion) and policy.prior > 0, f"{name}: {policy}")
        outlook = self._placer.decide(self._table, NO_SIGNATURE, (), 1, 0).situation.outlook
        if unions is None or outlook is None:
            raise Unproven(f"{name}: there are no unions")
        layers = len(unions.shape.layers)
        require(layers == self.case.layers, f"{name}: unions are of {layers} layers")
        held = {engine: n for engine, (n, _) in unions.table().items() if n}
        signed = Counter(engine for _, engine, signed in self._in_flight if signed)
        require(held == signed, f"{name}: unions hold {held}, in flight are {dict(signed)}")
        others = Counter(engine for _, engine, signed in self._in_flight if not signed)
        require(bool(others) is self.case.mixed, f"{name}: {others.total()} unsigned requests in flight")
        for endpoint, active in zip(self._registry.endpoints(ROLE_DECODE), outlook.active, strict=True):
            _, logs = unions.table().get(endpoint.name, (0, np.zeros(1, np.float32)))
            own = float((1.0 - np.exp(logs)).sum()) / layers
            more = active - own
            require(
                more > 0.1 if others[endpoint.name] else abs(more) < 0.01,
                f"{name}: {others[endpoint.name]} unsigned requests beside {own:.2f} experts make {active:.2f}",
            )


def measure(cases: Sequence[Case], rounds: int = ROUNDS, repeats: int = REPEATS) -> list[dict[str, object]]:
    """Time pools in turns, so that a busy moment hits all alike, and return their figures once all have proved themselves."""
    traffic = Traffic(np.random.default_rng(0))
    pools = [Pool(case, traffic) for case in cases]
    for _ in range(rounds):
        for pool in pools:
            pool.turn(repeats)
    for pool in pools:
        pool.prove()
    return [
        {
            "name": f"route decision, {LAYERS} x {EXPERTS} cells, {pool.case.name}",
            "unit": "us",
            "aim": None if pool.case.mixed else AIMS.get((pool.case.policy, pool.case.k, pool.case.layers)),
            "values": [pool.microseconds(turn) for turn in pool.turns],
        }
        for pool in pools
    ]


def main() -> None:
    """Measure."""
    one_thread()
    print(json.dumps(measure(CASES)))


if __name__ == "__main__":
    main()
