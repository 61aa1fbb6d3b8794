"""What is in effect in a deployment."""

import math

import pytest

from eldr.simulate.effect import in_effect
from eldr.simulate.policies import USUAL, Settings, contenders

STEP_TIME = {"fixed": 0.02, "per_expert": 1e-3, "per_request": 4e-5, "windows": 9}


def resource(parallelism=None, **router):
    decode = {"replicas": 6, "gpus": 4, "parallelism": parallelism or {}}
    spec = {"model": {}, "decode": decode, "signatures": {"samplePercent": 25}, "router": router}
    return {"metadata": {"name": "demo"}, "spec": spec}


def slower(factor):
    return {name: factor * STEP_TIME[name] for name in ("fixed", "per_expert", "per_request")}


def test_engines_and_share_are_the_deployments():
    own = in_effect(resource(policy="ELDR", tau="0.1"), [{"step_time": None}])
    assert (own.model, own.engines, own.step_time, own.share) == ("demo", 6, None, 0.25)
    assert "6 decode engines, policy ELDR, tau 0.1, 25 % of the requests" in own.words
    assert "have not learned" in own.notes[0]


def test_engines_are_those_that_an_autoscaler_has_set():
    scaled = resource() | {"status": {"decode": {"desired": 9, "scaledBy": "kube-controller-manager"}}}
    assert in_effect(scaled, []).engines == 9
    assert in_effect(resource() | {"status": {}}, []).engines == 6


def test_step_times_are_those_of_the_router_that_learned_most():
    most = STEP_TIME | {"engines": {"d-0": slower(1.0), "d-1": slower(1.58), "d-2": slower(0.5)}}
    few = slower(50.0) | {"windows": 2, "engines": {"d-0": slower(2.0)}}
    own = in_effect(resource(), [{"step_time": None}, {"step_time": few}, {"step_time": most}, 3, None])
    assert (own.step_time.fixed, own.step_time.per_request) == (0.02, 4e-5)
    assert own.speeds == pytest.approx((1.0, 1.58, 0.5))
    assert in_effect(resource(), [{"step_time": STEP_TIME}]).speeds == (1.0,)


@pytest.mark.parametrize(
    "step_time",
    [
        STEP_TIME | {"fixed": None},
        STEP_TIME | {"fixed": math.nan},
        STEP_TIME | {"engines": {"d": {"fixed": "x"}}},
        slower(0.0) | {"windows": 9},
    ],
)
def test_step_times_of_another_version_are_left_alone(step_time):
    assert in_effect(resource(), [{"step_time": step_time}]).step_time is None


@pytest.mark.parametrize(
    ("router", "settings", "names"),
    [
        ({"policy": "ELDR", "tau": "0.25", "minCandidates": 2, "maxLoad": "1.5"}, Settings(0.25, 2, 1.5), ["JSQ", "ELDR"]),
        ({"policy": "MarginalUnion", "maxLoad": "2"}, Settings(max_load=2.0), ["JSQ", "MarginalUnion"]),

        ({"policy": "Domain"}, Settings(), ["JSQ", "ELDR"]),
    ],
)  # fmt: skip
def test_the_policy_in_effect_is_simulated_with_its_settings(router, settings, names):
    own = in_effect(resource(**router), [{"step_time": STEP_TIME}])
    rows = contenders(own.policies)
    assert own.settings == settings
    assert list(dict.fromkeys(row.name for row in rows))[:2] == names
    assert {row.name for row in rows} == {*USUAL, *names}
    assert bool(own.notes) == (router["policy"] == "Domain")
