"""The strength of preference of each model."""

import pytest

from eldr_lab.evidence import published, strengths
from eldr_lab.evidence.cells import GEOMETRIES
from eldr_lab.evidence.strengths import Point, solved
from eldr_lab.synthetic.activations import WORKLOADS


def test_factor_is_found_on_lines_between_those_tried():
    points = [Point(0.5, -4.0), Point(1.0, -12.0), Point(0.75, -10.0)]
    assert solved(points, -7.0) == pytest.approx(0.625)
    assert solved(points, -11.0) == pytest.approx(0.875)
    assert solved(points, -12.0) == pytest.approx(1.0)


def test_what_no_factor_leads_to_is_said():
    with pytest.raises(ValueError, match=r"no factor of \[0.5, 1.0\] leads to -20.0 %"):
        solved([Point(0.5, -4.0), Point(1.0, -12.0)], -20.0)


def test_preferences_for_domains_and_for_their_topics_are_scaled():
    scaled, known = strengths.strengths("task", 0.5), WORKLOADS["task"]
    assert (scaled.domain, scaled.subdomain) == (0.5 * known.domain, 0.5 * known.subdomain)
    assert (scaled.general, scaled.request) == (known.general, known.request)


def test_every_model_was_tuned_to_what_was_published_of_domain():
    tuned = strengths.read()
    assert set(tuned) == set(GEOMETRIES)
    for model, one in tuned.items():
        assert one["published"] == pytest.approx(published.against_best(model, "task", "Domain", 0), abs=0.01)
        assert one["found"] == pytest.approx(one["published"], abs=0.3)
