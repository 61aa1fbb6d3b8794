"""Sets that do not keep their promise are rolled back; sets that harm do not serve."""

import random
from datetime import timedelta

import pytest

from eldr.contract import POLICY_ELDR, POLICY_MARGINAL
from eldr_operator.drift.counts import Baseline, Saving
from eldr_operator.drift.judge import ON_TRIAL, RETURNS
from tests.unit.operator.drifted import BAD, GOOD, OTHER, POOR, SHARES, Life


@pytest.fixture
def life(now):
    return lambda **options: Life(now, **options)


def test_a_set_that_keeps_its_promise_stays(life):
    one = life(previous="z")
    assert one.window(times=ON_TRIAL + 5).roll_back is None
    assert one.state.promise.windows == ON_TRIAL + 5
    assert one.state.barred == ()


@pytest.mark.parametrize(("policy", "is_lost"), [(POLICY_ELDR, True), (POLICY_MARGINAL, False)])
def test_predictions_are_the_bands_and_other_policies_save_less_of_it(life, policy, is_lost):
    one = life(previous="z", policy=policy)
    verdict = one.window(times=3, saving=Saving(0.02, 0.001, 5000))
    assert (verdict.roll_back is not None) == is_lost


@pytest.mark.parametrize("previous", ["z", None])
@pytest.mark.parametrize("policy", [POLICY_ELDR, POLICY_MARGINAL])
def test_a_set_that_does_not_is_rolled_back_after_consecutive_windows(life, previous, policy):
    one = life(previous=previous, policy=policy)
    assert one.window(times=2, saving=POOR).roll_back is None
    verdict = one.window(saving=POOR)
    assert (verdict.roll_back.digest, verdict.roll_back.to) == ("a", previous)
    assert verdict.reason == "RollBack"
    assert "10.0% were predicted" in verdict.message
    assert ("the set before serves again" if previous else "no set serves") in verdict.message
    assert one.state.barred == ("a",)


def test_a_roll_back_is_asked_for_until_it_has_happened_whatever_is_measured_meanwhile(life):
    one = life(previous="z")
    one.window(times=3, saving=POOR)
    assert one.window(times=3, saving=GOOD).roll_back.digest == "a"
    one.activate("z", previous="a")
    assert one.verdict.roll_back is None
    # what serves after a roll-back is not on trial again, and is never rolled back to what was taken out
    assert one.window(times=10, saving=POOR).roll_back is None
    assert one.state.drift.cause == "SavingLost"


def test_a_barred_set_is_not_what_a_later_one_is_rolled_back_to(life):
    one = life(previous="z")
    one.window(times=3, saving=POOR)
    one.activate("z", previous="a")
    one.window(times=5, saving=GOOD)
    one.activate("c", previous="a")
    verdict = one.window(times=3, saving=POOR)
    assert (verdict.roll_back.digest, verdict.roll_back.to) == ("c", None)


def test_uncertain_measurements_break_no_promise(life):
    one = life(previous="z")
    assert one.window(times=10, saving=Saving(0.0, 0.02, 5000)).roll_back is None
    assert one.window(times=10, saving=Saving(0.0, 0.0001, 50)).roll_back is None
    vague = Baseline(one.baseline.counts, 0.1, 0.01, 0.19)
    assert one.window(times=10, saving=POOR, baseline=vague).roll_back is None


def test_half_of_the_promise_is_kept(life):
    one = life(previous="z")
    assert one.window(times=ON_TRIAL, saving=Saving(0.052, 0.001, 5000)).roll_back is None
    assert one.state.promise.kept == ON_TRIAL


def test_small_batches_break_no_promise(life):
    one = life(previous="z")
    predicted = Baseline(one.baseline.counts, 0.1, 0.08, 0.12, batch=16)
    small, large = Saving(0.01, 0.004, 5000, batch=3), Saving(0.01, 0.004, 5000, batch=12)
    assert one.window(times=10, baseline=predicted, saving=small).roll_back is None
    assert one.state.promise.windows == 0
    assert one.window(times=3, saving=large).roll_back is not None


@pytest.mark.parametrize("baseline", [(None, None, None), (0.0, -0.1, 0.1), (0.02, -0.01, 0.05)])
def test_who_promised_nothing_breaks_nothing(life, baseline):
    one = life(previous="z")
    assert (
        one.window(times=5, saving=POOR, baseline=Baseline(one.baseline.counts, *baseline)).roll_back is None
    )


def test_what_was_measured_before_the_set_placed_anything_is_not_its_fault(life, now):
    one = life(previous="z", activated=now)
    one.window(times=3, minutes=0.5, saving=POOR)
    assert one.state.promise.windows == 0
    one.window(times=3, minutes=2)
    assert one.state.promise.windows == 3


