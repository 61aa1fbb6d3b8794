"""When a drift fit is ordered, from which records, and what it waits for."""

from datetime import timedelta

import pytest

from eldr_operator.drift.observation import DriftFit
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.drift.state import State
from tests.unit.operator.drifted import OTHER, SHARES, Life

MINUTE = timedelta(minutes=1)


def drifted(windows=30, **options):
    """Six quiet windows, then other traffic until a fit may start."""
    one = Life(**options)
    one.window(times=6)
    one.window(OTHER, windows)
    return one


def test_the_fit_looks_back_to_the_first_window_that_is_all_new():
    one = drifted(windows=1)
    changed, began = one.now, one.spans[-1].since
    one.window(OTHER, 29)
    assert one.verdict.fit.since == changed
    assert one.verdict.fit.before == began
    assert one.verdict.fit.number == 1
    assert one.verdict.reason == "Fitting"


def test_the_fit_waits_for_records_of_the_new_regime():
    one = drifted(windows=20)
    assert one.verdict.reason == "WaitingForRecords"
    assert "about 950 of spec.refit.minSamples 1000" in one.verdict.message
    assert one.window(OTHER).fit is not None
    assert one.look(samples=999).reason == "WaitingForRecords"
    assert one.look(samples=1000).fit is not None


def test_while_the_mix_goes_on_changing_the_look_back_moves_along():
    one = Life()
    one.window(times=6)
    for step in range(36):
        part = min(1.0, step / 30)
        one.window(tuple((1 - part) * a + part * b for a, b in zip(SHARES, OTHER, strict=True)), n=3000)
    assert one.state.drift.phase == "Detected"
    assert one.now - one.state.drift.changed < 5 * 16 * MINUTE
    assert one.window(OTHER, 12, n=3000).fit is not None


def test_a_second_change_while_records_are_waited_for_moves_the_look_back():
    one = drifted(windows=12)
    first = one.state.drift.changed
    one.window((0.1, 0.1, 0.1, 0.7), 4)
    assert one.state.drift.changed > first + 11 * 5 * MINUTE
    assert one.verdict.reason == "WaitingForRecords"


@pytest.mark.slow
@pytest.mark.parametrize("hours", [1, 7, 30])
def test_a_regime_that_a_fit_had_time_for_has_no_part_in_the_next_one(hours):
    """Fits may be rejected, or wait for their budget, for long."""
    one = drifted(spec={"maxPerDay": 0})
    one.window(OTHER, hours * 12)
    moved = one.now
    one.window((0.1, 0.1, 0.1, 0.7), 6)
    assert one.state.drift.changed > moved
    one.window(OTHER, 30)
    last = one.now
    one.window((0.1, 0.7, 0.1, 0.1), 6)
    assert one.state.drift.changed > last
    one.spec = DriftSpec()
    assert one.window((0.1, 0.7, 0.1, 0.1), 30).fit.since > last


@pytest.mark.slow
def test_a_mix_that_never_settles_is_fitted_all_the_same():
    one = Life()
    one.window(times=6)
    shares = [(0.7, 0.1, 0.1, 0.1), (0.1, 0.7, 0.1, 0.1), (0.1, 0.1, 0.7, 0.1), (0.1, 0.1, 0.1, 0.7)]
    seen = []
    for step in range(30):
        seen += [one.window(shares[step % 4]).fit for _ in range(6)]
    assert not any(seen[:60])
    assert sum(found is not None for found in seen) > 6, "time enough for what a fit may wait for"


def test_traffic_that_returns_clears_drift_later_than_it_was_raised():
    one = drifted(windows=5)
    for _ in range(3):
        assert one.window(SHARES, 2).status == "True"
        assert one.window(OTHER, 1).status == "True"
    assert one.window(SHARES, 2).status == "True"
    assert one.window(SHARES, 2).reason == "Quiet"
    assert one.state.drift.changed is None


def test_an_order_is_repeated_until_its_fit_is_seen_and_then_never():
    one = drifted()
    assert [one.look(1).fit.number for _ in range(3)] == [1, 1, 1]
    fit = DriftFit(1, one.now)
    running = one.look(1, fits=(fit,), busy="x-drift-1")
    assert (running.fit, running.reason) == (None, "Fitting")
    assert "x-drift-1" in running.message
    # collected by the history limit: its number is not given again
    later = one.look(200, fits=(), busy=None)
    assert later.fit.number == 2
    assert one.state.fits.number == 1


def test_after_a_fit_there_is_a_pause_that_doubles_while_fits_bring_no_quiet():
    one = drifted()
    first = DriftFit(1, one.now, one.now + MINUTE)
    assert one.look(1, fits=(first,)).reason == "CoolDown"
    assert one.verdict.wake_at == first.finished + 60 * MINUTE
    assert one.look(59).reason == "CoolDown"
    assert one.look(1).fit.number == 2
    second = DriftFit(2, one.now, one.now + MINUTE)
    one.look(1, fits=(first, second))
    assert one.verdict.wake_at == second.finished + 120 * MINUTE
    assert "coolDownMinutes" in one.verdict.message


