"""Invariants of whole runs."""

import numpy as np
import pytest

from eldr.core.policies import make_policy
from eldr.simulate.active import ActiveExperts
from eldr.simulate.engine import Engine, Limits
from eldr.simulate.measures import Tally
from eldr.simulate.routing import Knowledge, Router
from eldr.simulate.run import serve
from eldr.simulate.workload import Window, make_workload

WINDOW = Window(0.0, 20.0, 0.0)  # all requests are measured: runs go on until the last has ended
POLICIES = ["JSQ", "RoundRobin", "Random", "PowerOfTwo", "ELDR", "MarginalUnion", "learned", "fitted"]
"""``MarginalUnion`` without a prior, with one that the router learns, and with one from centroids."""


@pytest.fixture(scope="module")
def scores(population):
    """Cosines to four centroids, one of each kind of request."""
    points = population.prefill.reshape(200, -1) / population.prompt_tokens[:, None]
    points -= points.mean(axis=0)  # as rare experts weigh more in a signature
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    centers = np.stack([points[kind::4].mean(axis=0) for kind in range(4)])
    return points @ (centers / np.linalg.norm(centers, axis=1, keepdims=True)).T


@pytest.fixture(scope="module")
def run(population, scores, step_time):
    def run(
        name, *, window=WINDOW, rate=15.0, step_times=None, most=256, tokens=60, seed=0, similarity=scores
    ):
        step_times = step_times or (step_time,) * 4
        steps = np.full(200, tokens)
        workload = make_workload(steps, rate=rate, window=window, seed=seed, per_step=1.0)
        unions = name in {"MarginalUnion", "learned", "fitted"}
        policy = make_policy(
            "MarginalUnion" if unions else name, prior=0.0 if name == "MarginalUnion" else 0.23
        )
        similarity = similarity if name in {"ELDR", "fitted"} else None
        known = Knowledge(population, step_times, similarity, unions, name == "learned")
        engines = [Engine(one, Limits(most), ActiveExperts(population.logs, 3)) for one in step_times]
        router = Router(policy, known, seed)
        done = serve(engines, router, workload, Tally(window))
        assert router._own == [0] * len(engines), "counts return to zero"
        return workload, done

    return run


@pytest.mark.parametrize("name", POLICIES)
def test_every_request_ends_once(run, step_time, name):
    workload, done = run(name)
    assert done.measures.requests == len(workload)
    assert ((done.engine >= 0) & (done.engine < 4)).all()
    assert (done.first > workload.ready).all()
    shortest = step_time.seconds(1, 3.0)
    assert ((done.end - done.first) >= 59 * shortest * 0.999).all()


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_gives_the_same_run(run, name):
    one, same = run(name)[1], run(name)[1]
    assert one.measures == same.measures
    assert np.array_equal(one.engine, same.engine)
    assert np.array_equal(one.end, same.end)
    assert run(name, seed=1)[1].measures != one.measures


def test_a_lone_request_sees_the_step_times_step_time(run, population, step_time):
    workload, done = run("JSQ", rate=0.05, window=Window(0.0, 90.0, 0.0))
    lone = workload.record[0]
    active = (96 - np.exp(population.logs[lone].astype(np.float64)).sum()) / 3
    assert done.end[0] - workload.arrival[0] == pytest.approx(60 * step_time.seconds(1, active), rel=1e-9)


def test_the_time_per_token_is_of_those_after_the_first(run):
    _, done = run("JSQ", tokens=4)
    assert done.measures.tpot_mean == pytest.approx(np.mean((done.end - done.first) / 3), rel=1e-9)


def test_taking_steps_together_changes_nothing(run, monkeypatch):
    _, together = run("JSQ")
    monkeypatch.setattr("eldr.simulate.active.ActiveExperts.steady", False)
    _, single = run("JSQ")
    assert together.end == pytest.approx(single.end, rel=1e-9)
    assert np.array_equal(together.engine, single.engine)
    assert together.measures.active_per_token == pytest.approx(single.measures.active_per_token, rel=1e-3)


@pytest.mark.parametrize("name", ["MarginalUnion", "learned", "fitted"])
def test_locality_saves_experts(run, name):
    jsq, local = run("JSQ")[1].measures, run(name)[1].measures
    assert local.active_per_token < 0.97 * jsq.active_per_token
    assert local.tpot_mean < jsq.tpot_mean


def test_capacity_is_respected_and_waiting_counted(run):
    _, done = run("JSQ", most=2)
    assert done.measures.waited > 0.2
    assert done.measures.batch <= 2
    assert run("JSQ")[1].measures.waited == 0


def test_centroids_that_say_the_same_of_all_requests_crowd_nobody(run, scores, monkeypatch):
    stale = np.tile(np.float32([0.9, 0.1, 0.1, 0.1]), (len(scores), 1))

    def most(name):
        return np.bincount(run(name, similarity=stale, rate=30.0)[1].engine, minlength=4).max()

    without, charged = most("MarginalUnion"), most("fitted")
    monkeypatch.setattr("eldr.core.tolls.Tolls.settle", lambda self, situation: None)
    crowded = most("fitted")
    assert charged - without < (crowded - without) / 2


def test_slow_engines_get_less_of_a_policy_that_knows_their_step_time(run, step_time):
    step_times = (step_time, step_time, step_time.scaled(2.0), step_time.scaled(2.0))
    shares = {
        name: np.mean(run(name, step_times=step_times)[1].engine >= 2)
        for name in ("RoundRobin", "MarginalUnion")
    }
    assert shares["RoundRobin"] == pytest.approx(0.5, abs=0.01)
    assert shares["MarginalUnion"] < 0.4
