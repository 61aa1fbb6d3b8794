"""A comparison from its beginning to its end, with routers and a clock that are played."""

import json
from itertools import pairwise

import pytest

from eldr.compare import figures
from eldr.compare.course import Course, windows
from eldr.compare.recovery import CompareError, moment, refuse_or_recover
from eldr.compare.report import report
from eldr.compare.run import Comparison
from eldr.kubeconfig import ClusterError
from eldr.status import hold
from tests.unit.compare.pool import PlayedClock, Pool

TPOT = {"MarginalUnion": 0.0594, "JSQ": 0.0646, "ELDR": 0.06}
BEFORE = {"policy": "MarginalUnion", "suspend": "Disabled", "mode": "Enabled"}
WINDOW, CARRY_OVER = 300.0, 30.0


@pytest.fixture
def clock():
    return PlayedClock()


@pytest.fixture
def pool(clock):
    return Pool(clock, TPOT)


def course(pairs=6, seed=3):
    return Course(windows(pairs, seed), WINDOW, CARRY_OVER)


def compare(pool, clock, against="JSQ", pairs=6, said=None, poll=2.0):
    say = (said if said is not None else []).append
    comparison = Comparison(pool, clock, against, say=say, poll=poll)
    comparison.run(course(pairs))
    return comparison.measured


def is_as_before(pool):
    return pool.fields == BEFORE and pool.resource["metadata"]["annotations"] == {}


@pytest.mark.slow
def test_it_finds_the_effect_and_leaves_everything_as_it_was(pool, clock):
    measured = compare(pool, clock, pairs=12)
    assert is_as_before(pool)
    order = [one.is_own for one in course(12).windows]
    found = report(measured, order, "MarginalUnion", "JSQ", 3)
    assert found.left_out == ()
    assert found.pairs == 12
    tpot = found.changes["tpot"]
    assert tpot.low < TPOT["MarginalUnion"] / TPOT["JSQ"] - 1 < tpot.high < 0


def test_requests_that_the_other_policy_placed_are_not_measured(clock):
    pool = Pool(clock, TPOT, scatter=0.0)
    measured = compare(pool, clock)
    by_policy = {
        policy: [one.figures.tpot for one in measured if one.policy == policy]
        for policy in ("MarginalUnion", "JSQ")
    }
    # load swings by a third, and no window of one policy holds a step of the other: neighbours differ by the ratio
    for first, second in zip(by_policy["MarginalUnion"], by_policy["JSQ"], strict=True):
        assert first / second == pytest.approx(TPOT["MarginalUnion"] / TPOT["JSQ"], rel=0.04)


def test_fits_roll_backs_and_protection_wait_meanwhile(pool, clock):
    compare(pool, clock)
    first = pool.patches[0]
    assert first["spec"]["refit"] == {"suspend": "Enabled", "drift": {"mode": "Observe"}}
    mark = json.loads(first["metadata"]["annotations"][hold.ANNOTATION])
    assert mark["was"] == BEFORE, "in the same patch as the first policy"


def test_windows_are_as_long_as_asked_for(pool, clock):
    began = clock.now()
    compare(pool, clock, pairs=6)
    asked = 12 * WINDOW
    assert asked <= clock.now() - began <= asked + 12 * 15, "and a few seconds each until routers follow"


def test_it_says_that_it_runs_so_that_nobody_takes_it_for_dead(pool, clock):
    compare(pool, clock)
    marks = [one["metadata"]["annotations"][hold.ANNOTATION] for one in pool.patches]
    untils = [hold.of({"metadata": {"annotations": {hold.ANNOTATION: mark}}}).until for mark in marks if mark]
    assert max(later - sooner for sooner, later in pairwise(untils)) < hold.LIFETIME


@pytest.mark.parametrize("seconds", [10.0, 200.0, 500.0, 1000.0])
def test_a_policy_that_somebody_else_sets_stays(pool, clock, seconds):
    clock.after(seconds, lambda: pool.edit({"router": {"policy": "RoundRobin"}}))
    with pytest.raises(CompareError, match=r"somebody set router\.policy to RoundRobin: stopped") as caught:
        compare(pool, clock)
    assert caught.value.reason == "Interfered"
    assert pool.fields == BEFORE | {"policy": "RoundRobin"}
    assert pool.resource["metadata"]["annotations"] == {}


def test_a_second_comparison_is_refused(pool, clock):
    errors = []

    def second():
        with pytest.raises(CompareError) as caught:
            compare(pool, clock)
        errors.append(caught.value.reason)

    clock.after(400, second)
    compare(pool, clock)
    assert errors == ["InUse"]
    assert is_as_before(pool)


def test_one_that_begins_between_look_and_first_switch_is_refused(pool, clock):
    """The mark is written with the version that was read."""
    other = hold.new(pool.resource, "other", moment(clock), "JSQ")
    patch = pool.patch

    def meanwhile(body):
        pool.patch = patch
        pool.edit({"router": {"policy": "JSQ"}}, {hold.ANNOTATION: other.dump()})
        patch(body)

    pool.patch = meanwhile
    with pytest.raises(CompareError, match="another eldr compare holds the deployment"):
        compare(pool, clock)
    assert hold.of(pool.resource).id == "other"


