"""Sets that do not keep their promise are rolled back; sets that harm do not serve."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from eldr.contract import POLICY_ELDR, POLICY_MARGINAL
from eldr_operator.drift.counts import Baseline, Saving
from eldr_operator.drift.decide import RollBack
from eldr_operator.drift.evidence import LEARNS
from eldr_operator.drift.judge import ON_TRIAL
from eldr_operator.drift.next_fit import FitOrder
from eldr_operator.drift.observation import DriftFit
from eldr_operator.drift.protection import RETURNS
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
@pytest.mark.parametrize("policy", [POLICY_ELDR, POLICY_MARGINAL])
def test_while_a_pin_stands_no_set_is_rolled_back_or_barred(chosen, policy):
    one = Life(previous="z", policy=policy, pinned=True, chosen=chosen)
    for windows in (3, ON_TRIAL):  # on trial, and past it
        verdict = one.window(times=windows, saving=POOR)
        assert (verdict.status, verdict.reason, verdict.roll_back, verdict.fit) == (
            "True",
            "Pinned",
            None,
            None,
        )
    assert one.state.blocked == ()


@PINS
def test_a_set_that_broke_its_promise_under_a_pin_is_rolled_back_without_it(chosen):
    one = Life(previous="z", pinned=True, chosen=chosen)
    one.window(times=3, saving=POOR)
    assert one.look(pinned=False, chosen=False).roll_back == RollBack("a", "z", returned=False)


def test_a_harmful_set_that_a_pin_does_not_name_goes_out_of_service():
    one = Life(previous="z", pinned=True)
    verdict = one.window(times=4, saving=BAD)
    assert (verdict.roll_back, verdict.protective, verdict.harm[0]) == (None, True, "Protective")
    assert (verdict.reason, one.state.blocked) == ("Pinned", ())
    assert not one.look(chosen=True).protective


def test_a_pinned_set_is_kept_and_said_to_harm():
    one = Life(previous="z", pinned=True, chosen=True)
    verdict = one.window(times=4, saving=BAD)
    assert verdict.roll_back is None
    assert not verdict.protective
    assert verdict.harm[0] == "PinnedRegresses"


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
    assert one.state.blocked == ("a",)
    assert one.window(SHARES, 3).roll_back == RollBack("a", "z", returned=False), "until it has happened"
    one.activate("z", previous="a")
    assert one.window(times=12).roll_back is None
    assert one.verdict.status == "False"


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


def harmful(policy=POLICY_ELDR, **options):
    """Traffic left a set that was good, and it harms now."""
    one = Life(previous="z", policy=policy, **options)
    one.window(times=ON_TRIAL)
    one.window(OTHER, 3, saving=BAD)
    return one


def test_a_set_that_does_worse_than_chance_is_taken_out_of_service():
    one = harmful()
    assert one.verdict.protective
    assert one.verdict.harm[0] == "Protective"
    assert one.verdict.roll_back is None
    # JSQ saves nothing: that says nothing about the set
    assert one.window(OTHER, 5, saving=Saving(0.0, 0.001, 5000)).protective


@pytest.mark.slow
def test_chance_is_no_harm():
    one = Life()
    rng = random.Random(3)
    for _ in range(300):
        one.window(
            n=60, saving=Saving(rng.gauss(0.0, 0.01), 0.01, 500), baseline=Baseline(one.baseline.counts)
        )
        assert not one.verdict.protective


def test_a_set_that_came_back_and_harms_again_is_not_let_in_for_ever():
    one = harmful()
    for _ in range(RETURNS):
        one.window(SHARES, 8, saving=GOOD)
        assert not one.verdict.protective
        one.window(OTHER, 5, saving=BAD)
        assert one.verdict.protective
    assert f"came back {RETURNS} times" in one.verdict.harm[1]
    assert one.window(SHARES, 20, saving=GOOD).protective
    assert not one.activate("b").protective


def test_a_set_that_harms_on_the_traffic_it_was_fitted_for_waits_for_another():
    one = Life()
    one.window(times=ON_TRIAL, baseline=Baseline(one.baseline.counts))
    one.window(times=3, saving=BAD)
    assert one.verdict.protective
    assert (one.verdict.status, one.verdict.reason) == ("True", "Fitting")
    assert one.verdict.fit == FitOrder(1, None)
    assert one.look(busy="manual").fit is None
    assert one.look(busy=None, samples=999).reason == "WaitingForRecords"
    assert one.look(samples=1000).fit is not None
    first = DriftFit(1, one.now, one.now + timedelta(minutes=1))
    assert one.look(1, fits=(first,)).reason == "CoolDown"
    assert one.window(times=30, saving=GOOD).protective
    assert one.state.fits.fruitless == 1
    second = DriftFit(2, one.now, one.now + timedelta(minutes=1))
    one.look(1, fits=(first, second))
    assert one.verdict.wake_at == second.finished + timedelta(minutes=120), "though traffic is calm"
    assert not one.activate("b").protective
    assert one.window(times=4).reason == "Quiet"


def test_fits_of_a_set_that_harms_on_quiet_traffic_are_bounded():
    one = Life()
    one.window(times=5)
    one.told("manual")
    fits, orders = (), []
    for _ in range(2 * 48):
        found = one.window(minutes=30).fit
        if found is not None:
            orders.append(one.now)
            fits = (*fits, DriftFit(found.number, one.now, one.now))
            one.look(fits=fits)
    assert 4 <= len(orders) <= 6
    assert one.verdict.protective


def test_a_set_that_comes_back_by_itself_needs_no_other():
    one = harmful()
    one.window(OTHER, 5)
    while one.verdict.protective:
        one.window(SHARES)
        assert one.verdict.fit is None or one.verdict.fit.since is not None
    assert one.verdict.fit is None


GOES_ON = pytest.mark.parametrize(
    "options", [{"policy": POLICY_MARGINAL}, {"pinned": True, "chosen": True}, {"spec": {"mode": "Observe"}}]
)
"""Sets that go on serving though they harm."""


@GOES_ON
def test_a_harmful_set_that_goes_on_serving_orders_no_fit_on_quiet_traffic(options):
    one = Life(**options)
    one.window(times=ON_TRIAL, baseline=Baseline(one.baseline.counts))
    assert one.window(times=6, saving=BAD).fit is None
    assert one.verdict.harm is not None


def test_a_report_takes_the_set_out_of_service_once():
    one = Life()
    one.window(times=5)
    one.window(OTHER, 3)
    assert not one.verdict.protective
    assert one.told("x-drift-1").protective
    one.window(SHARES, 8)
    assert not one.verdict.protective
    assert not one.window(SHARES, 3).protective
    one.window(OTHER, 3)
    assert one.told("x-drift-2").protective


def test_marginal_union_lets_its_prior_decay_instead():
    one = harmful(policy=POLICY_MARGINAL)
    assert not one.verdict.protective
    assert one.verdict.harm[0] == "PriorDecays"
    assert one.look(policy=POLICY_ELDR).protective


@GOES_ON
def test_a_set_that_goes_on_serving_is_no_longer_called_harmful_once_it_saves(options):
    one = harmful(**options)
    assert one.verdict.harm is not None
    assert one.window(OTHER, 2, saving=GOOD).harm is not None
    assert one.window(OTHER, 1, saving=BAD).harm is not None
    assert one.window(OTHER, 3, saving=GOOD).harm is None


@pytest.mark.parametrize("policy", ["JSQ", "Domain"])
def test_policies_that_use_no_set_are_harmed_by_none(policy):
    one = harmful(policy=policy)
    assert (one.verdict.protective, one.verdict.harm, one.state.promise.windows) == (False, None, 0)


def test_an_old_report_is_no_news_once_drift_is_enabled_again():
    one = Life()
    one.window(times=5)
    one.window(OTHER, 3)
    assert one.told("x-drift-1").protective
    one.window(SHARES, 8)
    assert not one.verdict.protective
    one.switch("Disabled")
    assert not one.switch("Enabled").protective
    assert one.window(times=3).harm is None
    assert one.told("x-drift-2").protective, "a new one is"


def test_a_set_that_harms_is_still_known_to_after_drift_was_disabled():
    one = harmful()
    assert not one.switch("Disabled").protective
    assert one.switch("Enabled").protective
    assert not one.window(SHARES, 6, saving=GOOD).protective


def test_a_report_that_the_set_does_not_harm_brings_it_back():
    one = Life()
    one.window(times=5)
    assert one.told("first").protective
    verdict = one.told("x-drift-1", harms=False, minutes=1)
    assert (verdict.protective, verdict.harm) == (False, None)
    assert not one.window(times=3).protective, "the one before is no news"
    assert one.state.promise.windows > ON_TRIAL, "it is not on trial"
    assert one.told("x-drift-2", minutes=1).protective


def test_a_report_from_before_it_was_seen_to_harm_brings_nothing_back():
    one = Life()
    one.window(times=ON_TRIAL, baseline=Baseline(one.baseline.counts))
    one.told("manual", harms=False)
    assert one.window(times=3, saving=BAD).protective
    assert one.look().protective


@pytest.mark.slow
@pytest.mark.parametrize("fits", [True, False])
def test_nights_in_which_it_harms_do_not_keep_a_good_set_out_by_day(fits):
    """By night five windows of other traffic, too few records for a fit; by day the set's own, which it is good for."""
    one = Life()
    one.window(times=ON_TRIAL + 5)
    made, out = (), []
    for _ in range(10):
        one.window(OTHER, 5, minutes=30, saving=BAD)
        out.append(0)
        for _ in range(40):
            order = one.window(minutes=30, saving=GOOD).fit
            out[-1] += one.verdict.protective
            if order is not None and fits:
                made = (*made, DriftFit(order.number, one.now, one.now))
                one.look(fits=made)
                one.told(f"x-drift-{order.number}", harms=False, minutes=1)
    assert max(out) <= 8
    assert len(made) <= 1


