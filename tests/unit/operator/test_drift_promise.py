"""Sets that do not keep their promise are rolled back, and those whose traffic was not to last."""

import random
from dataclasses import replace

import pytest

from eldr.contract import POLICY_ELDR, POLICY_MARGINAL
from eldr_operator.drift.counts import Saving
from eldr_operator.drift.decide import RollBack
from eldr_operator.drift.judge import ON_TRIAL
from tests.unit.operator.builders import NOW
from tests.unit.operator.drifted import BAD, GOOD, OTHER, POOR, SHARES, Life, counts


@pytest.mark.parametrize(("policy", "is_lost"), [(POLICY_ELDR, True), (POLICY_MARGINAL, False)])
def test_predictions_are_the_bands_and_other_policies_save_less_of_it(policy, is_lost):
    one = Life(previous="z", policy=policy)
    verdict = one.window(times=3, saving=Saving(0.02, 0.001, 5000))
    assert (verdict.roll_back is not None) == is_lost


@pytest.mark.parametrize("previous", ["z", None])
@pytest.mark.parametrize("policy", [POLICY_ELDR, POLICY_MARGINAL])
def test_a_set_that_does_not_is_rolled_back_after_consecutive_windows(previous, policy):
    one = Life(previous=previous, policy=policy)
    assert one.window(times=2, saving=POOR).roll_back is None
    verdict = one.window(saving=POOR)
    assert (verdict.roll_back.digest, verdict.roll_back.to) == ("a", previous)
    assert verdict.reason == "RollBack"
    assert "10.0% was predicted" in verdict.message
    assert f"less than {'25%' if policy == POLICY_MARGINAL else '50%'} of the prediction" in verdict.message
    assert ("the set before serves again" if previous else "no set serves") in verdict.message
    assert one.state.blocked == ("a",)


def test_a_roll_back_is_asked_for_until_it_has_happened_whatever_is_measured_meanwhile():
    one = Life(previous="z")
    one.window(times=3, saving=POOR)
    assert one.window(times=3, saving=GOOD).roll_back.digest == "a"
    one.activate("z", previous="a")
    assert one.verdict.roll_back is None
    # what serves after a roll-back is not on trial again, and is never rolled back to what was taken out
    assert one.window(times=10, saving=POOR).roll_back is None
    assert one.state.drift.cause == "SavingLost"


def test_a_barred_set_is_not_what_a_later_one_is_rolled_back_to():
    one = Life(previous="z")
    one.window(times=3, saving=POOR)
    one.activate("z", previous="a")
    one.window(times=5, saving=GOOD)
    one.activate("c", previous="a")
    verdict = one.window(times=3, saving=POOR)
    assert (verdict.roll_back.digest, verdict.roll_back.to) == ("c", None)


SMALL = Saving(0.01, 0.004, 5000, batch=3)


@pytest.mark.parametrize(
    ("saving", "predicted", "judged", "kept"),
    [
        (GOOD, {}, 10, 10),
        (Saving(0.052, 0.001, 5000), {}, 10, 10),  # half of it
        # too uncertain
        (Saving(0.0, 0.02, 5000), {}, 10, 0),
        (Saving(0.0, 0.0001, 50), {}, 0, 0),
        (POOR, {"low": 0.01, "high": 0.19}, 10, 0),
        # nothing was promised
        (POOR, {"saving": None, "low": None, "high": None}, 0, 0),
        (POOR, {"saving": 0.0, "low": -0.1, "high": 0.1}, 0, 0),
        (POOR, {"saving": 0.02, "low": -0.01, "high": 0.05}, 0, 0),
        (SMALL, {"batch": 16}, 0, 0),
    ],
)
def test_what_breaks_no_promise(saving, predicted, judged, kept):
    one = Life(previous="z")
    baseline = replace(one.baseline, **predicted)
    assert one.window(times=10, saving=saving, baseline=baseline).roll_back is None
    assert (one.state.promise.windows, one.state.promise.kept) == (judged, kept)
    assert one.state.blocked == ()


def test_batches_nearly_as_large_as_predicted_break_it():
    one = Life(previous="z")
    predicted = replace(one.baseline, batch=16)
    one.window(times=10, saving=SMALL, baseline=predicted)
    assert one.window(times=3, saving=replace(SMALL, batch=12)).roll_back is not None


def test_what_was_measured_before_the_set_placed_anything_is_not_its_fault():
    one = Life(previous="z", activated=NOW)
    one.window(times=3, minutes=0.5, saving=POOR)
    assert one.state.promise.windows == 0
    one.window(times=3, minutes=2)
    assert one.state.promise.windows == 3


PINS = pytest.mark.parametrize("chosen", [True, False], ids=["the active set", "another, or none"])
"""What ``spec.centroids.pin`` names."""


@PINS
@pytest.mark.parametrize(("policy", "share"), [(POLICY_ELDR, "50%"), (POLICY_MARGINAL, "25%")])
def test_while_a_pin_stands_no_set_is_rolled_back_or_barred_and_it_is_told_why(chosen, policy, share):
    one = Life(previous="z", policy=policy, pinned=True, chosen=chosen)
    for windows in (3, ON_TRIAL):  # on trial, and past it
        verdict = one.window(times=windows, saving=POOR)
        assert (verdict.status, verdict.reason, verdict.roll_back, verdict.fit) == (
            "True",
            "Pinned",
            None,
            None,
        )
        assert "10.0% was predicted" in verdict.message
        assert "spec.centroids.pin is set" in verdict.message
        assert "the set before serves again" not in verdict.message
        assert (f"less than {share} of the prediction" in verdict.message) == (windows == 3)
    assert one.state.blocked == ()


