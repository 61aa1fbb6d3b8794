"""Policies that only studies compare."""

import pytest

from eldr.core.band import BandJSQ
from eldr.core.marginal import MarginalUnion
from eldr_lab.pool.contenders import VANILLA, parse_contender


def test_refits_look_back_twice_as_far_as_they_are_apart_unless_told():
    assert parse_contender("ELDR:tau=0.2").refit is None
    assert parse_contender("ELDR:refit=2.5").refit == (2.5, 5.0)
    contender = parse_contender("MarginalUnion:prior=0.23:refit=2:window=30")
    assert contender.refit == (2.0, 30.0)
    assert contender.policy({}) == MarginalUnion(prior=0.23)


def test_vanilla_is_the_band_on_unbalanced_clusters():
    contender = parse_contender(f"{VANILLA}:tau=0.2")
    assert (contender.text, contender.centroids, contender.unions) == (
        "ELDR-vanilla:tau=0.2",
        "vanilla",
        False,
    )
    assert contender.policy({}) == BandJSQ(tau=0.2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ELDR:refit=0", "refit: expected seconds, more than 0"),
        ("ELDR:refit=inf", "refit: expected seconds"),
        ("ELDR:window=5", "give refit=SECONDS, too"),
        ("MarginalUnion:refit=2", "give prior=0.23, too"),
        ("JSQ:refit=2", "no centroids to refit"),
        ("ELDR:best=1", "ELDR has no option 'best'"),
    ],
)
def test_bad_policies_say_why(text, message):
    with pytest.raises(ValueError, match=message):
        parse_contender(text)