def test_a_pinned_set_is_kept_and_said_to_harm(life):
    one = life(previous="z", pinned=True)
    verdict = one.window(times=4, saving=BAD)
    assert verdict.roll_back is None
    assert not verdict.protective
    assert verdict.harm[0] == "PinnedHarms"
    assert "spec.centroids.pin" in verdict.harm[1]


def test_observing_rolls_nothing_back_and_bars_nothing(life):
    one = life(previous="z", spec={"mode": "Observe"})
    verdict = one.window(times=4, saving=BAD)
    assert (verdict.reason, verdict.roll_back, verdict.protective) == ("Observing", None, False)
    assert verdict.harm[0] == "Harms"
    assert one.state.barred == ()


@pytest.fixture
def harmful(life):
    """Traffic left a set that was good, and it harms now."""

    def made(policy=POLICY_ELDR, **options):
        one = life(previous="z", policy=policy, **options)
        one.window(times=ON_TRIAL)
        one.window(OTHER, 3, saving=BAD)
        return one

    return made


def test_a_set_that_does_worse_than_chance_is_taken_out_of_service(harmful):
    one = harmful()
    assert one.verdict.protective
    assert one.verdict.harm[0] == "Protective"
    assert "JSQ is in effect until there is a better one, or traffic" in one.verdict.harm[1]
    assert one.verdict.roll_back is None
    # JSQ saves nothing: that says nothing about the set
    assert one.window(OTHER, 5, saving=Saving(0.0, 0.001, 5000)).protective


def test_chance_is_no_harm(life):
    one = life()
    rng = random.Random(3)
    for _ in range(300):
        one.window(
            n=60, saving=Saving(rng.gauss(0.0, 0.01), 0.01, 500), baseline=Baseline(one.baseline.counts)
        )
        assert not one.verdict.protective


def test_the_set_comes_back_when_traffic_does(harmful):
    one = harmful()
    assert one.window(SHARES, 4).protective
    assert not one.window(SHARES, 2, saving=GOOD).protective
    assert one.state.protection.returns == 1
    assert one.window(times=5).harm is None


def test_a_set_that_came_back_and_harms_again_is_not_let_in_for_ever(harmful):
    one = harmful()
    for _ in range(RETURNS):
        one.window(SHARES, 8, saving=GOOD)
        assert not one.verdict.protective
        one.window(OTHER, 5, saving=BAD)
        assert one.verdict.protective
    assert f"came back {RETURNS} times" in one.verdict.harm[1]
    assert one.window(SHARES, 20, saving=GOOD).protective
    assert not one.activate("b").protective


def test_a_set_that_harms_on_the_traffic_it_was_fitted_for_waits_for_another(life):
    one = life()
    one.window(times=ON_TRIAL)
    one.window(times=3, saving=BAD)
    assert one.verdict.protective
    assert one.window(times=30, saving=GOOD).protective
    assert "traffic is what this one was fitted for" in one.verdict.harm[1]


def test_a_report_takes_the_set_out_of_service_once(harmful, life):
    one = life()
    one.window(times=5)
    one.window(OTHER, 3)
    assert not one.verdict.protective
    assert one.look(harms="x-drift-1").protective
    one.window(SHARES, 8)
    assert not one.verdict.protective
    assert not one.window(SHARES, 3).protective
    one.window(OTHER, 3)
    assert one.look(harms="x-drift-2").protective


def test_marginal_union_lets_its_prior_decay_instead(harmful):
    one = harmful(policy=POLICY_MARGINAL)
    assert not one.verdict.protective
    assert one.verdict.harm[0] == "PriorDecays"
    assert one.look(policy=POLICY_ELDR).protective


@pytest.mark.parametrize(
    "options", [{"policy": POLICY_MARGINAL}, {"pinned": True}, {"spec": {"mode": "Observe"}}]
)
def test_a_set_that_goes_on_serving_is_no_longer_called_harmful_once_it_saves(harmful, options):
    one = harmful(**options)
    assert one.verdict.harm is not None
    assert one.window(OTHER, 2, saving=GOOD).harm is not None
    assert one.window(OTHER, 1, saving=BAD).harm is not None
    assert one.window(OTHER, 3, saving=GOOD).harm is None


@pytest.mark.parametrize("policy", ["JSQ", "Domain"])
def test_policies_that_use_no_set_are_harmed_by_none(harmful, policy):
    one = harmful(policy=policy)
    assert (one.verdict.protective, one.verdict.harm, one.state.promise.windows) == (False, None, 0)


def test_a_new_set_that_harms_at_once_is_rolled_back(life):
    one = life(previous="z")
    verdict = one.window(OTHER, 3, saving=BAD)
    assert verdict.roll_back.to == "z"
    assert verdict.protective
    assert not one.activate("z").protective


def test_times_of_protection_are_kept(harmful):
    one = harmful()
    assert one.state.protection.since == one.now
    one.window(OTHER, 2)
    assert one.now - one.state.protection.since == timedelta(minutes=10)
