"""Whole runs of pools that only studies simulate."""

from dataclasses import replace

import pytest

from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.simulate.engine import Limits
from eldr_lab.pool.contenders import parse_contender
from eldr_lab.pool.models import LATER
from eldr_lab.pool.prefix import PrefixCache
from eldr_lab.pool.replicas import Replicas
from eldr_lab.pool.setting import Setting
from eldr_lab.pool.study import meet, prepare, run_one, run_whole
from eldr_lab.pool.workload import Drift
from eldr_lab.synthetic.activations import WORKLOADS, Geometry, Synthetic
from eldr_lab.synthetic.captured import Captured

POOL = Setting(
    engines=4,
    rate=40.0,
    batch=None,
    step_time=QWEN3_30B_MI300X.for_experts(32),
    speeds=(1.0,),
    limits=Limits(),
    warmup=15.0,
    seconds=30.0,
    output_tokens=96,
    sampled=False,
)
TASKS = Synthetic(WORKLOADS["task"], Geometry(32, 4), n_layers=3, calibration=120, requests=400)


def measured(source, setting, *texts, seed=0):
    """Return what each policy measures."""
    contenders = [parse_contender(text) for text in texts]
    prepared = prepare(source, seed, [setting.engines], contenders, profiled=setting.spread)
    load = meet(prepared, setting)
    return [run_one(prepared, setting, contender, load) for contender in contenders]


def test_vanilla_clusters_crowd(captured):
    setting = replace(
        POOL, engines=8, speeds=(6.0,), rate=11.0, step_time=QWEN3_30B_MI300X.for_experts(64), sampled=True
    )
    balanced, plain = measured(Captured(captured, captured.kinds), setting, "ELDR", "ELDR-vanilla")
    assert plain.imbalance > balanced.imbalance


def test_refits_follow_a_drift():
    setting = replace(POOL, drift=Drift(20.0, LATER["task"]))
    kept, again, plain, union = measured(
        TASKS,
        setting,
        "ELDR",
        "ELDR:refit=2.5",
        "ELDR-vanilla:refit=2.5",
        "MarginalUnion:prior=0.23:refit=5:window=20",
    )
    assert again.tpot_mean < 0.98 * kept.tpot_mean
    assert again.imbalance < min(0.6 * kept.imbalance, plain.imbalance)
    assert union.tpot_mean < kept.tpot_mean


def test_counts_of_cached_prefixes_are_worth_knowing_where_little_is_computed():
    caches = (None, PrefixCache(1.0), PrefixCache(1.0, counted=False))
    cold, known, lost = (
        measured(TASKS, replace(POOL, cache=cache), "ELDR", "MarginalUnion") for cache in caches
    )
    assert known == cold  # without a prefill stage a cache saves no time
    for ours, theirs in zip(cold, lost, strict=True):
        assert ours.active_per_token < 0.995 * theirs.active_per_token


def test_routers_that_talk_seldom_balance_worse():
    one, often, seldom = (
        measured(TASKS, replace(POOL, routers=routers, lag=lag), "MarginalUnion")[0].imbalance
        for routers, lag in ((1, 1.0), (3, 0.01), (3, 5.0))
    )
    assert one == pytest.approx(often, rel=0.06)
    assert seldom > often


def test_what_comes_after_a_drift_is_measured(population):
    drifting = replace(POOL, warmup=1.0, drift=Drift(7.0, LATER["task"]))
    window = drifting.window(population, 0.02)
    assert (window.warmup, window.end) == (7.0, 37.0)


def test_an_engine_of_several_ranks_waits_for_its_fullest():
    setting = replace(POOL, ranks=4, rate=4.0)
    (jsq,) = measured(TASKS, setting, "JSQ")
    assert jsq.active_per_token / 4 < jsq.fullest_per_token < jsq.active_per_token
    step = setting.step_time.fixed + setting.step_time.per_expert * jsq.fullest_per_token
    assert jsq.tpot_mean == pytest.approx(step, rel=0.1)
    with pytest.raises(ValueError, match="do not divide evenly among 5"):
        measured(TASKS, replace(setting, ranks=5), "JSQ")


def test_choices_of_replicas_meet_the_same_requests(captured):
    source = Captured(captured, captured.kinds)
    setting = replace(POOL, engines=2, ranks=4, rate=8.0, sampled=True, seconds=5.0, warmup=2.0)
    choices = {
        "none": Replicas(ratio=1.0, placing="tokens"),
        **{
            balance: Replicas(ratio=1.25, placing="tokens", balance=balance)
            for balance in ("tokens", "greedy", "exact")
        },
    }
    found = {
        name: measured(source, replace(setting, replicas=replicas), "JSQ")[0]
        for name, replicas in choices.items()
    }
    fullest = {name: one.fullest_per_token for name, one in found.items()}
    assert fullest["exact"] <= fullest["greedy"] < fullest["none"]
    assert fullest["tokens"] > fullest["greedy"]


def test_hot_experts_of_a_cluster_are_dealt_out():
    setting = replace(POOL, ranks=4)
    together, dealt = (
        measured(TASKS, replace(setting, spread=spread), "ELDR")[0] for spread in (False, True)
    )
    assert dealt.fullest_per_token < together.fullest_per_token


def test_the_blind_policy_knows_speeds_and_no_experts():
    """In a pool of two speeds it beats the balancer; where all are alike, it is one."""
    uneven = replace(POOL, speeds=(1.0, 1.58))
    for setting, wins in ((uneven, True), (POOL, False)):
        jsq, blind, seeing = measured(TASKS, setting, "JSQ", "MarginalUnion:blind", "MarginalUnion")
        assert blind.active_per_token > 0.98 * jsq.active_per_token
        assert seeing.active_per_token < 0.98 * blind.active_per_token
        assert (blind.tpot_p99 < 0.97 * jsq.tpot_p99) == wins


def test_a_prior_that_is_learned_is_worth_nearly_as_much_as_a_fitted_one():
    none, fitted, learned = measured(
        TASKS, POOL, "MarginalUnion", "MarginalUnion:prior=0.23", "MarginalUnion:learned=0.23"
    )
    assert learned.active_per_token < none.active_per_token
    assert learned.tpot_mean < 1.01 * fitted.tpot_mean


def test_routers_tell_each_other_what_they_learned():
    text = "MarginalUnion:learned=0.23"
    (alone,) = measured(TASKS, POOL, text)
    (shared,) = measured(TASKS, replace(POOL, routers=3), text)
    assert shared.tpot_mean < 1.03 * alone.tpot_mean


def test_an_engine_that_comes_later_gets_its_share_and_a_restart_is_survived():
    contender = parse_contender("MarginalUnion:learned=0.23")
    prepared = prepare(TASKS, 0, [POOL.engines], [contender])
    load = meet(prepared, POOL)
    at = load.window.warmup
    run = run_whole(prepared, replace(POOL, joins=((2, at),)), contender, load)
    ready, worker = load.workload.ready, run.worker
    assert not (worker[ready < at] == 2).any()
    later = load.workload.measured
    assert 0.5 / POOL.engines < (worker[later] == 2).mean() < 2.0 / POOL.engines
    (whole,) = measured(TASKS, POOL, contender.text)
    (again,) = measured(TASKS, replace(POOL, restarts=at), contender.text)
    assert again.tpot_mean < 1.03 * whole.tpot_mean