def test_a_killed_one_is_restored_by_the_next(pool, clock):
    left = hold.new(pool.resource, "dead", moment(clock), "JSQ")
    pool.patch(hold.patch(pool.resource, left))
    assert pool.policy == "JSQ"
    with pytest.raises(CompareError, match="another eldr compare"):
        refuse_or_recover(pool.read(), pool, clock, lambda _: None)
    clock.wait(hold.LIFETIME.total_seconds())
    assert refuse_or_recover(pool.read(), pool, clock, lambda _: None)
    assert is_as_before(pool)
    assert not refuse_or_recover(pool.read(), pool, clock, lambda _: None)
    pool.patch(hold.patch(pool.resource, left))
    said = []
    measured = compare(pool, clock, said=said)
    assert {one.policy for one in measured} == {"MarginalUnion", "JSQ"}, "of before the one that was killed"
    assert said[0].startswith("an earlier comparison ended without restoring")
    assert is_as_before(pool)


def test_a_signal_ends_it_and_restores(pool, clock):
    def stop():
        clock.stopped = True

    clock.after(700, stop)
    with pytest.raises(CompareError) as caught:
        compare(pool, clock)
    assert caught.value.reason == "Stopped"
    assert str(caught.value) == "by Ctrl-C or a signal: policy MarginalUnion as before"
    assert is_as_before(pool)


def test_an_error_ends_it_and_restores(pool, clock):
    def fail():
        raise RuntimeError

    clock.after(700, fail)
    with pytest.raises(RuntimeError):
        compare(pool, clock)
    assert is_as_before(pool)


def test_it_outlives_a_connection_that_comes_back(pool, clock):
    def lose():
        pool.away = True
        clock.after(60, back)

    def back():
        pool.away = False

    clock.after(500, lose)
    measured = compare(pool, clock)
    assert len(measured) == 12
    assert is_as_before(pool)


def test_a_connection_that_stays_away_is_told_with_what_to_do(pool, clock):
    def lose():
        pool.away = True

    clock.after(500, lose)
    with pytest.raises(CompareError, match="eldr compare NAME --restore when the cluster answers") as caught:
        compare(pool, clock)
    assert caught.value.reason == "NotRestored"
    pool.away = False
    refuse_or_recover(pool.read(), pool, clock, lambda _: None)
    assert is_as_before(pool)


def test_a_switch_that_was_written_and_not_answered_is_no_interference(pool, clock):
    clock.after(290, lambda: setattr(pool, "answers_lost", 1))
    assert len(compare(pool, clock)) == 12
    assert is_as_before(pool)


def test_a_first_switch_that_was_written_and_not_answered_is_undone(pool, clock):
    pool.answers_lost = 1
    with pytest.raises(ClusterError):
        compare(pool, clock)
    assert is_as_before(pool)


def test_routers_that_do_not_follow_end_it(pool, clock):
    pool.policies = lambda: {"r0": "MarginalUnion", "r1": "JSQ"}
    with pytest.raises(CompareError, match="does the operator run") as caught:
        compare(pool, clock)
    assert caught.value.reason == "NotAdopted"
    assert is_as_before(pool)


def test_what_cannot_be_read_is_told_before_anything_changes(pool, clock):
    def fail():
        raise ClusterError("PodUnreachable", "port 8100: timed out")

    pool.reading = fail
    with pytest.raises(CompareError, match="nothing was changed: port 8100: timed out"):
        compare(pool, clock)
    assert pool.patches == []


def test_without_a_centroid_set_eldr_is_no_policy_to_compare(pool, clock):
    pool.resource["status"]["centroids"] = {}
    with pytest.raises(CompareError, match="ELDR places as JSQ"):
        compare(pool, clock, against="ELDR")
    assert pool.patches == []


def test_a_pair_whose_centroids_change_is_left_out(pool, clock):
    clock.after(450, lambda: pool.resource["status"]["router"].update(epoch=2))
    measured = compare(pool, clock)
    found = report(measured, [one.is_own for one in course().windows], "MarginalUnion", "JSQ", 3)
    assert found.pairs == 5
    assert [why.partition(": ")[2] for why in found.left_out] == ["the centroid set changed"]


@pytest.mark.parametrize("idle", [1, 2])
def test_it_stops_after_a_pair_of_windows_without_traffic(pool, clock, monkeypatch, idle):
    """One window alone says little."""
    whole, waits = figures.window, iter(range(idle))
    monkeypatch.setattr(
        "eldr.compare.run.figures.window",
        lambda *readings: whole(*readings) if next(waits, None) is None else figures.NO_TRAFFIC,
    )
    if idle == 1:
        compare(pool, clock)
    else:
        with pytest.raises(CompareError, match="the first two windows had no traffic") as caught:
            compare(pool, clock)
        assert caught.value.reason == "NoTraffic"
    assert is_as_before(pool)