def rolled_back_to_what_harmed():
    """The set goes out of service, another one comes, breaks its promise, and the first is active again."""
    one = harmful()
    one.activate("b", previous="a")
    assert (one.verdict.harm, one.state.harmful) == (None, ("a",))
    verdict = one.window(OTHER, 3, saving=POOR)
    assert verdict.roll_back.to == "a"
    one.activate("a", previous="b")
    return one


def test_a_set_that_harmed_is_out_of_service_when_it_is_active_again_and_comes_back_with_its_traffic():
    one = rolled_back_to_what_harmed()
    assert one.verdict.protective
    assert one.window(OTHER, 3).protective
    one.window(SHARES, 8, saving=GOOD)
    assert (one.verdict.protective, one.state.harmful) == (False, ())
    one.activate("b")
    assert not one.activate("a").protective


def test_a_set_that_harmed_comes_back_by_a_report_or_another_is_fitted():
    one = rolled_back_to_what_harmed()
    assert one.window(OTHER, 30).fit is not None
    assert not one.told("x-drift-1", harms=False, minutes=1).protective
    assert one.state.harmful == ()


def test_a_set_that_only_its_fit_knows_to_have_harmed_is_out_of_service():
    one = Life(digest=None)
    one.state = one.state.model_copy(update={"harmful": ("a", "b")})
    assert one.look(digest="a", activated=None).protective
    assert one.state.harmful == ("b", "a")
    assert not one.told("manual", harms=False).protective


