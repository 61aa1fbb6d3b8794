"""Whatever comes and goes at several routers: once nothing runs any more nothing is counted, and each serves what one may ask for."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from eldr.contract import ROLE_DECODE
from eldr_router.engines.endpoint import Occupancy
from eldr_router.engines.kv_room import KvCache
from eldr_router.engines.load import Load
from eldr_router.engines.registry import Admission, Registry
from eldr_router.engines.spec import EndpointSpec
from eldr_router.flow.queue import Queue
from eldr_router.http.errors import RouterError
from eldr_router.placement.placer import Placer
from eldr_router.placement.signature import NO_SIGNATURE
from eldr_router.placement.table import RoutingDocument, make_table
from eldr_router.telemetry.metrics import Metrics
from tests.unit.router.test_queue import Loop

CACHE = KvCache(5000, 5000)
BOUNDS = [(0, 10.0), (3, 5.0), (50, 5.0)]
"""Of the queue: how many may wait, and how long."""


class Request:
    """Waits, is admitted, placed, ends."""

    def __init__(self, router: Router, prompt: int) -> None:
        self.router, self.prompt = router, prompt
        self.admission: Admission | None = None
        self.occupancy: Occupancy | None = None

    def admitted(self, admission: Admission) -> None:
        self.admission = admission
        if admission.sequences > 1:  # it goes whole
            self.place()

    def turned_away(self, error: RouterError) -> None:
        assert error.status in (429, 503)
        self.router.requests.remove(self)

    def place(self) -> None:
        registry, sequences = self.router.registry, self.admission.sequences
        demand = registry.kv_room.demand(self.prompt, 100, sequences)
        try:
            self.occupancy = self.router.placer.place(
                self.router.table, NO_SIGNATURE, sequences=sequences, demand=demand
            ).occupancy
        except RouterError:
            self.end()
        else:
            self.admission.release()

    def end(self) -> None:
        self.router.queue.leave(self)
        if self.admission is not None:
            self.admission.release()
        if self.occupancy is not None:
            self.occupancy.release()
        self.router.requests.remove(self)


class Router:
    def __init__(self, pool: Pool) -> None:
        self.bounds = BOUNDS[0]
        self.registry = Registry(pool.loop.time)
        metrics = Metrics(self.registry)
        self.queue = Queue(pool.loop, self.registry, metrics, lambda: pool.limit, lambda: self.bounds)
        self.placer = Placer(self.registry, np.random.default_rng(0))
        self.requests: list[Request] = []
        self.take(pool.limit)

    def take(self, limit: int) -> None:
        self.table = make_table(
            RoutingDocument(policy="JSQ", max_in_flight=limit), epoch=1, active=None, centroids=None
        )
        self.queue.wake()

    def ask(self, sequences: int, prompt: int = 0) -> Request:
        request = Request(self, prompt)
        self.requests.append(request)
        try:
            admission = self.queue.admit(request, sequences)
        except RouterError as error:
            request.turned_away(error)
        else:
            if admission is not None:
                request.admitted(admission)
        return request


class Pool:
    def __init__(self, rng: random.Random, routers: int) -> None:
        self.rng, self.loop, self.limit = rng, Loop(), 6
        self.tells = rng.random() < 0.5
        self.reports = rng.random() < 0.8
        self.routers = [Router(self) for _ in range(routers)]
        for router in self.routers:
            router.registry.set_peers([("r", number) for number in range(1, routers)])
        self.engines(3)
        self.pass_time(0.2)

    def engines(self, count: int) -> None:
        numbers = self.rng.sample(range(4), count)
        for router in self.routers:
            specs = [EndpointSpec(ROLE_DECODE, f"d{at}", "h", at + 1, at) for at in numbers]
            router.registry.replace(ROLE_DECODE, specs)
            for endpoint in router.registry.endpoints(ROLE_DECODE):
                endpoint.cache = CACHE if self.tells else None

    def pass_time(self, seconds: float, lost: float = 0.0) -> None:
        """Engines report their load every 100 ms; some answers are lost."""
        for _ in range(max(1, round(seconds / 0.1))):
            found = [each for router in self.routers for each in router.registry.endpoints(ROLE_DECODE)]
            totals = Counter[str]()
            for each in found:
                totals[each.name] += each.in_flight
            for each in found:
                if self.reports and self.rng.random() >= lost:
                    each.report(Load(totals[each.name], 100), self.loop.now)
            for router in self.routers:
                router.queue.wake()
            self.loop.turn(0.1)

    def disturb(self) -> None:
        """Let one thing happen."""
        rng = self.rng
        router = rng.choice(self.routers)
        match rng.choices(
            ["ask", "place", "end", "leave", "engines", "eject", "limit", "wait", "bounds", "told"],
            [8, 6, 6, 1, 0.3, 0.3, 0.2, 4, 0.3, 0.3],
        )[0]:
            case "ask":
                router.ask(rng.choice([1, 1, 1, 1, 2, 3, 6]), rng.choice([0, 100, 100, 1000, 4000]))
            case "place" if found := [one for one in router.requests if one.admission and not one.occupancy]:
                rng.choice(found).place()
            case "end" if found := [one for one in router.requests if one.occupancy]:
                rng.choice(found).end()
            case "leave" if router.requests:
                rng.choice(router.requests).end()
            case "engines":
                self.engines(rng.choice([0, 1, 2, 3, 3, 4, 4]))
            case "eject":
                for endpoint in router.registry.endpoints(ROLE_DECODE)[:2]:
                    endpoint.health.eject(self.loop.now)
            case "limit":
                self.limit = rng.choice([3, 6, 6, 9])
                for each in self.routers:
                    each.take(self.limit)
            case "wait":
                self.pass_time(rng.choice([0.1, 0.1, 0.5]), lost=0.2)
            case "bounds":
                router.bounds = rng.choice(BOUNDS)
            case "told":
                for endpoint in router.registry.endpoints(ROLE_DECODE):
                    cache = endpoint.cache and endpoint.cache._replace(used=rng.random())
                    router.registry.observe(endpoint, cache, None)
        self.loop.turn()


@pytest.mark.parametrize("routers", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_at_rest_nothing_is_counted_and_everything_is_served(seed, routers):
    pool = Pool(random.Random(seed), routers)
    for _ in range(1000):
        pool.disturb()
    for router in pool.routers:
        for request in tuple(router.requests):
            request.end()
    pool.engines(2)
    pool.pass_time(0.5)
    for router in pool.routers:
        registry = router.registry
        assert registry._reserved == 0
        assert not any(each.in_flight or each.tokens for each in registry.endpoints(ROLE_DECODE))
        assert not router.queue._entries
        router.bounds = BOUNDS[2]
        for sequences in (1, 2, pool.limit):
            request = router.ask(sequences, 100)
            pool.pass_time(1.0)
            assert request.admission is not None
            if request.occupancy is None:
                request.place()
            assert request.occupancy is not None
            request.end()
            pool.pass_time(0.5)
