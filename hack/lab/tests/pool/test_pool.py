"""Whole runs of pools that only studies simulate."""

from dataclasses import replace

import numpy as np
import pytest

from eldr.core.policy import Choice
from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.simulate import run
from eldr.simulate.engine import Limits
from eldr_bench.proof import Unproven
from eldr_lab.evidence.cells import LATER
from eldr_lab.pool.contenders import BLIND, parse_contender
from eldr_lab.pool.setting import Drift, Prefill, Setting
from eldr_lab.pool.study import run_whole
from eldr_lab.synthetic import study, workload
from eldr_lab.synthetic.activations import WORKLOADS, Geometry, Synthetic
from eldr_lab.synthetic.contenders import parse_contender as plain_contender
from eldr_lab.synthetic.study import meet, prepare

POOL = Setting(
    engines=4, rate=40.0, batch=None, step_time=QWEN3_30B_MI300X.for_experts(32), speeds=(1.0,), limits=Limits(), warmup=15.0,
    seconds=30.0, output_tokens=96, sampled=False,
)  # fmt: skip
SHORT = replace(POOL, warmup=2.0, seconds=4.0, output_tokens=48)
TASKS = Synthetic(WORKLOADS["task"], Geometry(32, 4), n_layers=3, calibration=120, requests=400)
PRIOR, LEARNED = "MarginalUnion:prior=0.23", "MarginalUnion:learned=0.23"
NAMES = ("RoundRobin", "JSQ", "PowerOfTwo", "Random", "Domain", "ELDR", "ELDR:min_candidates=2", "ELDR:max_load=1.25", "ELDR:tau=1",
         "ELDR:refit=1", "MarginalUnion", PRIOR, LEARNED, BLIND)  # fmt: skip


@pytest.fixture(scope="module")
def prepared():
    return prepare(TASKS, 0, [POOL.engines], [parse_contender(name) for name in NAMES])


def ran(prepared, name, setting=SHORT):
    return run_whole(prepared, setting, parse_contender(name), meet(prepared, setting))


def measured(prepared, setting, *names):
    return [ran(prepared, name, setting).measures for name in names]


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_rests_on_what_its_name_says(prepared, name):
    ran(prepared, name, replace(SHORT, routers=2, speeds=(1.0, 1.6)))
    assert ran(prepared, name).measures.requests == meet(prepared, SHORT).workload.measured.sum()


def test_without_what_only_studies_vary_it_is_the_products_simulator(prepared):
    theirs = study.run_one(prepared, POOL, plain_contender(PRIOR), study.meet(prepared, POOL))
    assert ran(prepared, PRIOR, POOL).measures == theirs


@pytest.mark.parametrize(
    ("name", "policy", "lacks"),
    [
        ("JSQ", "balancers.JSQ", "not the fewest in flight"),
        ("ELDR:max_load=1.25", "band.BandJSQ", "outside of the band"),
        ("MarginalUnion", "marginal.MarginalUnion", "not the cheapest"),
    ],
)
def test_a_policy_that_does_not_keep_its_rule_is_unproven(prepared, monkeypatch, name, policy, lacks):
    monkeypatch.setattr(f"eldr.core.{policy}.choose", lambda self, situation, rng: Choice(0, 1))
    with pytest.raises(Unproven, match=lacks):
        ran(prepared, name)


def test_knowledge_that_is_missing_or_never_matters_is_unproven(prepared, monkeypatch):
    flat = np.zeros((len(prepared.population), SHORT.engines), dtype=np.float32)
    blind = replace(prepared, similarity=dict.fromkeys(prepared.similarity))
    with pytest.raises(Unproven, match=r"'union': .* not on union and prior"):
        ran(blind, PRIOR)
    with pytest.raises(Unproven, match="JSQ would have made no decision otherwise"):
        ran(replace(prepared, similarity=dict.fromkeys(prepared.similarity, flat)), "ELDR")
    monkeypatch.setattr("eldr_lab.pool.routers.Rolling._fit", lambda self: None)
    with pytest.raises(Unproven, match=r"refitted their centroids \[0\] times"):
        ran(prepared, "ELDR:refit=1")
    monkeypatch.setattr("eldr.core.union.Unions.outlook", lambda *args: None)
    with pytest.raises(Unproven, match="no outlook"):
        ran(prepared, "MarginalUnion")


