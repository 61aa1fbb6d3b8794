"""Policies by name and settings."""

import pytest

from eldr.core.band import BandJSQ
from eldr.core.marginal import MarginalUnion
from eldr_lab.synthetic.contenders import parse_contender


def test_options_reach_the_policy():
    contender = parse_contender("ELDR:tau=0.2:min_candidates=2:max_load=1.25")
    assert contender.policy({}) == BandJSQ(tau=0.2, min_candidates=2, max_load=1.25)
    assert contender.centroids == "balanced"
    assert parse_contender("MarginalUnion:prior=0.23").policy({}) == MarginalUnion(prior=0.23)
    learned = parse_contender("MarginalUnion:learned=0.23")
    assert (learned.policy({}), learned.learns) == (MarginalUnion(prior=0.23), True)
    assert not parse_contender("MarginalUnion:prior=0.23").learns


@pytest.mark.parametrize(
    ("text", "centroids", "unions"),
    [
        ("JSQ", None, False),
        ("ELDR", "balanced", False),
        ("MarginalUnion", None, True),
        ("MarginalUnion:prior=0.5", "balanced", True),
        ("MarginalUnion:learned=0.5", None, True),
    ],
)
def test_what_a_policy_looks_at(text, centroids, unions):
    contender = parse_contender(text)
    assert (contender.centroids, contender.unions) == (centroids, unions)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eldr", "known are ELDR"),
        ("ELDR:tau", "expected a number for tau"),
        ("ELDR:tau=3", "expected 0..2"),
        ("ELDR:tau=nan", "expected 0..2"),
        ("ELDR:min_candidates=inf", "expected a whole number"),
        ("JSQ:tau=1", "JSQ has no option 'tau'; it has none"),
        ("MarginalUnion:tau=1", "it has prior, learned, max_load"),
        ("MarginalUnion:prior=0.2:learned=0.2", "fitted or learned"),
        ("MarginalUnion:max_load=0.5", "at least 1"),
        ("ELDR:refit=2", "ELDR has no option 'refit'"),
        ("", "unknown name"),
    ],
)
def test_bad_policies_say_what_is_known(text, message):
    with pytest.raises(ValueError, match=message):
        parse_contender(text)