@PINS
def test_a_set_that_broke_its_promise_under_a_pin_is_rolled_back_without_it(chosen):
    one = Life(previous="z", pinned=True, chosen=chosen)
    one.window(times=3, saving=POOR)
    assert one.look(pinned=False, chosen=False).roll_back == RollBack("a", "z", returned=False)


def test_who_observes_a_pinned_set_is_told_that_it_breaks_its_promise():
    one = Life(previous="z", pinned=True, chosen=True, spec={"mode": "Observe"})
    verdict = one.window(times=3, saving=POOR)
    assert (verdict.status, verdict.reason) == ("True", "Observing")
    assert "less than 50% of the prediction" in verdict.message


def test_a_harmful_set_that_a_pin_does_not_name_goes_out_of_service():
    one = Life(previous="z", pinned=True)
    verdict = one.window(times=4, saving=BAD)
    assert (verdict.roll_back, verdict.protective, verdict.harm[0]) == (None, True, "Protective")
    assert (verdict.reason, one.state.blocked) == ("Pinned", ())
    assert "out of service" in verdict.message
    assert not one.look(chosen=True).protective


def test_a_pinned_set_is_kept_and_said_to_harm():
    one = Life(previous="z", pinned=True, chosen=True)
    verdict = one.window(times=4, saving=BAD)
    assert verdict.roll_back is None
    assert not verdict.protective
    assert verdict.harm[0] == "PinnedRegresses"
    assert "spec.centroids.pin" in verdict.harm[1]


def test_observing_rolls_nothing_back_and_bars_nothing():
    one = Life(previous="z", spec={"mode": "Observe"})
    verdict = one.window(times=4, saving=BAD)
    assert (verdict.reason, verdict.roll_back, verdict.protective) == ("Observing", None, False)
    assert verdict.harm[0] == "Regresses"
    assert one.state.blocked == ()


def test_a_new_set_that_harms_at_once_is_rolled_back():
    one = Life(previous="z")
    verdict = one.window(OTHER, 3, saving=BAD)
    assert verdict.roll_back.to == "z"
    assert verdict.protective
    assert not one.activate("z").protective


def with_before(one, shares=OTHER):
    """Let what came before the set's own traffic be of these shares."""
    return replace(one.baseline, before=counts(400, shares, random.Random(2)))


def test_where_traffic_is_again_what_it_was_before_the_sets_own_the_set_before_serves_again():
    one = Life(previous="z")
    one.look(baseline=with_before(one))
    assert one.window(times=8).roll_back is None
    verdict = one.window(OTHER, 5)
    assert verdict.roll_back == RollBack("a", "z", returned=True)
    assert (verdict.status, verdict.reason, verdict.fit) == ("True", "RollBack", None)
    assert "the traffic from before has returned: the set before serves again" in verdict.message
    assert one.state.blocked == ("a",)
    assert one.window(SHARES, 3).roll_back == RollBack("a", "z", returned=False), "until it has happened"
    one.activate("z", previous="a")
    assert one.window(times=12).roll_back is None
    assert one.verdict.status == "False"


def test_who_observes_is_told_that_earlier_traffic_has_returned():
    one = Life(previous="z", spec={"mode": "Observe"})
    one.look(baseline=with_before(one))
    one.window(times=8)
    verdict = one.window(OTHER, 5)
    assert (verdict.reason, verdict.roll_back) == ("Observing", None)
    assert one.state.blocked == ()


@pytest.mark.parametrize(
    ("now_is", "previous"),
    [
        ((0.1, 0.1, 0.1, 0.7), "z"),  # something third
        ((0.5, 0.17, 0.17, 0.16), "z"),  # half of the way back: other traffic may come
        (OTHER, None),  # nothing that could serve again
    ],
)
def test_other_traffic_than_before_is_fitted(now_is, previous):
    one = Life(previous=previous)
    one.look(baseline=with_before(one))
    one.window(times=8)
    for _ in range(30):
        assert one.window(now_is).roll_back is None
    assert one.verdict.fit is not None


def test_a_set_that_was_rolled_back_does_not_come_back_with_its_traffic():
    one = Life(previous="z")
    one.look(baseline=with_before(one))
    one.window(times=8)
    one.window(OTHER, 5)
    one.activate("z", previous="a", baseline=replace(one.baseline, before=one.baseline.counts))
    one.window(OTHER, 20)
    assert one.window(SHARES, 3).roll_back is None


@pytest.mark.slow
def test_of_sets_that_were_rolled_back_none_is_forgotten_while_its_fit_may_exist():
    """Up to ``refit.historyLimit`` 100; a set that is newer than the active one and not blocked would be activated."""
    one = Life(previous="z", digest="bad-0")
    for n in range(100):
        assert one.window(times=3, saving=POOR).roll_back.digest == f"bad-{n}"
        one.activate("z", previous=f"bad-{n}")
        one.activate(f"bad-{n + 1}", previous="z")
    assert set(one.state.blocked) == {f"bad-{n}" for n in range(100)}


@pytest.mark.slow
@pytest.mark.parametrize("windows", [2, 200])
def test_a_set_that_served_while_drift_was_disabled_is_not_on_trial(windows):
    one = Life(previous="z")
    one.window(times=windows)
    one.switch("Disabled")
    one.switch("Enabled")
    assert one.window(OTHER, 6, saving=POOR).roll_back is None
    assert one.verdict.status == "True"
    assert one.state.blocked == ()
