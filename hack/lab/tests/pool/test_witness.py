"""Simulated runs that did something else than their policy's name says end the program."""

from dataclasses import replace

import numpy as np
import pytest

from eldr.core.balancers import JSQ
from eldr.core.marginal import MarginalUnion
from eldr.core.policy import Choice
from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.simulate import run
from eldr.simulate.engine import Limits
from eldr_bench.proof import Unproven
from eldr_lab.pool import study
from eldr_lab.pool.contenders import BLIND, parse_contender
from eldr_lab.pool.setting import Setting
from eldr_lab.pool.study import meet, prepare, run_whole
from eldr_lab.synthetic.activations import WORKLOADS, Geometry, Synthetic

TASKS = Synthetic(WORKLOADS["task"], Geometry(32, 4), n_layers=3, calibration=120, requests=400)
SHORT = Setting(
    engines=4, rate=40.0, batch=None, step_time=QWEN3_30B_MI300X.for_experts(32), speeds=(1.0,), limits=Limits(), warmup=2.0,
    seconds=4.0, output_tokens=48, sampled=False,
)  # fmt: skip
PRIOR = "MarginalUnion:prior=0.23"
NAMES = ("RoundRobin", "JSQ", "PowerOfTwo", "Random", "Domain", "ELDR", "ELDR:min_candidates=2", "ELDR:max_load=1.25", "ELDR:tau=0",
         "ELDR:tau=1", "ELDR-vanilla", "ELDR:refit=1:window=2", "MarginalUnion", PRIOR, BLIND)  # fmt: skip


@pytest.fixture(scope="module")
def met():
    prepared = prepare(TASKS, 0, [SHORT.engines], [parse_contender(name) for name in NAMES])
    return prepared, meet(prepared, SHORT)


def ran(met, name, setting=SHORT):
    prepared, load = met
    return run_whole(prepared, setting, parse_contender(name), load)


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_rests_on_what_its_name_says(met, name):
    assert ran(met, name).measures.requests == met[1].workload.measured.sum()


def test_several_routers_and_engines_of_two_speeds_keep_their_rules(met):
    for name in ("JSQ", "ELDR", "MarginalUnion", PRIOR):
        ran(met, name, replace(SHORT, routers=2, speeds=(1.0, 1.6)))


def test_a_prior_that_sees_no_similarity_is_unproven(met, monkeypatch):
    monkeypatch.setattr(study, "_knowledge", lambda *told: (None, None))
    with pytest.raises(Unproven, match=r"'union': .* not on union and prior"):
        ran(met, PRIOR)


@pytest.mark.parametrize("name", ["MarginalUnion", PRIOR])
def test_unions_that_fall_back_to_jsq_for_49_of_50_requests_are_unproven(met, monkeypatch, name):
    whole = MarginalUnion.choose
    monkeypatch.setattr(
        MarginalUnion,
        "choose",
        lambda self, situation, rng: (whole if situation.turn % 50 == 0 else JSQ.choose)(
            self, situation, rng
        ),
    )
    with pytest.raises(Unproven, match="not the cheapest"):
        ran(met, name)


def test_unions_without_an_outlook_are_unproven(met, monkeypatch):
    monkeypatch.setattr("eldr.core.union.Unions.outlook", lambda *told: None)
    with pytest.raises(Unproven, match="no outlook"):
        ran(met, "MarginalUnion")


@pytest.mark.parametrize(
    ("name", "policy", "lacks"),
    [
        ("RoundRobin", "balancers.RoundRobin", "out of turn"),
        ("JSQ", "balancers.JSQ", "not the fewest in flight"),
        ("PowerOfTwo", "balancers.PowerOfTwo", "the fullest"),
        ("Domain", "balancers.Domain", "outside of the group"),
        ("ELDR", "band.BandJSQ", "outside of the band"),
        ("ELDR:max_load=1.25", "band.BandJSQ", "outside of the band"),
        ("MarginalUnion", "marginal.MarginalUnion", "not the cheapest"),
    ],
)
def test_a_policy_that_does_not_keep_its_rule_is_unproven(met, monkeypatch, name, policy, lacks):
    monkeypatch.setattr(f"eldr.core.{policy}.choose", lambda self, situation, rng: Choice(0, 1))
    with pytest.raises(Unproven, match=lacks):
        ran(met, name)


def test_centroids_that_never_matter_are_unproven(met, monkeypatch):
    flat = np.zeros((len(met[0].population), SHORT.engines), dtype=np.float32)
    monkeypatch.setattr(study, "_knowledge", lambda *told: (flat, None))
    with pytest.raises(Unproven, match="JSQ would have made no decision otherwise"):
        ran(met, "ELDR")


def test_a_refit_that_never_comes_is_unproven(met, monkeypatch):
    monkeypatch.setattr("eldr_lab.pool.rolling.Rolling._fit", lambda self: None)
    with pytest.raises(Unproven, match=r"refitted their centroids \[0\] times"):
        ran(met, "ELDR:refit=1:window=2")


def test_measured_requests_that_do_not_end_are_unproven(met, monkeypatch):
    whole = run.serve

    def cut(engines, router, workload, tally):
        fewer = workload.measured.copy()
        fewer[np.flatnonzero(fewer)[-3:]] = False
        return whole(engines, router, replace(workload, measured=fewer), tally)

    monkeypatch.setattr(run, "serve", cut)
    with pytest.raises(Unproven, match="measured requests were not answered"):
        ran(met, "JSQ")
