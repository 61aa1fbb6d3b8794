"""How evenly several routers load decode engines, by how often they ask each other; and what asking costs.

Arrivals and lengths are the same for every row. The reference is one router that knows everything at once. Registry,
shares and placement are the router's own; only time is simulated.

    python -m eldr_lab.studies.peers [--seconds 120] [--loopback]
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import orjson

from eldr.contract import ROLE_DECODE
from eldr_bench.proof import require
from eldr_router.http.errors import RouterError
from eldr_router.plan.reports import read_report, write_report
from eldr_router.plan.shares import Shares
from eldr_router.plan.signature import NO_SIGNATURE
from eldr_router.plan.spec import EndpointSpec
from eldr_router.plan.table import Intent, make_table
from eldr_router.state.endpoint import Lease
from eldr_router.state.placer import Placer
from eldr_router.state.registry import Registry

ENGINES = 8
LIMIT = 64
DELAY = 0.0005
"""One way between two routers, seconds."""


@dataclass
class Simulation:
    """Routers that ask each other every ``period`` seconds."""

    routers: int
    period: float
    limit: int = LIMIT
    gives: bool = True
    now: float = 0.0
    queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    order: itertools.count[int] = field(default_factory=itertools.count)
    placed: int = 0
    refused: int = 0
    bytes: int = 0
    asked: int = 0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(ENGINES))

    def __post_init__(self) -> None:
        self.table = make_table(
            Intent(policy="JSQ", max_in_flight=self.limit), epoch=0, active=None, centroids=None
        )
        specs = [EndpointSpec(ROLE_DECODE, f"x-decode-{i}", "h", i, i) for i in range(ENGINES)]
        self.registries = []
        for own in range(self.routers):
            shares = Shares(f"{own:08x}", self.limit)
            shares.set_addresses(("r", other) for other in range(self.routers) if other != own)
            registry = Registry(lambda: self.now, shares)
            registry.replace(ROLE_DECODE, specs)
            self.registries.append(registry)
        self.placers = [Placer(registry, np.random.default_rng(1)) for registry in self.registries]
        phases = np.random.default_rng(2)
        for own in range(self.routers):
            for other in range(self.routers):
                if other != own:
                    self.at(phases.random() * self.period, self.asking(own, other))
            if self.gives:
                self.at(phases.random() * self.period, self.giving(own))

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (when, next(self.order), what))

    def asking(self, own: int, other: int) -> Callable[[], None]:
        registry, peer = self.registries[own], self.registries[other]

        def ask() -> None:
            self.at(self.now + DELAY, answer)

        def answer() -> None:
            body = orjson.dumps(write_report(peer.report(registry.shares.router)))
            self.bytes += len(body)
            self.asked += 1
            self.at(self.now + DELAY, lambda: hear(body))

        def hear(body: bytes) -> None:
            registry.shares.heard(("r", other), read_report(200, body), self.now)
            self.at(self.now + self.period, ask)

        return ask

    def giving(self, own: int) -> Callable[[], None]:
        def give() -> None:
            self.registries[own].give()
            self.at(self.now + self.period, give)

        return give

    def arrive(self, router: int, seconds: float) -> None:
        try:
            placement = self.placers[router].place(self.table, NO_SIGNATURE)
        except RouterError:
            self.refused += 1
            return
        at = placement.endpoint.spec.slot
        self.placed += 1
        self.counts[at] += 1
        self.at(self.now + seconds, lambda: self.end(placement.lease, at))

    def end(self, lease: Lease, at: int) -> None:
        lease.release()
        self.counts[at] -= 1

    def run(
        self, seconds: float, arrivals: list[tuple[float, int, float]], warm: float
    ) -> tuple[float, float]:
        """Return the time averages of max / mean and of the standard deviation over engines."""
        for when, router, length in arrivals:
            self.at(1.0 + when, partial(self.arrive, router % self.routers, length))
        ratio = deviation = measured = 0.0
        while self.queue and self.queue[0][0] < 1.0 + seconds:
            when, _, what = heapq.heappop(self.queue)
            step = when - self.now
            if self.now > 1.0 + warm and self.counts.any():
                ratio += step * self.counts.max() / self.counts.mean()
                deviation += step * self.counts.std()
                measured += step
            self.now = when
            what()
        came = sum(when < seconds for when, _, _ in arrivals)
        require(self.placed + self.refused == came, f"{self.placed} placed, {self.refused} refused of {came}")
        peers = [peer for registry in self.registries for peer in registry.shares.peers.values()]
        require(all(peer.report for peer in peers), "a router never heard another one")
        return ratio / measured, deviation / measured


def workload(seconds: float, rate: float, length: float, skew: float) -> list[tuple[float, int, float]]:
    """Poisson arrivals, lognormal lengths; a share ``skew`` of the clients all come to the first router."""
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(1 / rate, int(rate * seconds * 1.2)))
    lengths = rng.lognormal(np.log(length) - 0.32, 0.8, times.size)
    routers = np.where(rng.random(times.size) < skew, 0, rng.integers(0, 840, times.size))
    return [(t, int(r), s) for t, r, s in zip(times, routers, lengths, strict=True) if t < seconds]


def simulate(seconds: float) -> None:
    print(f"{ENGINES} engines, 20 sequences on each on average, limit {LIMIT}, one way {DELAY * 1e3:g} ms")
    print(
        f"{'arrivals/s':>10} {'skew':>5} {'routers':>7} {'period ms':>9} {'max/mean':>9} {'+%':>6} {'deviation':>9} {'+%':>6} {'429 %':>6} {'KB/s per router':>15}"
    )
    for length, skew in ((4.0, 0.0), (1.0, 0.0), (1.0, 0.6)):
        rate = 20 * ENGINES / length
        arrivals = workload(seconds, rate, length, skew)
        exact = Simulation(1, 1.0).run(seconds, arrivals, warm=4 * length)
        print(f"{rate:>10.0f} {skew:>5.1f} {1:>7} {'exact':>9} {exact[0]:>9.3f} {'':>6} {exact[1]:>9.3f}")
        for routers in (2, 4, 8):
            for period in (0.01, 0.02, 0.05, 0.1, 0.25):
                simulation = Simulation(routers, period)
                ratio, deviation = simulation.run(seconds, arrivals, warm=4 * length)
                print(
                    f"{rate:>10.0f} {skew:>5.1f} {routers:>7} {period * 1e3:>9.0f} {ratio:>9.3f} "
                    f"{100 * (ratio / exact[0] - 1):>6.1f} {deviation:>9.3f} {100 * (deviation / exact[1] - 1):>6.1f} "
                    f"{100 * simulation.refused / len(arrivals):>6.2f} "
                    f"{simulation.bytes / seconds / routers / 1e3:>15.0f}"
                )


def demand(seconds: float) -> None:
    """Requests refused although another router has room, with and without giving it away."""
    print(
        "\n429 % where one router would refuse none: 20 sequences on each engine on average, limit 40, period 20 ms"
    )
    print(f"{'to the first router':>20} {'routers':>7} {'fixed parts':>11} {'given away':>10}")
    for skew, routers in itertools.product((0.6, 1.0), (2, 4, 8)):
        arrivals = workload(seconds, 20 * ENGINES, 1.0, skew)
        refused = []
        for gives in (False, True):
            simulation = Simulation(routers, 0.02, limit=40, gives=gives)
            simulation.run(seconds, arrivals, warm=4.0)
            refused.append(100 * simulation.refused / len(arrivals))
        print(f"{skew:>20.0%} {routers:>7} {refused[0]:>11.2f} {refused[1]:>10.2f}")


async def loopback(seconds: float) -> None:
    """Measure the CPU time that real routers spend on asking each other, in one process."""
    from eldr_kube.ports import free_ports
    from eldr_router.app import App
    from eldr_router.settings import Settings
    from eldr_router.state import peers as module

    print(f"\nCPU of one core per router, {ENGINES} engines, over loopback")
    with tempfile.TemporaryDirectory() as folder:
        workers = Path(folder) / "w"
        decode = [{"name": f"x-decode-{i}", "url": f"http://127.0.0.1:{9000 + i}"} for i in range(ENGINES)]
        workers.write_text(json.dumps({"prefill": [], "decode": decode}))
        for count, period in itertools.product((2, 4, 8), (0.02, 0.05, 0.1)):
            module._PERIOD, module._SPACING = period, 0.0  # noqa: SLF001 - what is measured
            ports = free_ports(count)
            apps = [
                App(
                    Settings(
                        workers=workers,
                        port=0,
                        admin_port=own,
                        peers=tuple(f"http://127.0.0.1:{other}" for other in ports if other != own),
                    )
                )
                for own in ports
            ]
            for app in apps:
                await app.start()
            while any(app.services.registry.shares.awaited for app in apps):
                await asyncio.sleep(0.1)
            leases = [
                Lease(endpoint) for app in apps for endpoint in app.services.registry.endpoints(ROLE_DECODE)
            ]
            await asyncio.sleep(1)
            cpu, wall = time.process_time(), time.monotonic()
            await asyncio.sleep(seconds)
            spent = (time.process_time() - cpu) / (time.monotonic() - wall)
            print(f"{count:>3} routers, {period * 1e3:>4.0f} ms: {100 * spent / count:5.2f} %")
            for lease in leases:
                lease.release()
            for app in apps:
                await app.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--loopback", action="store_true")
    options = parser.parse_args()
    simulate(options.seconds)
    demand(options.seconds)
    if options.loopback:
        import uvloop

        uvloop.run(loopback(3.0))


if __name__ == "__main__":
    main()
