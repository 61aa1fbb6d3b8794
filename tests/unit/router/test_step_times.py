"""Telemetry of engines becomes step-time models."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from eldr.contract import (
    METRIC_ACTIVE_EXPERTS,
    METRIC_BATCH_SIZE,
    METRIC_COUNTING,
    METRIC_STEP_SECONDS,
)
from eldr.core.step_time import StepTime
from eldr.core.step_time_fit import learn
from eldr.sim.telemetry import EngineMetrics
from eldr_router.engines.exposition import Sums, read_counting, read_sums, read_untested, window
from eldr_router.placement.step_times import StepTimes, default_step_time

TRUE = StepTime(3e-3, 90e-6, 40e-6, 128)


def test_sums_of_the_engine_simulator_are_read():
    metrics = EngineMetrics("m", 128)
    for batch, active, seconds in ((3, 20.5, 0.01), (4, 22.0, 0.012)):
        metrics.batch_size.observe(batch)
        metrics.active_experts.observe(active)
        metrics.step_seconds.observe(seconds)
        metrics.context.inc(450)
        metrics.fed_tokens.inc(2 * batch)
    assert read_sums(metrics.render()) == pytest.approx(Sums(2, 0.022, 42.5, 7, 14, 900))


def test_ranks_are_read_whatever_their_labels_hold():
    registry = CollectorRegistry()
    for name in (METRIC_STEP_SECONDS, METRIC_ACTIVE_EXPERTS, METRIC_BATCH_SIZE):
        histogram = Histogram(name, "x", ["engine", "model_name"], registry=registry)
        for engine in ("0", "1", "1"):
            histogram.labels(engine, 'a"} 7 b\n{').observe(2.0)
    assert read_sums(generate_latest(registry)) == Sums(3, 6, 6, 6, 6)


@pytest.mark.parametrize(("ranks", "told"), [((1, 1), True), ((1, 0), False)])
def test_an_engine_tells_whether_all_its_ranks_count(ranks, told):
    registry = CollectorRegistry()
    counting = Gauge(METRIC_COUNTING, "x", ["model_name", "engine"], registry=registry)
    for rank, value in enumerate(ranks):
        counting.labels('a"} 0\n{', str(rank)).set(value)
    assert read_counting(generate_latest(registry)) is told
    assert read_counting(EngineMetrics("m", 128).render())


def test_an_engine_that_tells_nothing_of_its_version_is_not_warned_of():
    assert read_untested(EngineMetrics("m", 128).render()) == ""


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"# HELP x\n",
        b"eldr_engine_step_seconds_sum 1\n",
        b"<html>",
        b"\xff\x00",
        b"eldr_engine_step_seconds_sum{ 1",
    ],
)
def test_what_tells_of_no_steps(text):
    assert read_sums(text) is None


@pytest.mark.parametrize("bad", ["NaN", "+Inf", "x", "1e999"])
def test_numbers_that_are_none(bad):
    lines = [f"{METRIC_STEP_SECONDS}_count 5", f"{METRIC_STEP_SECONDS}_sum {bad}"]
    lines += [f"{METRIC_ACTIVE_EXPERTS}_sum 5", f"{METRIC_BATCH_SIZE}_sum 5"]
    assert read_sums("\n".join(lines).encode()) is None


def test_a_window_needs_steps():
    before = Sums(10, 1, 100, 50)
    assert window(before, Sums(15, 2, 200, 80), 10) is None
    assert window(before, Sums(30, 3, 300, 150), 10) == (0.1, 10.0, 5.0, 20, 0.0, 0.0, 0.0)
    assert window(before, Sums(30, 0.5, 300, 150), 10) is None, "a sum that shrank"


class Engine:
    """An engine's counters."""

    def __init__(self, step_times, name, step_time, seed):
        self.step_times, self.name, self.step_time, self.sums = step_times, name, step_time, Sums()
        self.rng = np.random.default_rng(seed)

    def runs(self, steps, at, batch=None):
        """Run so many steps until the ``at``-th time that routers ask."""
        batch = self.rng.uniform(4, 40) if batch is None else batch
        active = min(128, max(8, 128 * (1 - 0.96**batch) + self.rng.normal(0, 6)))
        context = batch * self.rng.uniform(500, 30_000)
        seconds = self.step_time.seconds(batch, active, context) * (1 + 0.01 * self.rng.normal())
        self.sums = Sums(
            *(
                a + b * steps
                for a, b in zip(self.sums, (1, seconds, active, batch, batch, context, 0), strict=True)
            )
        )
        self.step_times.observe(self.name, self.sums, 10.0 * at)

    def restarts(self, step_time):
        self.step_time, self.sums = step_time, Sums()


def learn_now(step_times, n_experts):
    step_times.take(learn(step_times.known(), default_step_time(n_experts)), n_experts)


def scaled(factor):
    return StepTime(TRUE.fixed * factor, TRUE.per_expert * factor, TRUE.per_request * factor, 128)


