"""Invariants of whole runs."""

from collections import Counter

import numpy as np
import pytest

from eldr.core.domains import groups_by_share
from eldr.simulate.centroids import fitted, similarities
from eldr.simulate.engine import Limits
from eldr.simulate.run import Pool, simulate
from eldr.simulate.workload import Window, make_workload
from eldr_lab.synthetic.contenders import parse_contender

WINDOW = Window(0.0, 20.0, 0.0)  # all requests are measured: runs go on until the last has ended
TEXTS = [
    "JSQ", "RoundRobin", "Random", "PowerOfTwo", "Domain", "ELDR", "ELDR:min_candidates=2:max_load=1.25",
    "MarginalUnion", "MarginalUnion:prior=0.23",
]  # fmt: skip


@pytest.fixture(scope="module")
def scores(small):
    return similarities(fitted(small.calibration, 4, 1), small.requests.prefill)


@pytest.fixture(scope="module")
def run(population, scores, step_time):
    def run(text, *, window=WINDOW, rate=15.0, pool=None, tokens=60, seed=0, similarity=scores):
        contender = parse_contender(text)
        workload = make_workload(population, rate=rate, window=window, seed=seed, output_tokens=tokens)
        done = simulate(
            pool or Pool((step_time,) * 4, Limits(), sampled=False),
            population,
            workload,
            window,
            contender.policy(groups_by_share(population.labels, population.shares, 4)),
            similarity=similarity if contender.centroids else None,
            unions=contender.unions,
            seed=seed,
        )
        return workload, done

    return run


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("sampled", [False, True])
def test_every_request_ends_once_and_counts_return_to_zero(run, step_time, text, sampled):
    workload, done = run(text, pool=Pool((step_time,) * 4, Limits(), sampled=sampled))
    assert done.measures.requests == len(workload)
    assert done.left == [0, 0, 0, 0]
    assert ((done.worker >= 0) & (done.worker < 4)).all()
    assert (done.joined >= workload.ready - 1e-9).all()
    assert (done.first > done.joined).all()
    assert (done.end > done.first).all()
    shortest = step_time.seconds(1, 4.0)
    assert ((done.end - done.joined) >= 60 * shortest * 0.999).all()


@pytest.mark.parametrize("text", TEXTS)
def test_the_same_seed_gives_the_same_run(run, text):
    one, same = run(text)[1], run(text)[1]
    assert one.measures == same.measures
    assert np.array_equal(one.worker, same.worker)
    assert np.array_equal(one.end, same.end)
    assert run(text, seed=1)[1].measures != one.measures


def test_a_lone_request_sees_the_step_times_step_time(run, population, step_time):
    workload, done = run("JSQ", rate=0.05, window=Window(0.0, 90.0, 0.0))
    lone = workload.record[0]
    active = (96 - np.exp(population.logs[lone].astype(np.float64)).sum()) / 3
    tpot = (done.end[0] - done.first[0]) / 59
    assert tpot == pytest.approx(step_time.seconds(1, active), rel=1e-9)
    assert done.end[0] - done.joined[0] == pytest.approx(60 * step_time.seconds(1, active), rel=1e-9)
    assert done.joined[0] == workload.arrival[0]


def test_the_time_per_token_is_of_those_after_the_first(run):
    _, done = run("JSQ", tokens=4)
    assert done.measures.tpot_mean == pytest.approx(np.mean((done.end - done.first) / 3), rel=1e-9)


def test_taking_steps_together_changes_nothing(run, population, step_time, monkeypatch):
    _, together = run("JSQ")
    monkeypatch.setattr("eldr.simulate.active.ExpectedUnion.steady", False)
    _, single = run("JSQ")
    assert together.end == pytest.approx(single.end, rel=1e-9)
    assert np.array_equal(together.worker, single.worker)
    assert together.measures.active_per_token == pytest.approx(single.measures.active_per_token, rel=1e-3)


def test_jsq_is_as_good_as_round_robin_under_even_load(run):
    jsq, turn = (run(text)[1].measures for text in ("JSQ", "RoundRobin"))
    assert jsq.tpot_mean == pytest.approx(turn.tpot_mean, rel=0.02)
    assert jsq.imbalance < 1.2
    assert jsq.candidates == 4.0


@pytest.mark.parametrize("text", ["ELDR", "Domain", "MarginalUnion", "MarginalUnion:prior=0.23"])
def test_locality_saves_experts(run, text):
    jsq, local = run("JSQ")[1].measures, run(text)[1].measures
    assert local.active_per_token < 0.97 * jsq.active_per_token
    assert local.tpot_mean < jsq.tpot_mean


def test_domains_stay_in_their_groups(run, population):
    workload, done = run("Domain")
    groups = groups_by_share(population.labels, population.shares, 4)
    for record, worker in zip(workload.record, done.worker, strict=True):
        assert worker in groups[population.labels[population.label[record]]]


def test_capacity_is_respected_and_waiting_told(run, step_time):
    pool = Pool((step_time,) * 4, Limits(max_num_seqs=2), sampled=False)
    _, done = run("JSQ", pool=pool)
    assert done.measures.waited > 0.2
    assert done.measures.batch <= 2
    changes = [(time, +1, worker) for time, worker in zip(done.joined, done.worker, strict=True)]
    changes += [(time, -1, worker) for time, worker in zip(done.end, done.worker, strict=True)]
    held = Counter()
    for _, change, worker in sorted(changes):
        held[worker] += change
        assert held[worker] <= 2
    assert run("JSQ")[1].measures.waited == 0


def test_no_measured_request_is_an_error(run):
    with pytest.raises(ValueError, match="simulate longer"):
        run("JSQ", window=Window(0.0, 1e-6, 5.0))


def test_centroids_that_say_the_same_of_all_requests_crowd_nobody(run, scores, monkeypatch):
    stale = np.tile(np.float32([0.9, 0.1, 0.1, 0.1]), (len(scores), 1))

    def imbalance(text):
        return run(text, similarity=stale, rate=30.0)[1].measures.imbalance

    without, charged = imbalance("MarginalUnion"), imbalance("MarginalUnion:prior=0.23")
    monkeypatch.setattr("eldr.core.tolls.Tolls.settle", lambda self, situation: None)
    crowded = imbalance("MarginalUnion:prior=0.23")
    assert charged - without < (crowded - without) / 2


def test_slow_engines_get_less_of_a_policy_that_knows_their_step_time(run, step_time):
    step_times = (step_time, step_time, step_time.scaled(2.0), step_time.scaled(2.0))
    shares = {}
    for text in ("RoundRobin", "MarginalUnion"):
        _, done = run(text, pool=Pool(step_times, Limits(), sampled=False))
        shares[text] = np.mean(done.worker >= 2)
    assert shares["RoundRobin"] == pytest.approx(0.5, abs=0.01)
    assert shares["MarginalUnion"] < 0.4