def test_quiet_after_a_new_set_forgives_the_fits_before():
    one = drifted()
    one.look(1, fits=(DriftFit(1, one.now, one.now),))
    one.activate("b")
    assert (one.verdict.status, one.verdict.reason) == ("Unknown", "Gathering")
    assert one.state.fits.fruitless == 1
    assert one.window(times=4).reason == "Quiet"
    assert one.state.fits.fruitless == 0


def test_a_new_set_that_does_not_fit_the_traffic_either_is_found():
    one = drifted()
    fits = (DriftFit(1, one.now, one.now),)
    one.activate("b", fits=fits)
    assert one.window(OTHER, 4).status == "True"
    assert one.verdict.reason == "CoolDown"


def test_the_daily_budget_is_of_the_last_day():
    one = drifted(spec={"maxPerDay": 2, "coolDownMinutes": 0})
    fits = tuple(DriftFit(n, one.now + n * MINUTE, one.now + n * MINUTE) for n in (1, 2))
    assert one.look(10, fits=fits).reason == "BudgetSpent"
    free = fits[0].created + timedelta(days=1)
    assert one.verdict.wake_at == free
    assert one.look(fits=()).reason == "BudgetSpent"
    one.now = free
    assert one.look().fit.number == 3


def test_fits_start_in_the_maintenance_window_only():
    spec = {
        "maintenanceWindow": {"schedule": "0 3 * * *", "durationMinutes": 90, "timeZone": "Europe/Berlin"}
    }
    one = drifted(spec=spec)
    assert one.verdict.reason == "OutsideMaintenanceWindow"
    assert one.verdict.wake_at.isoformat() == "2026-11-22T02:00:00+00:00"
    one.now = one.verdict.wake_at - MINUTE
    assert one.look().fit is None
    assert one.look(1).fit is not None
    assert one.look(89).fit is not None
    assert one.look(1).reason == "OutsideMaintenanceWindow"


@pytest.mark.parametrize(
    "wrong",
    [
        {"schedule": "0 99 * * *"},
        {"schedule": "0 3 * *"},
        {"schedule": "0 0 30 2 *"},
        {"timeZone": "Mars/Base"},
    ],
)
def test_a_maintenance_window_that_cannot_be_read_stays_closed(wrong):
    one = drifted(spec={"maintenanceWindow": {"schedule": "* * * * *"} | wrong})
    assert (one.verdict.reason, one.verdict.fit) == ("InvalidMaintenanceWindow", None)
    assert repr(next(iter(wrong.values()))) in one.verdict.message


def test_disabled_judges_nothing():
    one = drifted(spec={"mode": "Disabled"})
    assert (one.verdict.status, one.verdict.reason) == ("Unknown", "Disabled")
    assert one.state.drift == State().drift


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"spec": {"mode": "Observe"}}, "Observing"),
        ({"spec": {"maxPerDay": 0}}, "BudgetSpent"),
        ({"suspended": True}, "Suspended"),
        ({"pinned": True}, "Pinned"),
    ],
)
def test_what_keeps_drift_from_ordering_a_fit(options, reason):
    one = drifted(**options)
    assert (one.verdict.status, one.verdict.reason) == ("True", reason)
    assert (one.verdict.fit, one.verdict.wake_at) == (None, None)
    one.spec = DriftSpec()
    assert one.look(suspended=False, pinned=False).fit is not None


@pytest.mark.parametrize(
    ("mode", "reason"), [("Enabled", "NoSet"), ("Observe", "NoSet"), ("Disabled", "Disabled")]
)
def test_without_a_set_nothing_is_known(mode, reason):
    verdict = Life(digest=None, spec={"mode": mode}).verdict
    assert (verdict.status, verdict.reason) == ("Unknown", reason)


def test_without_a_baseline_nothing_is_known():
    one = Life()
    assert one.window(OTHER, 5, baseline=None).reason == "NoBaseline"
    assert one.verdict.status == "Unknown"


def test_a_baseline_of_another_number_of_clusters_is_said_so():
    one = Life()
    assert one.window((0.5, 0.5), 4).reason == "BaselineUnusable"


def test_windows_of_the_set_before_are_not_judged():
    one = drifted(windows=2)
    stale = one.seen.window
    one.activate("b")
    assert one.look(window=stale).reason == "Gathering"
    assert one.state.shown is None


def test_what_was_written_by_another_version_is_read():
    one = drifted()
    assert State.model_validate(one.state.to_json() | {"laterField": 1}) == one.state
    assert State.model_validate({}) == State()


def test_an_operator_that_lost_the_window_goes_on():
    one = drifted(windows=5)
    verdict = one.look(window=None)
    assert (verdict.status, verdict.reason) == ("True", "WaitingForRecords")
