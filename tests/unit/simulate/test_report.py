"""What stands in a report."""

import math
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from eldr.simulate.contenders import parse_contender
from eldr.simulate.measures import Measures
from eldr.simulate.outcome import Outcome
from eldr.simulate.report import check_numbers, notes

MEASURES = Measures(**{field.name: 1 for field in fields(Measures)})


@pytest.mark.parametrize(
    ("name", "value"), [("ttft_p99", math.inf), ("tpot_p99", math.nan), ("tpot_mean", 0.0)]
)
def test_figures_that_are_no_numbers_are_refused(name, value):
    fine = Outcome(0, 0, 0, 5.0, replace(MEASURES, waited=0.0))
    check_numbers([fine])
    with pytest.raises(
        ValueError, match=f"{name} came out as .* --step-time, or the rate,.* correct the one"
    ):
        check_numbers([fine, fine._replace(measures=replace(MEASURES, **{name: value}))])


def test_readers_are_told_of_few_requests_and_of_full_engines():
    study = SimpleNamespace(
        settings=[SimpleNamespace(engines=4)],
        contenders=[parse_contender("JSQ"), parse_contender("ELDR")],
        seeds=range(5),
    )
    calm = replace(MEASURES, batch=10.0, waited=0.0)
    outcomes = [Outcome(0, 0, 0, 5.0, calm), Outcome(0, 1, 0, 5.0, calm)]
    assert notes(100, outcomes, study) == []
    (few,) = notes(30, outcomes, study)
    assert few.startswith("engines hold 40 requests together, and there are 30 different ones")
    outcomes[1] = outcomes[1]._replace(measures=replace(calm, waited=0.4))
    (full,) = notes(100, outcomes, study)
    assert full.startswith(
        "with ELDR 40% of the requests came to an engine without room (4 engines, 5 requests/s)"
    )
