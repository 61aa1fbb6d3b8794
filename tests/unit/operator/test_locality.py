"""What placement by experts can bring, in the status."""

import pytest

from eldr_operator.locality.router_view import RouterView
from eldr_operator.locality.step_time import status
from tests.unit.operator.builders import POD, STATE, make_cr

STEP_TIME = {"fixed": 4.18e-3, "per_expert": 9.78e-6, "per_request": 3.18e-5, "windows": 90}
"""GPT-OSS-120B's."""


def view(share=None, error=0.02, **step_time):
    told = None if share is None else {"expert_share": share, "expert_share_error": error, **step_time}
    return RouterView.of(POD, {**STATE, "step_time": told})


def shown(*views, before=None):
    """Return what the status tells, after what it told before."""
    return status(make_cr({"locality": before} if before else {}), views)


BEFORE = shown(view(0.4, **STEP_TIME))


def fixed(told):
    return told["stepTime"]["fixedMilliseconds"]


def test_nothing_is_said_before_something_is_known():
    assert shown(view(), view(0.4, error=0.3)) == {}


def test_the_median_of_the_routers_is_told():
    told = shown(view(0.41), view(0.39), view(0.9), view())
    assert told["expertSharePercent"] == 41
    assert "41 % of a decode step" in told["message"]


@pytest.mark.parametrize(("share", "percent"), [(0.44, 40), (0.45, 45), (0.36, 40), (None, 40)])
def test_small_changes_are_no_news(share, percent):
    before = shown(view(0.4))
    after = shown(view(share), before=before)
    assert after["expertSharePercent"] == percent
    assert (after == before) == (percent == 40)


def test_a_router_of_before_tells_no_step_time():
    found = RouterView.of(POD, STATE)
    assert (found.expert_share, found.step_time) == (None, None)


def test_the_step_time_is_that_of_the_router_in_the_middle():
    """One step-time model that fits together, not a median of each constant."""
    views = [
        view(share, **STEP_TIME | {"fixed": seconds})
        for share, seconds in ((0.5, 1e-3), (0.3, 3e-3), (0.4, 2e-3))
    ]
    assert fixed(shown(*views, view(0.1), view(), view(0.2, error=0.3, **STEP_TIME))) == "2"


@pytest.mark.parametrize(
    ("constant", "text"),
    [
        (0.0, "0"), (1e-9, "0.000001"), (1.23456e-7, "0.000123"), (9.996e-3, "10"), (0.0999, "99.9"), (12.3456, "12300"),
        (1e-3, "1"), (0.1, "100"),
    ],
)  # fmt: skip
def test_three_digits_and_no_exponent(constant, text):
    assert fixed(shown(view(0.4, **STEP_TIME | {"fixed": constant}))) == text


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        ({"fixed": 4.3e-3}, False),
        ({"fixed": 4.9e-3}, True),
        ({"per_expert": 1.1e-5}, False),
        ({"per_expert": 2e-5}, True),
        ({"per_request": 3.4e-5}, False),
        ({"per_request": 5e-5}, True),
        ({"windows": 120}, False),
        ({"windows": 200}, True),
        # half of everything: the share stays what it was, the step-time model does not
        ({"fixed": 2.09e-3, "per_expert": 4.89e-6, "per_request": 1.59e-5}, True),
        # next to nothing may be twice as much
        ({"fixed": 4.181e-3, "per_request": 3.2e-5}, False),
    ],
)
def test_small_changes_of_the_step_time_are_no_news(change, is_news):
    assert (shown(view(0.41, **STEP_TIME | change), before=BEFORE) != BEFORE) == is_news


def test_a_step_time_does_not_creep_away_unseen():
    seconds, before, writes = STEP_TIME["fixed"], BEFORE, 0
    for _ in range(100):
        seconds *= 1.01
        after = shown(view(0.4, **STEP_TIME | {"fixed": seconds}), before=before)
        writes += after != before
        before = after
    assert float(fixed(after)) == pytest.approx(seconds * 1e3, rel=0.1)
    assert 5 <= writes <= 25


@pytest.mark.parametrize(
    "step_time",
    [
        {},   {**STEP_TIME, "per_request": float("nan")},
        {**STEP_TIME, "per_expert": 10**400}, {**STEP_TIME, "fixed": -1e-3},
    ],
)  # fmt: skip
def test_a_step_time_that_is_none_is_not_told(step_time):
    assert "stepTime" not in shown(view(0.4, **step_time))
    assert shown(view(0.4, **step_time), before=BEFORE) == BEFORE, "what was known last stays"


@pytest.mark.parametrize("told", [{}, {"fixedMilliseconds": "x"}, {"fixedMilliseconds": "1"}, None])
def test_a_step_time_that_somebody_wrote_by_hand_is_replaced(told):
    before = {"expertSharePercent": 40, "stepTime": told}
    assert fixed(shown(view(0.4, **STEP_TIME), before=before)) == "4.18"


def test_a_step_time_of_all_zeros_divides_by_nothing():
    nothing = view(0.0, fixed=0.0, per_expert=0.0, per_request=0.0, windows=1)
    before = shown(nothing)
    assert shown(nothing, before=before) == before
    assert fixed(shown(view(0.0, **STEP_TIME), before=before)) == "4.18"
