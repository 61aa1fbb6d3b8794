"""What to set."""

import pytest

from eldr.simulate.advice import to_set
from eldr.simulate.contenders import parse_contender
from eldr.simulate.text import words


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("JSQ", "spec.router.policy: JSQ"),
        ("ELDR", 'spec.router.policy: ELDR, tau: "0.1"'),
        ("ELDR:tau=0.00001:min_candidates=2:max_load=1.25", 'spec.router.policy: ELDR, tau: "0.00001", minCandidates: 2, maxLoad: "1.25"'),
        ("ELDR:tau=2:refit=2.5", 'spec.router.policy: ELDR, tau: "2" (re-fits come by spec.refit.schedule)'),
        ("MarginalUnion:prior=0.23", "spec.router.policy: MarginalUnion (its prior needs no setting: it is on once a fit is active)"),
        ("MarginalUnion:max_load=2", 'spec.router.policy: MarginalUnion, maxLoad: "2" (so it is before the first fit; once one is active it is MarginalUnion:prior=0.23)'),
        ("MarginalUnion:prior=0.5", "spec.router.policy: MarginalUnion (its prior is 0.23 there; another one is for routers with a routing file, prior: 0.5)"),
        ("Domain", "spec.router.policy: Domain, and spec.router.domains"),
        ("ELDR-vanilla", None),
    ],
)  # fmt: skip
def test_what_to_set_is_what_was_simulated(text, told):
    assert to_set(parse_contender(text)) == told


def row(text, mean, p99=None):
    change = {"tpot_mean": [mean, 0.01], "tpot_p50": [mean, 0.01], "tpot_p99": [p99 or mean, 0.01]}
    return {
        "policy": text,
        "tpot_p99": 1 + (p99 or mean),
        "change": change,
        "set": to_set(parse_contender(text)),
    }


def verdict(*rows, best, level=(), busy=False):
    return words({"policies": [row("JSQ", 0.0), *rows], "best": best, "level": level, "prefill_busy": busy})


def test_a_verdict_ends_with_what_to_set():
    marginal, band = row("MarginalUnion:prior=0.23", -0.2), row("ELDR:tau=0.2", -0.1, -0.3)
    said = verdict(marginal, best="MarginalUnion:prior=0.23")
    assert said.endswith(
        " Set spec.router.policy: MarginalUnion (its prior needs no setting: it is on once a fit is active)."
    )
    said = verdict(marginal, band, best="MarginalUnion:prior=0.23", busy=True)
    assert "no time left. For the mean set spec.router.policy: MarginalUnion (its prior" in said
    assert said.endswith('; for the tail spec.router.policy: ELDR, tau: "0.2".')
    assert verdict(row("ELDR", 0.1), best="JSQ").endswith(" Leave spec.router.policy as it is.")
    said = verdict(row("ELDR-vanilla", -0.1), best="ELDR-vanilla")
    assert said.endswith(" No router offers ELDR-vanilla: it is here to compare with.")


def test_of_policies_that_are_level_in_the_mean_the_one_with_the_shorter_tail_is_set():
    band, marginal = row("ELDR", -0.08, 0.03), row("MarginalUnion:prior=0.23", -0.078, -0.048)
    before, bounded = row("MarginalUnion", -0.061, -0.06), row("ELDR:max_load=1.25", -0.05, -0.08)
    said = verdict(band, before, marginal, best="ELDR", level=["MarginalUnion:prior=0.23"])
    assert " Set spec.router.policy: MarginalUnion (its prior needs no setting" in said
    assert "for the tail" not in said, "MarginalUnion before the first fit is the same setting"
    said = verdict(band, bounded, best="ELDR")
    assert said.endswith(
        'For the mean set spec.router.policy: ELDR, tau: "0.1"; for the tail spec.router.policy: ELDR, tau: "0.1", maxLoad: "1.25".'
    )
