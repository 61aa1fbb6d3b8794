"""What is in effect in a deployment."""

import pytest

from eldr.simulate.effect import in_effect
from eldr.simulate.options import parse_policies

STEP_TIME = {"fixed": 0.02, "per_expert": 1e-3, "per_request": 4e-5, "windows": 9}


def resource(**router):
    spec = {"model": {}, "decode": {"replicas": 6}, "signatures": {"samplePercent": 25}, "router": router}
    return {"metadata": {"name": "demo"}, "spec": spec}


def test_engines_step_time_and_share_are_the_deployments():
    few = {"step_time": STEP_TIME | {"fixed": 1.0, "windows": 2}}
    own = in_effect(resource(policy="ELDR", tau="0.1"), [{"step_time": None}, few, {"step_time": STEP_TIME}])
    assert (own.model, own.engines, own.step_time, own.share) == ("demo", 6, "20,1000,40", 0.25)
    assert "6 decode engines, policy ELDR, tau 0.1, 25 % of the requests" in own.words
    assert in_effect(resource(), [{"step_time": None}]).step_time is None


def test_engines_are_those_that_an_autoscaler_has_set():
    scaled = resource() | {"status": {"decode": {"desired": 9, "scaledBy": "kube-controller-manager"}}}
    assert in_effect(scaled, []).engines == 9
    assert in_effect(resource() | {"status": {}}, []).engines == 6


def slower(factor):
    return {name: factor * STEP_TIME[name] for name in ("fixed", "per_expert", "per_request")}


def test_speeds_are_those_that_the_router_has_learned():
    told = STEP_TIME | {"engines": {"d-0": slower(1.0), "d-1": slower(1.58), "d-2": slower(0.5)}}
    few = STEP_TIME | {"windows": 2, "engines": {"d-0": slower(2.0)}}
    own = in_effect(resource(), [{"step_time": few}, {"step_time": told}])
    assert own.speeds == (1.0, 1.58, 0.5)
    for states in (
        [],
        [{"step_time": None}],
        [{"step_time": STEP_TIME}],
        [{"step_time": STEP_TIME | {"engines": {}}}],
    ):
        assert in_effect(resource(), states).speeds is None


@pytest.mark.parametrize(
    "step_time",
    [STEP_TIME | {"fixed": None}, {"windows": 3}, "x", STEP_TIME | {"fixed": float("nan")}, STEP_TIME | {"engines": {"d": {"fixed": "x"}}},
     {"fixed": 0.0, "per_expert": 0.0, "per_request": 0.0, "windows": 9}],
)  # fmt: skip
def test_step_times_that_are_none_are_left_alone(step_time):
    own = in_effect(resource(), [{"step_time": step_time}])
    assert own.speeds is None
    assert own.step_time in {None, "20,1000,40"}


@pytest.mark.parametrize(
    ("router", "first"),
    [
        ({"policy": "ELDR", "tau": "0.1"}, "ELDR"),
        ({"policy": "ELDR", "tau": "0.25", "minCandidates": 2, "maxLoad": "1.5"}, "ELDR:tau=0.25:min_candidates=2:max_load=1.5"),
        ({"policy": "MarginalUnion", "maxLoad": "2"}, "MarginalUnion:prior=0.23:max_load=2"),
        ({"policy": "PowerOfTwo"}, "PowerOfTwo"),
        ({"policy": "Domain"}, "ELDR"),
    ],
)  # fmt: skip
def test_the_policy_in_effect_is_simulated_as_it_is(router, first):
    own = in_effect(resource(**router), [])
    policies = [contender.text for contender in parse_policies(own.policies)]
    assert policies[:2] == ["JSQ", first]
    assert len(policies) == len(set(policies))
    assert all(
        ("tau=0.25" in name) == (router.get("tau") == "0.25") for name in policies if name.startswith("ELDR")
    )
    assert bool(own.notes) == (router["policy"] == "Domain")