def test_step_times_are_learned_and_follow_a_restart():
    step_times = StepTimes()
    engines = [Engine(step_times, name, TRUE, seed) for seed, name in enumerate(("d0", "d1", "d2"))]
    for at in range(2):
        for engine in engines:
            engine.runs(300, at)
    learn_now(step_times, 128)
    assert step_times.learned is None
    assert step_times.of(["d0"], 128)[0] == default_step_time(128), "three windows are too few"
    for at in range(2, 40):
        for engine in engines:
            engine.runs(300, at)
    learn_now(step_times, 128)
    assert step_times.of(["d0"], 128)[0].seconds(20, 60) == pytest.approx(TRUE.seconds(20, 60), rel=0.02)
    engines[0].restarts(scaled(1.7))
    for at in range(40, 80):
        for engine in engines:
            engine.runs(300, at)
    learn_now(step_times, 128)
    assert step_times.of(["d0"], 128)[0].seconds(20, 60) == pytest.approx(
        1.7 * TRUE.seconds(20, 60), rel=0.04
    )
    assert step_times.of(["d1"], 128)[0].seconds(20, 60) == pytest.approx(TRUE.seconds(20, 60), rel=0.03)


def test_what_context_costs_is_learned_where_telemetry_shows_it():
    step_times = StepTimes()
    law = replace(TRUE, per_token=30e-9)
    engines = [Engine(step_times, name, law, seed) for seed, name in enumerate(("d0", "d1", "d2"))]
    for at in range(30):
        for engine in engines:
            engine.runs(300, at)
    learn_now(step_times, 128)
    (found,) = step_times.of(["d0"], 128)
    assert found.per_token == pytest.approx(30e-9, rel=0.05)
    assert found.seconds(20, 60, 300_000) == pytest.approx(law.seconds(20, 60, 300_000), rel=0.02)
    share, _ = step_times.expert_share()
    assert share < 0.9
    latest = [windows[-1] for windows in step_times.known().values()]
    active = sum(found.active for found in latest)
    batch = sum(found.batch for found in latest)
    beside = (law.per_expert * active + law.per_request * batch) / batch
    assert step_times.token_cost == pytest.approx(30e-9 / beside, rel=0.1)


def test_a_restart_is_noticed_whatever_its_steps_say():
    step_times = StepTimes()
    engine = Engine(step_times, "d0", TRUE, 0)
    engine.runs(20, 0)
    engine.restarts(scaled(0.001))
    engine.runs(30, 1)  # more steps than before, in less time
    assert step_times.known() == {}
    for at in range(2, 10):
        engine.runs(30, at)
    assert len(step_times.known()["d0"]) == 8


def test_who_was_slow_once_is_not_starved_for_ever():
    step_times = StepTimes()
    slow, *others = (Engine(step_times, f"d{at}", TRUE, at) for at in range(4))

    def seconds(engine):
        learn_now(step_times, 128)
        return step_times.of([engine], 128)[0].seconds(20, 60)

    slow.step_time = scaled(30)
    for at in range(20):
        for engine in others:
            engine.runs(300, at)
        if at > 16:
            slow.runs(15, at)
    assert seconds("d0") == pytest.approx(seconds("d1"), rel=0.02), "two windows say little"
    for at in range(20, 50):
        for engine in (slow, *others):
            engine.runs(15, at)
    assert 1.5 * seconds("d1") < seconds("d0") <= 2.1 * seconds("d1")
    for at in range(50, 90):  # it gets nothing, the others go on
        for engine in others:
            engine.runs(300, at)
    assert seconds("d0") == pytest.approx(seconds("d1"), rel=0.05)


def test_few_steps_wait_for_more():
    step_times = StepTimes()
    engine = Engine(step_times, "d0", TRUE, 0)
    for at in range(100):
        engine.runs(2, at)
    assert {found.steps for found in step_times.known()["d0"]} == {10}


def test_engines_that_are_gone_are_forgotten():
    step_times = StepTimes()
    engine = Engine(step_times, "d0", TRUE, 0)
    for at in range(20):
        engine.runs(100, at)
    step_times.retain([])
    learn_now(step_times, 128)
    assert (step_times.learned, step_times.expert_share()) == (None, None)


def test_engines_that_count_no_experts_tell_nothing_of_what_they_cost():
    step_times = StepTimes()
    for at in range(20):
        step_times.observe("d0", Sums(100.0 * at, 2.0 * at, 0.0, 1000.0 * at), 10.0 * at)
    learn_now(step_times, 128)
    assert step_times.learned is not None
    assert step_times.expert_share() is None


@pytest.mark.slow
@given(st.lists(st.tuples(*[st.floats(0, 1e300)] * 5), max_size=30))
def test_any_telemetry_is_survived(totals):
    step_times = StepTimes()
    for total in totals:
        step_times.observe("d0", Sums(*total), 0.0)
    learn_now(step_times, 64)
    assert step_times.of(["d0"], 64)[0].seconds(4, 10) >= 0
    assert step_times.of(["new"], 128)[0] == default_step_time(128)
