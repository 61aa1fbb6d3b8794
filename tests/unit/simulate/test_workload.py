"""Arrivals."""

import math
from dataclasses import replace

import numpy as np
import pytest

from eldr.simulate.population import Arrivals
from eldr.simulate.prefix import PrefixCache
from eldr.simulate.workload import Prefill, Window, make_workload, prefill_rate

WINDOW = Window(10.0, 110.0, 20.0)


def make(population, **options):
    values = {"rate": 30.0, "window": WINDOW, "seed": 0, "output_tokens": 50}
    return make_workload(population, **values | options)


def test_arrivals_are_poisson_at_the_rate(population):
    workload = make(population)
    gaps = np.diff(workload.arrival)
    assert 1 / gaps.mean() == pytest.approx(30, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.06)
    assert 100 < workload.arrival[-1] < 130
    assert np.array_equal(workload.measured, (workload.arrival >= 10) & (workload.arrival < 110))
    assert (workload.tokens == 50).all()


def test_labels_come_by_share_and_no_request_again_before_all_others(population):
    workload = make(population)
    label = population.label[workload.record]
    share = np.bincount(label) / len(label)
    assert share == pytest.approx(population.shares, abs=0.03)
    of_first = workload.record[label == 0].tolist()
    assert len(set(of_first[:50])) == 50


def test_the_mix_drifts(population):
    workload = make(population, drift_at=60.0)
    label = population.label[workload.record]
    before, after = label[workload.arrival < 60], label[workload.arrival >= 60]
    assert np.mean(before == 3) == pytest.approx(population.shares[3], abs=0.04)
    assert np.mean(after == 3) == pytest.approx(0.7, abs=0.04)


def test_drift_needs_another_mix(population):
    with pytest.raises(ValueError, match="no labels whose mix"):
        make(replace(population, later=None), drift_at=1.0)


def test_lengths_are_given_or_the_requests_own(population):
    with pytest.raises(ValueError, match="no lengths of their own"):
        make(population, output_tokens=None)
    own = replace(population, output_tokens=np.arange(200) + 1)
    workload = make(own, output_tokens=None)
    assert np.array_equal(workload.tokens, workload.record + 1)


def test_a_rate_is_positive(population):
    with pytest.raises(ValueError, match="more than 0"):
        make(population, rate=0.0)


def test_cached_tokens_are_not_computed(population):
    prefill = Prefill(engines=1000, fixed=0.05, per_token=1e-3)  # nobody waits
    cold, warm = (make(population, prefill=prefill, cache=cache) for cache in (None, PrefixCache(0.5)))
    tokens = population.prompt_tokens[warm.record]
    found = tokens // 2 // 16 * 16
    assert warm.ready - warm.arrival == pytest.approx(0.05 + 1e-3 * (tokens - found))
    assert (warm.ready - warm.arrival).mean() < 0.8 * (cold.ready - cold.arrival).mean()


def test_what_prefill_engines_can_compute(population):
    prefill = Prefill(engines=2, fixed=0.05, per_token=1e-3)
    cache = PrefixCache(0.5)
    workload = make(population, prefill=prefill, rate=1.0)
    tokens = population.prompt_tokens[workload.record]
    assert prefill_rate(prefill, population, workload) == pytest.approx(2 / (0.05 + 1e-3 * tokens.mean()))
    assert prefill_rate(prefill, population, workload, cache) == pytest.approx(
        2 / (0.05 + 1e-3 * (tokens - cache.found(tokens)).mean())
    )
    assert prefill_rate(None, population, workload) == math.inf
    assert prefill_rate(Prefill(1, 0.0, 0.0), population, workload) == math.inf


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


def test_logged_requests_come_in_their_order_with_their_gaps(population):
    gaps = np.random.default_rng(1).exponential(3.0, len(population))
    known = replace(population, arrivals=Arrivals(gaps, 1 / 3))
    workload = make(known, rate=2.0, logged=True, window=Window(100.0, 400.0, 100.0))
    record, steps = workload.record, np.diff(workload.arrival)
    assert len(record) > 4 * len(population), "it goes round"
    assert np.array_equal(record[1:], (record[:-1] + 1) % len(population))
    assert steps == pytest.approx(gaps[record[:-1]] / (gaps.mean() * 2.0))
    assert 490 < workload.arrival[-1] < 500
    other = make(known, rate=2.0, logged=True, seed=1)
    assert other.record[0] != record[0]
    with pytest.raises(ValueError, match="nobody knows when"):
        make(population, logged=True)