def test_a_set_that_harmed_and_is_pinned_again_goes_on_serving():
    one = rolled_back_to_what_harmed()
    assert one.look(pinned=True, chosen=True).harm[0] == "PinnedRegresses"
    assert one.window(times=3, saving=GOOD).harm is None
    assert one.state.harmful == ()


@pytest.mark.parametrize("settled", [True, False])
def test_where_traffic_settles_between_what_a_set_was_fitted_for_and_drift_another_is_fitted(settled):
    """It is neither calm, so that the set came back, nor drift, for which there would be a fit."""
    near = (0.325, 0.225, 0.225, 0.225) if settled else SHARES
    one = Life()
    one.window(times=LEARNS)
    one.window(OTHER)
    one.told("manual")
    assert one.state.protection.left
    one.window(n=3000)
    orders = []
    for n in range(60):
        if one.window(near, n=3000).fit is not None:
            orders.append(n)
            break
        assert one.state.drift.phase != "Detected"
        if not one.verdict.protective:
            break
    assert bool(orders) == settled
    if settled:
        assert 10 <= orders[0] <= 30
        assert "neither" in one.verdict.message
        assert (one.verdict.status, one.verdict.protective) == ("True", True)
        fit = DriftFit(1, one.now, one.now)
        assert one.look(fits=(fit,)).reason == "CoolDown"
