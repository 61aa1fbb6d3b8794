"""What placement by experts can bring, in the status."""

import pytest

from eldr_operator import locality
from eldr_operator.observe import RouterPod
from eldr_operator.router_view import RouterView

POD = RouterPod("r0", "127.0.0.1", None)
STATE = {
    "policy": "JSQ",
    "active": None,
    "staged": None,
    "refused": [],
    "samples": 0,
    "router": "r",
    "counters": {},
}


def view(share=None, error=0.02):
    law = None if share is None else {"expert_share": share, "expert_share_error": error}
    return RouterView.of(POD, {**STATE, "law": law})


def test_nothing_is_said_before_something_is_known(make_cr):
    assert locality.status(make_cr(), [view(), view(0.4, error=0.3)]) == {}


def test_the_median_of_the_routers_is_told(make_cr):
    told = locality.status(make_cr(), [view(0.41), view(0.39), view(0.9), view()])
    assert told["expertSharePercent"] == 41
    assert "41 % of a decode step" in told["message"]


def test_who_gains_nothing_is_told_so(make_cr):
    assert "next to nothing" in locality.status(make_cr(), [view(0.03)])["message"]


@pytest.mark.parametrize(("share", "percent"), [(0.44, 40), (0.45, 45), (0.36, 40), (None, 40)])
def test_small_changes_are_no_news(make_cr, share, percent):
    before = locality.status(make_cr(), [view(0.4)])
    cr = make_cr().model_copy(update={"status": {"locality": before}})
    after = locality.status(cr, [view(share)])
    assert after["expertSharePercent"] == percent
    assert (after == before) == (percent == 40)


def test_a_router_of_before_tells_no_law():
    assert RouterView.of(POD, STATE).expert_share is None
