"""What to set."""

import pytest

from eldr.simulate.advice import to_set
from eldr.simulate.contenders import parse_contender
from eldr.simulate.text import details, recommendation


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("JSQ", "spec.router.policy: JSQ"),
        ("ELDR", 'spec.router.policy: ELDR, tau: "0.1"'),
        ("ELDR:tau=0.00001:min_candidates=2:max_load=1.25", 'spec.router.policy: ELDR, tau: "0.00001", minCandidates: 2, maxLoad: "1.25"'),
        ("MarginalUnion:prior=0.23", "spec.router.policy: MarginalUnion (its prior needs no setting: it is on once a fit is active)"),
        ("MarginalUnion:learned=0.23:max_load=2", 'spec.router.policy: MarginalUnion, maxLoad: "2" (so it is before the first fit; once one is active it is MarginalUnion:prior=0.23)'),
        ("MarginalUnion", "spec.router.policy: MarginalUnion (there it has a prior, MarginalUnion:learned=0.23 before the first fit; without one it is for routers with a worker file, prior: 0)"),
        ("MarginalUnion:learned=0.5", "spec.router.policy: MarginalUnion (its prior is 0.23 there; another one is for routers with a worker file, prior: 0.5)"),
        ("MarginalUnion:prior=0.5", "spec.router.policy: MarginalUnion (its prior is 0.23 there; another one is for routers with a worker file, prior: 0.5)"),
        ("Domain", "spec.router.policy: Domain, and spec.router.domains"),
    ],
)  # fmt: skip
def test_what_to_set_is_what_was_simulated(text, told):
    assert to_set(parse_contender(text)) == told


def row(text, mean, p99=None, width=0.01):
    p99 = mean if p99 is None else p99
    change = {"tpot_mean": [mean, width], "tpot_p50": [mean, width], "tpot_p99": [p99, width]}
    times = {"tpot_mean": 0.02 * (1 + mean), "tpot_p50": 0.02 * (1 + mean), "tpot_p99": 0.04 * (1 + p99)}
    return {"policy": text, **times, "change": change, "set": to_set(parse_contender(text))}


def setting(*rows, best, level=()):
    return {"policies": [row("JSQ", 0.0), *rows], "best": best, "level": level}


def test_the_recommendation_says_what_to_set_and_what_it_brings_in_milliseconds():
    found = setting(row("MarginalUnion:learned=0.23", -0.2, -0.1), best="MarginalUnion:learned=0.23")
    assert recommendation(found) == (
        "Set spec.router.policy: MarginalUnion (so it is before the first fit; once one is active it is "
        "MarginalUnion:prior=0.23). Time per token against JSQ: mean 16.0 ms instead of 20.0 ms (-20.0 ±1.0 %), P50 16.0 ms "
        "instead of 20.0 ms (-20.0 ±1.0 %), P99 36.0 ms instead of 40.0 ms (-10.0 ±1.0 %)."
    )
    assert details(found) == ""


def test_what_may_be_chance_is_marked():
    said = recommendation(setting(row("ELDR", -0.2, -0.053, 0.1), best="ELDR"))
    assert "mean 16.0 ms instead of 20.0 ms (-20.0 ±10.0 %)," in said
    assert "P99 37.9 ms instead of 40.0 ms (-5.3 ±10.0 %, within chance)." in said
    nothing = setting(row("ELDR", 0.1), best="JSQ")
    assert recommendation(nothing).startswith("Leave spec.router.policy as it is: no policy shortens")
    assert details(nothing) == ""


def test_a_policy_that_is_surely_shorter_is_set_where_the_one_with_the_least_mean_may_be_chance():
    found = setting(
        row("MarginalUnion:learned=0.23", -0.006, width=0.005),
        row("MarginalUnion:prior=0.23", -0.011, width=0.015),
        best="MarginalUnion:prior=0.23",
        level=["JSQ", "MarginalUnion:learned=0.23"],
    )
    assert recommendation(found).startswith("Set spec.router.policy: MarginalUnion (so it is before")


def test_of_policies_that_are_level_in_the_mean_the_one_with_the_shorter_tail_is_set():
    band, marginal = row("ELDR", -0.08, 0.03), row("MarginalUnion:prior=0.23", -0.078, -0.048)
    before, bounded = row("MarginalUnion", -0.061, -0.06), row("ELDR:max_load=1.25", -0.05, -0.08)
    found = setting(band, before, marginal, best="ELDR", level=["MarginalUnion:prior=0.23"])
    assert recommendation(found).startswith(
        "Set spec.router.policy: MarginalUnion (its prior needs no setting"
    )
    assert details(found) == "In the mean these seeds do not separate MarginalUnion:prior=0.23 from ELDR."
    found = setting(band, bounded, best="ELDR")
    assert recommendation(found).startswith('Set spec.router.policy: ELDR, tau: "0.1". ')
    assert details(found) == (
        "ELDR:max_load=1.25 has the shortest tail: P99 -8.0 ±1.0 %, mean -5.0 ±1.0 %. To prefer it, set "
        'spec.router.policy: ELDR, tau: "0.1", maxLoad: "1.25".'
    )
