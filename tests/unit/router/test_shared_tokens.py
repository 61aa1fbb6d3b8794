"""Tokens of KV that several routers expect on one engine: long requests that are refused block nobody."""

from __future__ import annotations

import contextlib

import numpy as np
import orjson
import pytest

from eldr.contract import ROLE_DECODE
from eldr_router.http.errors import RouterError
from eldr_router.plan.contexts import Cache, Context
from eldr_router.plan.reports import read_report, write_report
from eldr_router.plan.shares import Shares
from eldr_router.plan.signature import NO_SIGNATURE
from eldr_router.plan.spec import EndpointSpec
from eldr_router.plan.table import Intent, make_table
from eldr_router.state.placer import Placer
from eldr_router.state.registry import Registry

JSQ = make_table(Intent(policy="JSQ"), epoch=1, active=None, centroids=None)
TOKENS = 10_000
LONG, SHORT = 6000, 500


class Node:
    """One router."""

    def __init__(self, pool: Pool, number: int) -> None:
        self.address = (f"r{number}", 1)
        self.registry = Registry(lambda: pool.now, Shares(f"r{number}", JSQ.max_in_flight))
        self.registry.replace(ROLE_DECODE, [EndpointSpec(ROLE_DECODE, "d0", "d", 1, 0)])
        (self.engine,) = self.registry.endpoints(ROLE_DECODE)
        self.engine.cache = Cache(TOKENS, TOKENS)
        self._placer = Placer(self.registry, np.random.default_rng(0))

    def place(self, size: int):
        return self._placer.place(JSQ, NO_SIGNATURE, context=Context(size, size)).lease

    def serves(self, size: int) -> bool:
        """Whether a request is placed; it ends at once."""
        try:
            self.place(size).release()
        except RouterError:
            return False
        return True


class Pool:
    """Routers before one decode engine of ten thousand tokens."""

    def __init__(self, routers: int) -> None:
        self.now = 0.0
        self.nodes = [Node(self, number) for number in range(routers)]
        for node in self.nodes:
            node.registry.shares.set_addresses([one.address for one in self.nodes if one is not node])
        for _ in range(4):
            self.talk()

    def talk(self, seconds: float = 0.0) -> None:
        self.now += seconds
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    report = other.registry.report(node.registry.shares.router)
                    read = read_report(200, orjson.dumps(write_report(report)))
                    node.registry.shares.heard(other.address, read, self.now)

    def tell(self, used: float) -> None:
        """The engine says how full it is."""
        for node in self.nodes:
            node.engine.cache = Cache(TOKENS, TOKENS, used)
            known = node.registry.known(node.engine)
            node.registry.contexts.heard("d0", None, node.engine.cache, known, self.now)


@pytest.mark.parametrize("routers", [2, 3])
def test_an_idle_pool_serves_what_was_refused_by_several_routers(routers):
    pool = Pool(routers)
    busy = pool.nodes[0].place(9000)
    pool.talk(0.1)
    for node in pool.nodes:
        assert not node.serves(LONG)
        pool.talk(0.02)
    busy.release()
    pool.talk(0.1)
    assert all(node.serves(LONG) for node in pool.nodes)


def test_requests_that_were_refused_are_not_expected_of_engines():
    first, second = (pool := Pool(2)).nodes
    for _ in range(10):
        first.place(900)
    for _ in range(12):
        pool.talk(1.0)
        assert not second.serves(LONG)
        pool.tell(0.9)
    assert first.registry.contexts.factor == pytest.approx(1.0)
    assert not first.serves(900), "9,000 tokens are held, and no more than 9,500 may be"


def test_tokens_of_a_router_that_fell_silent_count_for_a_while():
    first, silent = (pool := Pool(2)).nodes
    silent.place(9000)
    pool.talk(0.1)
    served = []
    for second in range(60):
        pool.now += 1.0
        served += [second] * first.serves(SHORT * 2)
    assert 20 <= served[0] <= 31


def test_short_requests_are_served_beside_long_ones_that_come_again():
    """One long request runs at a time, two others come again each second, and five short ones come."""
    (node,) = (pool := Pool(1)).nodes
    long, served, longs = None, 0, 0
    for second in range(300):
        pool.now += 1.0
        if long is not None and second % 5 == 0:
            long.release()
            long = None
        for _ in range(2):
            with contextlib.suppress(RouterError):
                long, longs = node.place(LONG), longs + 1
        served += sum(node.serves(SHORT) for _ in range(5))
    assert (longs, served) == (60, 1500)
