"""How evenly several routers load decode engines by what these report, how often an engine declines, and who is refused.

Arrivals and lengths are the same for every row. The reference is one router. Registry and placement are the router's own; time, engines
that keep their limit, and prefills of half a second are simulated. Engines report with each answer's begin, and once a period.

    python -m eldr_lab.studies.peers [--seconds 120]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from eldr.contract import ROLE_DECODE
from eldr_bench.proof import require
from eldr_router.engines.endpoint import Lease
from eldr_router.engines.load import Load
from eldr_router.engines.registry import Admission, Registry
from eldr_router.engines.spec import EndpointSpec
from eldr_router.http.errors import RouterError
from eldr_router.placement.placer import Placement, Placer
from eldr_router.placement.signature import NO_SIGNATURE
from eldr_router.placement.table import Intent, make_table

ENGINES = 8
DELAY, PREFILL, TICK = 0.0005, 0.5, 0.25
"""Seconds: one way between router and engine, a prefill, and between two looks of a result that waits."""


@dataclass
class Simulation:
    """Routers before engines that keep a limit, and report every ``period`` seconds; None: they report nothing."""

    routers: int
    limit: int
    period: float | None
    now: float = 0.0
    queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    order: itertools.count[int] = field(default_factory=itertools.count)
    counts: np.ndarray = field(default_factory=lambda: np.zeros(ENGINES, dtype=int))
    declined: int = 0
    waited: int = 0

    def __post_init__(self) -> None:
        intent = Intent(policy="JSQ", max_in_flight=self.limit)
        self.table = make_table(intent, epoch=0, active=None, centroids=None)
        self.came = np.zeros(self.routers, dtype=int)
        self.refused, self.placed = self.came.copy(), self.came.copy()
        self.registries = []
        for own in range(self.routers):
            registry = Registry(lambda: self.now)
            registry.replace(
                ROLE_DECODE, [EndpointSpec(ROLE_DECODE, f"d{at}", "h", at + 1, at) for at in range(ENGINES)]
            )
            registry.set_peers(("r", other) for other in range(self.routers) if other != own)
            self.registries.append(registry)
        self.placers = [Placer(registry, np.random.default_rng(1)) for registry in self.registries]
        phases = np.random.default_rng(2)
        for router, at in itertools.product(range(self.routers), range(ENGINES)):
            if self.period is not None:
                self.at(phases.random() * self.period, partial(self.poll, router, at))

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (when, next(self.order), what))

    def report(self, router: int, at: int) -> None:
        """Have what an engine counts now reach a router."""
        if self.period is not None:
            endpoint = self.registries[router].endpoints(ROLE_DECODE)[at]
            load = Load(int(self.counts[at]), self.limit)
            self.at(self.now + DELAY, lambda: endpoint.report(load, self.now))

    def poll(self, router: int, at: int) -> None:
        self.report(router, at)
        self.at(self.now + (self.period or 0.0), partial(self.poll, router, at))

    def arrive(self, router: int, seconds: float) -> None:
        self.came[router] += 1
        try:
            admission = self.registries[router].admit(self.limit)
        except RouterError:
            self.refused[router] += 1
            return
        self.at(self.now + PREFILL, partial(self.place, router, admission, seconds, waits=False))

    def place(self, router: int, admission: Admission, seconds: float, *, waits: bool) -> None:
        try:
            placement = self.placers[router].place(self.table, NO_SIGNATURE)
        except RouterError:
            self.waited += not waits
            admission.reopen()
            self.at(self.now + TICK, partial(self.place, router, admission, seconds, waits=True))
            return
        admission.settle()
        self.at(self.now + DELAY, partial(self.judge, router, admission, seconds, placement, waits=waits))

    def judge(
        self, router: int, admission: Admission, seconds: float, placement: Placement, *, waits: bool
    ) -> None:
        """Let an engine take a request, or decline it."""
        endpoint = placement.endpoint
        at = endpoint.spec.slot
        if self.counts[at] >= self.limit and self.period is not None:
            self.declined += 1
            endpoint.report(Load(int(self.counts[at]), self.limit), self.now)
            endpoint.is_full = True
            placement.lease.release()
            self.place(router, admission, seconds, waits=waits)
            return
        self.counts[at] += 1
        self.placed[router] += 1
        self.report(router, at)
        self.at(self.now + seconds, partial(self.end, placement.lease, at))

    def end(self, lease: Lease, at: int) -> None:
        self.counts[at] -= 1
        self.at(self.now + DELAY, lease.release)

    def run(self, seconds: float, arrivals: list[tuple[float, int, float]], warm: float) -> float:
        """Return the time average of the fullest engine's load over the mean engine's."""
        for when, router, length in arrivals:
            self.at(1.0 + when, partial(self.arrive, router % self.routers, length))
        ratio = measured = 0.0
        while self.queue and self.queue[0][0] < 1.0 + seconds:
            when, _, what = heapq.heappop(self.queue)
            step = when - self.now
            if self.now > 1.0 + warm and self.counts.any():
                ratio += step * self.counts.max() / self.counts.mean()
                measured += step
            self.now = when
            what()
            require(self.counts.max() <= self.limit, f"an engine has {self.counts.max()} of {self.limit}")
        return ratio / measured


def workload(seconds: float, rate: float, length: float, skew: float) -> list[tuple[float, int, float]]:
    """Poisson arrivals, lognormal lengths; a share ``skew`` of the clients all come to the first router."""
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(1 / rate, int(rate * seconds * 1.2)))
    lengths = rng.lognormal(np.log(length) - 0.32, 0.8, times.size)
    routers = np.where(rng.random(times.size) < skew, 0, rng.integers(0, 840, times.size))
    return [(t, int(r), s) for t, r, s in zip(times, routers, lengths, strict=True) if t < seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    seconds = parser.parse_args().seconds
    print(
        f"{ENGINES} engines, 20 sequences on each on average, of 1 s; 60 % of the clients come to the first router"
    )
    names = ("limit", "routers", "period s", "max/mean", "429 %", "first", "others", "declined %", "waited %")
    print("".join(f"{name:>11}" for name in names))
    arrivals = workload(seconds, 20 * ENGINES, 1.0, 0.6)
    for limit, routers in itertools.product((64, 24), (1, 2, 4, 8)):
        for period in (0.05, 0.25, 2.0, None):
            one = Simulation(routers, limit, period)
            ratio = one.run(seconds, arrivals, warm=4.0)
            first, others = one.refused[0] / one.came[0], one.refused[1:].sum() / max(1, one.came[1:].sum())
            shares = (
                one.refused.sum() / one.came.sum(),
                first,
                others,
                one.declined / one.placed.sum(),
                one.waited / one.placed.sum(),
            )
            print(
                f"{limit:>11}{routers:>11}{period or 'none':>11}{ratio:>11.3f}"
                + "".join(f"{100 * share:>11.2f}" for share in shares)
            )


if __name__ == "__main__":
    main()
