"""What stands in a report."""

import math
from dataclasses import fields, replace

import pytest

from eldr.simulate.measures import Measures
from eldr.simulate.outcome import Outcome
from eldr.simulate.report import check_numbers, notes_on_speeds

MEASURES = Measures(**{field.name: 1 for field in fields(Measures)})


@pytest.mark.parametrize(
    ("name", "value"), [("ttft_p99", math.inf), ("tpot_p99", math.nan), ("tpot_mean", 0.0)]
)
def test_figures_that_are_no_numbers_are_refused(name, value):
    fine = Outcome(0, 0, 0, 5.0, replace(MEASURES, waited=0.0))
    check_numbers([fine])
    with pytest.raises(ValueError, match=f"{name} came out as .* --law and --speeds.* correct the one"):
        check_numbers([fine, fine._replace(measures=replace(MEASURES, **{name: value}))])


def test_speeds_that_routers_would_not_believe_are_said():
    assert notes_on_speeds([1.0, 1.58, 1.0, 1.58]) == []
    assert notes_on_speeds([0.5, 1.0, 2.0]) == []
    (note,) = notes_on_speeds([1.0, 1.0, 2.5])
    assert "engines at 2.5 times the median time are simulated" in note
    assert "routers learn speeds and believe 0.5 to 2 times" in note
    assert "0.25 times" in notes_on_speeds([0.25, 1.0, 1.0])[0]
    assert len(notes_on_speeds([1.0, 4.2])) == 1


def test_who_keeps_up():
    fine = Outcome(0, 0, 0, 5.0, replace(MEASURES, waited=0.01))
    assert fine.keeps_up
    assert not fine._replace(measures=replace(MEASURES, waited=0.02)).keeps_up
