"""Comparisons, in the demo's own setting: captured activations on slowed engines."""

from dataclasses import replace

import numpy as np
import pytest

from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.simulate.engine import Limits
from eldr_lab.synthetic.activations import WORKLOADS, Geometry, Synthetic
from eldr_lab.synthetic.captured import Captured
from eldr_lab.synthetic.contenders import parse_contender
from eldr_lab.synthetic.pairs import change
from eldr_lab.synthetic.setting import Setting
from eldr_lab.synthetic.study import meet, prepare, run_one

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


def measured(source, setting, *texts):
    contenders = [parse_contender(text) for text in texts]
    prepared = prepare(source, 0, [setting.engines], contenders)
    load = meet(prepared, setting)
    return load.rate, [run_one(prepared, setting, contender, load) for contender in contenders]


def test_marginal_union_is_below_jsq_in_mean_and_tail_and_the_band_crowds(captured):
    _, (jsq, band, *unions) = measured(Captured(captured, ("fr", "ru", "manual", "legal")), DEMO, *TEXTS)
    for ours in unions:
        assert ours.tpot_mean < jsq.tpot_mean
        assert ours.tpot_p50 < jsq.tpot_p50
        assert ours.tpot_p99 < jsq.tpot_p99
        assert band.imbalance > ours.imbalance > jsq.imbalance
        assert ours.requests == jsq.requests
    assert band.active_per_token < 0.92 * jsq.active_per_token


def test_a_wanted_batch_is_met(captured):
    source = Captured(captured, captured.kinds)
    setting = replace(DEMO, engines=2, rate=None, batch=8.0, warmup=None, seconds=60.0)
    rate, (jsq,) = measured(source, setting, "JSQ")
    assert jsq.batch == pytest.approx(8.0, rel=0.15)
    back = replace(setting, rate=rate, batch=None).operating_point(source.traffic(0).requests, 0)
    assert back.batch == pytest.approx(8.0, rel=0.1)


def test_warm_up_lasts_until_the_longest_requests_leave(captured):
    requests = replace(
        Captured(captured, captured.kinds).traffic(0).requests, output_tokens=np.array([10] * 383 + [900])
    )
    own = replace(DEMO, warmup=None, output_tokens=None)
    assert own.window(requests, 0.02).warmup == pytest.approx(18.0)
    assert replace(own, output_tokens=100).window(requests, 0.02).warmup == pytest.approx(4.0)


def test_without_expert_costs_locality_brings_nothing_and_marginal_union_balances():
    free = replace(QWEN3_30B_MI300X, per_expert=0.0, per_request=1e-4)
    setting = replace(DEMO, step_time=free, sampled=False, rate=200.0, speeds=(1.0,), warmup=2.0, seconds=6.0)
    source = Synthetic(WORKLOADS["task"], Geometry(32, 4), n_layers=2, calibration=100, requests=200)
    _, (jsq, band, union) = measured(source, setting, *TEXTS[:3])
    assert union.tpot_p99 == pytest.approx(jsq.tpot_p99, rel=0.01)
    assert band.tpot_p99 > jsq.tpot_p99


def test_kinds_stay_in_their_groups():
    source = Synthetic(WORKLOADS["task"], Geometry(32, 4), n_layers=3, calibration=120, requests=400)
    setting = replace(DEMO, step_time=QWEN3_30B_MI300X.for_experts(32), speeds=(1.0,), rate=40.0, seconds=10.0, sampled=False)  # fmt: skip
    _, (jsq, domain) = measured(source, setting, "JSQ", "Domain")
    assert domain.active_per_token < 0.9 * jsq.active_per_token


def test_intervals_are_students():
    assert change([0.9, 0.8, 0.85], [1.0, 1.0, 1.0]) == pytest.approx((-0.15, 0.124207), rel=1e-4)


def test_requests_without_a_rate_need_one(captured):
    requests = Captured(captured, captured.kinds).traffic(0).requests
    with pytest.raises(ValueError, match="rate: expected one or a batch"):
        replace(DEMO, rate=None).operating_point(requests, 0)
