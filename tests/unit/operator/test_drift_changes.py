"""Which changes are drift, and which are not: of traffic, right after an activation too, and of what is saved."""

from dataclasses import replace
from datetime import timedelta

import pytest

from eldr.contract import POLICY_MARGINAL, SIMILARITY_BINS
from eldr_operator.drift.counts import Baseline, Counts
from eldr_operator.drift.evidence import LEARNS
from eldr_operator.drift.judge import FORGOTTEN, ON_TRIAL
from eldr_operator.drift.windows import Span, Window
from tests.unit.operator.drifted import OTHER, POOR, SHARES, Life


def test_traffic_as_expected_is_quiet():
    one = Life()
    assert (one.verdict.status, one.verdict.reason) == ("Unknown", "Gathering")
    assert one.window(times=40).reason == "Quiet"
    assert one.verdict.status == "False"
    assert "drift score 0." in one.verdict.message
    assert one.state.spread.similarity < 2
    assert one.state.spread.clusters < 2
    assert one.verdict.fit is None


def test_drift_needs_consecutive_windows():
    one = Life()
    one.window(times=6)
    told = [one.window(OTHER).reason for _ in range(3)]
    assert told[:2] == ["Suspected", "Suspected"]
    assert (one.verdict.status, one.verdict.reason) == ("True", "WaitingForRecords")
    assert one.state.drift.since == one.now
    assert "traffic has changed since" in one.verdict.message


def test_a_single_odd_window_or_two_raise_nothing():
    one = Life()
    one.window(times=6)
    for _ in range(6):
        one.window(OTHER, 2)
        assert one.window(SHARES, 3).reason == "Quiet"
    assert one.state.drift.changed is None


def test_a_burst_that_outweighs_the_windows_around_it_raises_nothing():
    one = Life()
    one.window(times=20)
    one.window(OTHER, n=8000)
    for _ in range(2):
        one.window(SHARES)
        assert one.state.shown.value > 1
        assert one.verdict.status == "False"
    assert one.window(SHARES, 3).reason == "Quiet"


def test_a_saving_that_is_lost_later_on_is_drift():
    one = Life(policy=POLICY_MARGINAL)
    one.window(times=ON_TRIAL)
    started = one.now
    assert one.window(times=2, saving=POOR).status == "False"
    assert one.window(saving=POOR).status == "True"
    assert one.state.drift.cause == "SavingLost"
    assert one.verdict.roll_back is None
    assert one.state.drift.changed == started + timedelta(minutes=5)
    assert "saves 0.5% (+- 0.4%) of active experts, 10.0% was predicted" in one.verdict.message
    assert one.window(times=20, saving=POOR).fit.since == started + timedelta(minutes=5)


def test_a_lost_saving_that_recovers_is_no_drift():
    one = Life(policy=POLICY_MARGINAL)
    one.window(times=ON_TRIAL)
    one.window(times=3, saving=POOR)
    one.window(times=2, saving=one.seen.saving)
    fine = type(POOR)(0.09, 0.004, 5000)
    assert one.window(times=2, saving=fine).status == "True"
    assert one.window(saving=fine).reason == "Quiet"


def test_requests_that_are_as_expected_join_the_baseline_for_some_windows():
    one = Life()
    one.window(times=LEARNS + 10)
    known = one.state.known
    assert known.windows == LEARNS
    assert sum(known.similarity) == sum(known.clusters) == LEARNS * 500
    one.activate("b")
    assert one.state.known.windows == 0


def test_the_beginning_of_a_change_does_not_join_the_baseline():
    one = Life()
    one.window(times=10)
    before = one.state.known
    one.window(OTHER, 10)
    assert one.state.known.windows <= before.windows + 1
    assert max(one.state.known.clusters) / sum(one.state.known.clusters) < 0.3


@pytest.mark.parametrize("calm", range(6))
@pytest.mark.parametrize("to", [OTHER, (0.4, 0.4, 0.1, 0.1)])
def test_a_change_right_after_an_activation_is_found_too(calm, to):
    """What has not been seen to be as expected must not become what is expected."""
    one = Life()
    one.window(times=calm)
    number = next((n for n in range(1, 31) if one.window(shares=to).status == "True"), None)
    assert number is not None, one.verdict
    assert number <= 16


def of_kinds(kinds, times):
    """Requests of kinds in these very proportions: (best similarity, slot, how many)."""
    similarity, clusters = [0] * SIMILARITY_BINS, [0, 0]
    for at, slot, n in kinds:
        similarity[int(at * SIMILARITY_BINS)] += n * times
        clusters[slot] += n * times
    return Counts(tuple(similarity), tuple(clusters), sum(clusters))


ONE_KIND = ((0.6, 0, 80), (0.5, 1, 20))


EVEN_KINDS = ((0.95, 0, 30), (0.9, 0, 20), (0.95, 1, 30), (0.9, 1, 20))


@pytest.mark.parametrize("calm", range(6))
@pytest.mark.parametrize(("fitted", "then"), [(ONE_KIND, EVEN_KINDS), (EVEN_KINDS, ONE_KIND)])
def test_a_change_neither_becomes_what_is_expected_nor_passes_for_bursts(calm, fitted, then):
    one = Life(spec={"consecutiveWindows": 2, "windowSeconds": 1})
    one.seen = replace(one.seen, baseline=Baseline(of_kinds(fitted, 4), 0.1, 0.08, 0.12))

    def window(kinds):
        since = one.now
        one.now += timedelta(seconds=5)
        one.spans.append(Span(since, one.now, of_kinds(kinds, 2)))
        return one.look(window=Window("a", tuple(one.spans)))

    for _ in range(calm):
        window(fitted)
    number = next((n for n in range(1, 31) if window(then).status == "True"), None)
    assert number is not None, one.verdict
    assert number <= 16


def test_a_saving_that_was_lost_and_cannot_be_measured_any_more_is_no_drift_for_ever():
    """Batches become too small to judge by, or there are no decode steps at all."""
    one = Life()
    predicted = Baseline(one.baseline.counts, 0.1, 0.08, 0.12, batch=16)
    one.window(times=ON_TRIAL + 2, baseline=predicted)
    one.window(times=3, saving=POOR)
    assert (one.verdict.status, one.state.drift.cause) == ("True", "SavingLost")
    small = replace(POOR, batch=3)
    assert one.window(times=FORGOTTEN - 1, saving=small).status == "True"
    assert one.window(times=2, saving=small).status == "False"
    assert one.window(times=10, saving=small).status == "False", "what was lost then is no news"
    assert one.state.fits.fruitless == 0
    assert one.window(times=3, saving=POOR).status == "True", "this is"


def test_a_saving_that_is_lost_now_and_then_stays_drift():
    one = Life()
    one.window(times=ON_TRIAL + 2)
    one.window(times=3, saving=POOR)
    for _ in range(5):
        one.window(times=FORGOTTEN - 5, saving=None)
        assert one.window(saving=POOR).status == "True"
