"""What stands in a report."""

import math
from dataclasses import fields, replace

import pytest

from eldr.simulate.measures import Measures
from eldr.simulate.outcome import Outcome
from eldr.simulate.report import check_numbers

MEASURES = Measures(**{field.name: 1 for field in fields(Measures)})


@pytest.mark.parametrize(
    ("name", "value"), [("ttft_p99", math.inf), ("tpot_p99", math.nan), ("tpot_mean", 0.0)]
)
def test_figures_that_are_no_numbers_are_refused(name, value):
    fine = Outcome(0, 0, 0, 5.0, replace(MEASURES, waited=0.0))
    check_numbers([fine])
    with pytest.raises(ValueError, match=f"{name} came out as .* --law, or the rate,.* correct the one"):
        check_numbers([fine, fine._replace(measures=replace(MEASURES, **{name: value}))])
