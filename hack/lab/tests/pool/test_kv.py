"""Engines whose KV caches may be full, and a router that refuses what does not fit."""

import numpy as np
import pytest

from eldr.core.balancers import JSQ
from eldr.core.step_time import StepTime
from eldr_lab.pool.kv import KvEngine, KvRouter, Request, Seeing, Workload, serve
from eldr_lab.synthetic.active import active_experts
from eldr_lab.synthetic.routers import Knowledge
from eldr_router.engines.kv_room import KvCache

LAW = StepTime(0.01, 0.0, 0.0, 32, 1e-6)


def engine(population, capacity):
    return KvEngine(LAW, active_experts(population, sampled=False), capacity=capacity, recompute=1e-4)


def run_alone(one, *requests):
    """Serve requests that come at once; return when each joined first and ended."""
    now, joined, ended = 0.0, {}, {}
    for request in requests:
        one.add(request, 0.0)
    while True:
        over, new = one.advance(now)
        joined |= {request.number: now for request in new}
        ended |= {request.number: now for request in over}
        if one.due is None:
            return joined, ended
        now = one.due


def test_a_step_takes_longer_for_each_token_of_context(population):
    _, ended = run_alone(engine(population, 10_000), Request(0, 0, 1000, 1))
    assert ended[0] == pytest.approx(0.01 + 1000e-6)


def test_who_does_not_fit_waits_its_turn(population):
    one = engine(population, 3000)
    joined, ended = run_alone(one, Request(0, 0, 2000, 50), Request(1, 1, 1500, 5), Request(2, 2, 100, 5))
    assert one.preemptions == 0
    assert joined[1] == joined[2] == ended[0], "a short one does not pass by"
    assert (one.held, one.generated, one.finished) == (0, 60, 3)


def test_who_came_last_is_preempted_and_computes_its_tokens_again(population):
    one = engine(population, 1050)
    joined, ended = run_alone(one, Request(0, 0, 500, 60), Request(1, 1, 500, 60))
    assert one.preemptions == 1
    assert joined == {0: 0.0, 1: 0.0}
    assert one.held == 0
    assert one.generated == 120, "what it had generated stays"
    assert ended[1] - ended[0] == pytest.approx(525e-4 + 35 * (0.01 + 543e-6), rel=0.01)


def test_a_prompt_that_never_fits_is_refused(population):
    with pytest.raises(ValueError, match="prompt: 500 tokens never fit a KV cache of 500"):
        engine(population, 500).add(Request(0, 0, 500, 1), 0.0)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_pool_serves_all_and_only_one_that_refuses_preempts_nobody(population, refuses):
    rng, n, capacity = np.random.default_rng(0), 200, 4000
    workload = Workload(
        np.sort(rng.uniform(0, 8, n)),
        rng.integers(0, len(population), n),
        np.where(rng.random(n) < 0.2, 1500, 100),
        rng.integers(2, 60, n),
        np.ones(n, dtype=np.bool_),
    )
    engines = [engine(population, capacity) for _ in range(2)]
    router = KvRouter(
        Seeing(JSQ(), looks=True),
        Knowledge(population, [LAW] * 2, None, unions=False),
        0,
        [KvCache(capacity, capacity)] * 2,
        refuses=refuses,
    )
    found = serve(engines, router, workload, (0.0, 20.0))
    assert sum(one.finished for one in engines) == n
    assert not np.isnan(found.latency).any()
    assert (found.latency >= found.waited).all()
    assert [one.held for one in engines] == router.expected == [0, 0]
    assert bool(found.refused.any()) is refuses
    if refuses:
        assert found.preemptions == 0
