"""Worlds of engines that take turns, with engines whose law is known instead of real ones."""

import math

import numpy as np
import pytest

from eldr.core.balancers import JSQ
from eldr.core.step_time import QWEN3_30B_MI300X, StepTime
from eldr_lab.steps.machine import Step
from eldr_lab.steps.start import Pace
from eldr_lab.steps.world import Request, World, run_side_by_side
from eldr_lab.synthetic.population import Population
from eldr_lab.synthetic.routers import Knowledge, Router

LAW = StepTime(2e-3, 0.5e-3, 0.3e-3, 64)
TOKENS = 10


class FakeEngine:
    """Every request uses four experts of its own in each of two layers."""

    def __init__(self):
        self.running: dict[str, int] = {}

    def add(self, name, prompt, tokens, seed):
        assert prompt == [7]
        assert seed == int(name)
        self.running[name] = tokens

    def step(self):
        names = list(self.running)
        assert names
        for name in names:
            self.running[name] -= 1
        ended = [name for name in names if not self.running[name]]
        self.running = {name: left for name, left in self.running.items() if left}
        active = min(64, 4 * len(names))
        seconds = LAW.seconds(len(names), active)
        return Step(seconds, len(names), [active, active], names, ended)


def population(n=4):
    return Population(
        prefill=np.ones((n, 2, 64), dtype=np.uint32),
        prompt_tokens=np.full(n, 32),
        logs=np.zeros((n, 128), dtype=np.float32),
        steps=None,
        label=np.zeros(n, dtype=np.int64),
        labels=("all",),
        shares=(1.0,),
        output_tokens=None,
        top_k=4,
    )


def make_world(trace, engines=2, pace=lambda seconds: seconds, **options):
    laws = [QWEN3_30B_MI300X.for_experts(64)] * engines
    router = Router("r", JSQ(), Knowledge(population(), laws, None, False), 0)
    return World([FakeEngine() for _ in range(engines)], router, laws, trace, pace, **options), laws


def trace(times):
    return [Request(at, number % 4, [7], TOKENS) for number, at in enumerate(times)]


def test_requests_join_between_steps_and_the_router_hears_of_ends_when_they_happen():
    step = LAW.seconds(1, 4)
    # the third comes while both engines compute; the fourth just after the first has ended
    world, _ = make_world(trace([0.0, 0.0, 0.5 * step, 1.0]))
    run_side_by_side([world])
    assert world.served[2].first > 1.5 * step
    assert max(ran.batch for ran in world.steps) == 2
    assert not math.isnan(world.served[3].last)
    assert all(not router_load for router_load in world._router.in_flight)


def test_the_number_in_flight_is_held():
    world, _ = make_world(trace([math.inf] * 40), in_flight=8)
    run_side_by_side([world])
    assert len(world.served) == 40
    assert all(not math.isnan(served.last) for served in world.served.values())
    full = [ran for ran in world.steps if ran.begin < world.served[39].at]
    assert {ran.batch for ran in full} == {4}


def test_a_step_that_computes_prompts_is_told(monkeypatch):
    world, _ = make_world(trace([0.0]))
    monkeypatch.setattr(FakeEngine, "step", lambda self: Step(1.0, 65, [4, 4], ["0"], []))
    with pytest.raises(ValueError, match="KV was lost"):
        run_side_by_side([world])


def test_the_law_is_learned_from_the_steps():
    rng = np.random.default_rng(0)
    world, laws = make_world(trace(np.cumsum(rng.exponential(0.012, 1500)).tolist()))
    run_side_by_side([world])
    learned = world.learn()
    # experts and requests vary together here: only their sum is certain
    assert learned.seconds(4, 16) == pytest.approx(LAW.seconds(4, 16), rel=0.05)
    assert laws[0].seconds(4, 16) == pytest.approx(LAW.seconds(4, 16), rel=0.05)


def test_pace_takes_out_a_machine_that_slows_down():
    speed = [1.0]
    pace = Pace(lambda: 0.03 * speed[0])
    assert pace(1.0) == pytest.approx(1.0)
    speed[0] = 2.0
    told = [pace(2.0) for _ in range(60)]
    assert told[-1] == pytest.approx(1.0)
    assert max(pace.factors) == pytest.approx(2.0)
