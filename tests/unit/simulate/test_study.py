"""Comparisons, in the demo's own setting: captured activations on slowed engines."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.simulate.captured import Captured
from eldr.simulate.contenders import parse_contender
from eldr.simulate.engine import Limits
from eldr.simulate.pairs import change
from eldr.simulate.setting import Setting
from eldr.simulate.study import Study, run_study
from eldr.simulate.synthetic import WORKLOADS, Geometry, Synthetic

TEXTS = ("JSQ", "ELDR", "MarginalUnion", "MarginalUnion:prior=0.23")
DEMO = Setting(
    engines=4,
    rate=11.0,
    batch=None,
    step_time=QWEN3_30B_MI300X.for_experts(64),
    speeds=(3.0,),
    limits=Limits(),
    warmup=15.0,
    seconds=30.0,
    output_tokens=96,
    sampled=True,
)


@pytest.fixture(scope="module")
def demo(captured):
    source = Captured(captured, ("fr", "ru", "manual", "legal"))
    return Study(source, [DEMO], [parse_contender(text) for text in TEXTS], range(2))


@pytest.fixture(scope="module")
def outcomes(demo):
    return run_study(demo)


def by_policy(outcomes, name):
    return {
        text: [getattr(one.measures, name) for one in outcomes if one.contender == at]
        for at, text in enumerate(TEXTS)
    }


@pytest.mark.slow
def test_marginal_union_is_below_jsq_in_mean_and_tail(outcomes):
    for name in ("tpot_mean", "tpot_p50", "tpot_p99"):
        found = by_policy(outcomes, name)
        for text in TEXTS[2:]:
            assert all(ours < theirs for ours, theirs in zip(found[text], found["JSQ"], strict=True)), name


def test_the_band_saves_experts_and_crowds(outcomes):
    experts, imbalance = by_policy(outcomes, "active_per_token"), by_policy(outcomes, "imbalance")
    assert change(experts["ELDR"], experts["JSQ"]).mean < -0.08
    assert min(imbalance["ELDR"]) > max(imbalance["MarginalUnion"]) > max(imbalance["JSQ"])


def test_all_policies_meet_the_same_requests(outcomes):
    assert len({one.measures.requests for one in outcomes if one.seed == 0}) == 1
    assert [one[:3] for one in outcomes] == [(0, at, seed) for at in range(4) for seed in range(2)]


@pytest.mark.slow
def test_runs_beside_each_other_give_the_same(demo, outcomes):
    told = []
    with ThreadPoolExecutor(2) as executor:
        again = run_study(demo, executor=executor, progress=told.append)
    assert again == outcomes
    assert told == list(range(1, demo.runs + 1))


@pytest.mark.slow
def test_a_wanted_batch_is_met(captured):
    source = Captured(captured, captured.kinds)
    for engines, batch in ((2, 8.0), (4, 16.0)):
        setting = replace(DEMO, engines=engines, rate=None, batch=batch, warmup=None, seconds=60.0)
        (one,) = run_study(Study(source, [setting], [parse_contender("JSQ")], [0]))
        assert one.measures.batch == pytest.approx(batch, rel=0.15)
        point = setting.operating_point(source.traffic(0).requests, 0)
        assert one.rate == point.rate
        back = replace(setting, rate=point.rate, batch=None).operating_point(source.traffic(0).requests, 0)
        assert back.batch == pytest.approx(batch, rel=0.1)


def test_warm_up_lasts_until_the_longest_requests_leave(captured):
    requests = replace(
        Captured(captured, captured.kinds).traffic(0).requests, output_tokens=np.array([10] * 383 + [900])
    )
    own = replace(DEMO, warmup=None, output_tokens=None)
    assert own.window(requests, 0.02).warmup == pytest.approx(18.0)
    assert replace(own, output_tokens=100).window(requests, 0.02).warmup == pytest.approx(4.0)
    assert replace(own, warmup=1.0).window(requests, 0.02).warmup == 1.0
    assert replace(own, warmup=1.0).window(requests, 0.02).end == 31.0


@pytest.mark.slow
def test_without_expert_costs_locality_brings_nothing_and_marginal_union_balances():
    free = replace(QWEN3_30B_MI300X, per_expert=0.0, per_request=1e-4)
    setting = replace(DEMO, step_time=free, sampled=False, rate=200.0, speeds=(1.0,), warmup=2.0, seconds=6.0)
    source = Synthetic(WORKLOADS["task"], Geometry(32, 4), n_layers=2, calibration=100, requests=200)
    found = by_policy(
        run_study(Study(source, [setting], [parse_contender(text) for text in TEXTS], [0])), "tpot_p99"
    )
    assert found["MarginalUnion"][0] == pytest.approx(found["JSQ"][0], rel=0.01)
    assert found["ELDR"][0] > found["JSQ"][0]


def test_intervals_are_students():
    found = change([0.9, 0.8, 0.85], [1.0, 1.0, 1.0])
    assert found.mean == pytest.approx(-0.15)
    assert found.half_width == pytest.approx(4.302653 * 0.05 / math.sqrt(3), rel=1e-5)
    assert math.isnan(change([1.0], [2.0]).half_width)


def test_requests_without_a_rate_need_one(population):
    with pytest.raises(ValueError, match="rate: expected one or a batch"):
        replace(DEMO, rate=None).operating_point(population, 0)
