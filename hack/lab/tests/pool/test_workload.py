"""Arrivals whose mix drifts, and prompts that take time."""

import math

import numpy as np
import pytest

from eldr.simulate.workload import Window
from eldr_lab.pool.models import LATER
from eldr_lab.pool.prefix import PrefixCache
from eldr_lab.pool.workload import Drift, Prefill, make_workload
from eldr_lab.synthetic import workload as plain_workload

WINDOW = Window(10.0, 110.0, 20.0)


def make(population, **options):
    values = {"rate": 30.0, "window": WINDOW, "seed": 0, "output_tokens": 50}
    return make_workload(population, **values | options)


def test_without_drift_and_prefill_it_is_the_plain_workload(population):
    ours = make(population)
    theirs = plain_workload.make_workload(population, rate=30.0, window=WINDOW, seed=0, output_tokens=50)
    for name in ("arrival", "ready", "record", "tokens", "measured"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name


def test_the_mix_drifts(population):
    workload = make(population, drift=Drift(60.0, LATER["task"]))
    label = population.label[workload.record]
    before, after = label[workload.arrival < 60], label[workload.arrival >= 60]
    assert np.mean(before == 3) == pytest.approx(population.shares[3], abs=0.04)
    assert np.mean(after == 3) == pytest.approx(0.7, abs=0.04)


def test_cached_tokens_are_not_computed(population):
    prefill = Prefill(engines=1000, fixed=0.05, per_token=1e-3)  # nobody waits
    cold, warm = (make(population, prefill=prefill, cache=cache) for cache in (None, PrefixCache(0.5)))
    tokens = population.prompt_tokens[warm.record]
    found = tokens // 2 // 16 * 16
    assert warm.ready - warm.arrival == pytest.approx(0.05 + 1e-3 * (tokens - found))
    assert (warm.ready - warm.arrival).mean() < 0.8 * (cold.ready - cold.arrival).mean()


def test_prompts_queue_at_prefill_engines(population):
    prefill = Prefill(engines=2, fixed=0.05, per_token=1e-4)
    workload = make(population, prefill=prefill)
    alone = 0.05 + 1e-4 * population.prompt_tokens[workload.record]
    delay = workload.ready - workload.arrival
    assert (np.diff(workload.ready) >= 0).all()
    assert (delay >= alone - 1e-9).all()
    assert np.isclose(delay, alone).any()
    assert (delay > 1.2 * alone).any()
    # two engines serve two prompts at a time
    ends = np.sort(workload.ready)
    busy = np.array(
        [((workload.ready - alone < t - 1e-9) & (workload.ready > t + 1e-9)).sum() for t in ends[::50]]
    )
    assert busy.max() <= 2
    plain = make(population)
    assert np.array_equal(np.sort(plain.arrival), np.sort(workload.arrival))
    assert math.isclose(plain.ready[5], plain.arrival[5])