def test_measured_requests_that_do_not_end_are_unproven(prepared, monkeypatch):
    whole = run.serve

    def cut(engines, router, workload, tally):
        fewer = workload.measured.copy()
        fewer[np.flatnonzero(fewer)[-3:]] = False
        return whole(engines, router, replace(workload, measured=fewer), tally)

    monkeypatch.setattr(run, "serve", cut)
    with pytest.raises(Unproven, match="measured requests were not answered"):
        ran(prepared, "JSQ")


def test_the_mix_drifts_and_what_comes_after_is_measured(population):
    setting = replace(POOL, warmup=1.0, drift=Drift(60.0, LATER["task"]))
    window = setting.window(population, 0.02)
    assert (window.warmup, window.end) == (60.0, 90.0)
    drawn = setting.workload(population, 30.0, window, 0)
    plain = workload.make_workload(population, rate=30.0, window=window, seed=0, output_tokens=96)
    label, before = population.label[drawn.record], drawn.arrival < 60
    assert np.array_equal(drawn.arrival, plain.arrival)
    assert np.mean(label[before] == 3) == pytest.approx(population.shares[3], abs=0.05)
    assert np.mean(label[~before] == 3) == pytest.approx(0.7, abs=0.05)


def test_prompts_queue_at_prefill_engines(population):
    setting = replace(POOL, prefill=Prefill(engines=2, fixed=0.05, per_token=1e-4))
    drawn = setting.workload(population, 30.0, setting.window(population, 0.02), 0)
    alone = 0.05 + 1e-4 * population.prompt_tokens[drawn.record]
    delay = drawn.ready - drawn.arrival
    assert (np.diff(drawn.ready) >= 0).all()
    assert (delay >= alone - 1e-9).all()
    assert np.isclose(delay, alone).any()
    assert (delay > 1.2 * alone).any()


def test_refits_follow_a_drift(prepared):
    setting = replace(POOL, drift=Drift(20.0, LATER["task"]))
    kept, again, union = measured(prepared, setting, "ELDR", "ELDR:refit=2.5", f"{PRIOR}:refit=5")
    assert again.tpot_mean < 0.98 * kept.tpot_mean
    assert again.imbalance < 0.6 * kept.imbalance
    assert union.tpot_mean < kept.tpot_mean


def test_routers_that_talk_seldom_balance_worse(prepared):
    one, often, seldom = (
        measured(prepared, replace(POOL, routers=routers, lag=lag), "MarginalUnion")[0].imbalance
        for routers, lag in ((1, 1.0), (3, 0.01), (3, 5.0))
    )
    assert one == pytest.approx(often, rel=0.06)
    assert seldom > often


def test_the_blind_policy_knows_speeds_and_no_experts(prepared):
    """In a pool of two speeds it beats the balancer; where all are alike, it is one."""
    for setting, wins in ((replace(POOL, speeds=(1.0, 1.58)), True), (POOL, False)):
        jsq, blind, seeing = measured(prepared, setting, "JSQ", BLIND, "MarginalUnion")
        assert blind.active_per_token > 0.98 * jsq.active_per_token
        assert seeing.active_per_token < 0.98 * blind.active_per_token
        assert (blind.tpot_p99 < 0.97 * jsq.tpot_p99) == wins


def test_a_learned_prior_survives_engines_that_come_and_routers_that_restart(prepared):
    none, fitted, learned = measured(prepared, POOL, "MarginalUnion", PRIOR, LEARNED)
    assert learned.active_per_token < none.active_per_token
    assert learned.tpot_mean < 1.01 * fitted.tpot_mean
    load = meet(prepared, POOL)
    at = load.window.warmup
    engine = ran(prepared, LEARNED, replace(POOL, joins=((2, at),))).engine
    assert not (engine[load.workload.ready < at] == 2).any()
    assert 0.5 / POOL.engines < (engine[load.workload.measured] == 2).mean() < 2.0 / POOL.engines
    (again,) = measured(prepared, replace(POOL, restarts=at), LEARNED)
    assert again.tpot_mean < 1.03 * learned.tpot_mean


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ELDR:refit=0", "refit: expected seconds, more than 0"),
        ("JSQ:refit=2", "no centroids to refit"),
        ("ELDR:best=1", "ELDR has no option 'best'"),
    ],
)
def test_bad_policies_say_why(text, message):
    with pytest.raises(ValueError, match=message):
        parse_contender(text)
