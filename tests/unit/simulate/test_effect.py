"""What is in effect in a deployment."""

import pytest

from eldr.simulate.effect import in_effect
from eldr.simulate.options import parse_policies

LAW = {"fixed": 0.02, "per_expert": 1e-3, "per_request": 4e-5, "windows": 9}


def resource(**router):
    spec = {"model": {}, "decode": {"replicas": 6}, "signatures": {"samplePercent": 25}, "router": router}
    return {"metadata": {"name": "demo"}, "spec": spec}


def test_engines_law_and_share_are_the_deployments():
    few = {"law": LAW | {"fixed": 1.0, "windows": 2}}
    own = in_effect(resource(policy="ELDR", tau="0.1"), [{"law": None}, few, {"law": LAW}])
    assert (own.model, own.engines, own.law, own.share) == ("demo", 6, "20,1000,40", 0.25)
    assert "6 decode engines, policy ELDR, tau 0.1, 25 % of the requests" in own.words
    assert in_effect(resource(), [{"law": None}]).law is None


def test_engines_are_those_that_an_autoscaler_has_set():
    scaled = resource() | {"status": {"decode": {"desired": 9, "scaledBy": "kube-controller-manager"}}}
    assert in_effect(scaled, []).engines == 9
    assert in_effect(resource() | {"status": {}}, []).engines == 6


def slower(factor):
    return {name: factor * LAW[name] for name in ("fixed", "per_expert", "per_request")}


def test_speeds_are_those_that_the_router_has_learned():
    told = LAW | {"engines": {"d-0": slower(1.0), "d-1": slower(1.58), "d-2": slower(0.5)}}
    few = LAW | {"windows": 2, "engines": {"d-0": slower(2.0)}}
    own = in_effect(resource(), [{"law": few}, {"law": told}])
    assert own.speeds == (1.0, 1.58, 0.5)
    for states in ([], [{"law": None}], [{"law": LAW}], [{"law": LAW | {"engines": {}}}]):
        assert in_effect(resource(), states).speeds is None


@pytest.mark.parametrize(
    "law",
    [LAW | {"fixed": None}, {"windows": 3}, "x", LAW | {"fixed": float("nan")}, LAW | {"engines": {"d": {"fixed": "x"}}},
     {"fixed": 0.0, "per_expert": 0.0, "per_request": 0.0, "windows": 9}],
)  # fmt: skip
def test_laws_that_are_none_are_left_alone(law):
    own = in_effect(resource(), [{"law": law}])
    assert own.speeds is None
    assert own.law in {None, "20,1000,40"}


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
