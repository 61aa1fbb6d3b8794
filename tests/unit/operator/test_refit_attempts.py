"""Fits that are made again: how soon after those before, and from which records after a roll-back."""

from datetime import timedelta

import pytest

from eldr import contract
from eldr_operator.drift.state import Drift, State
from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import NOW, make_cr, make_fit, make_set
from tests.unit.operator.planned import active, names, nightly, plan, situation, utc

pytestmark = pytest.mark.usefixtures("on_the_minute")


def rejected(name, at, number=None):
    """Return a fit that was rejected then, as the so many-th of its kind."""
    made = make_fit(name, "Rejected", at.isoformat())
    annotations = {} if number is None else {contract.ANNOTATION_ATTEMPT: number}
    metadata = made.metadata.model_copy(update={"annotations": annotations})
    return made.model_copy(update={"metadata": metadata})


def rolled_back(at=NOW):
    return Table(epoch=2, activated_at=at, reason="RolledBack")


def minutes(count):
    return timedelta(minutes=count)


@pytest.mark.parametrize(
    ("attempts", "since", "expected"),
    [
        (["x-bootstrap"], 4, []),
        (["x-bootstrap"], 5, ["x-bootstrap-2"]),
        (["x-bootstrap", "x-bootstrap-2"], 9, []),
        (["x-bootstrap", "x-bootstrap-2"], 10, ["x-bootstrap-3"]),
        ([f"x-bootstrap-{n}" for n in range(1, 10)], 359, []),
        ([f"x-bootstrap-{n}" for n in range(1, 10)], 360, ["x-bootstrap-10"]),
        (["x-bootstrap-other"], 1, ["x-bootstrap"]),
    ],
)
def test_bootstrap_backs_off(attempts, since, expected):
    assert names(plan([rejected(name, NOW - minutes(since)) for name in attempts])) == expected


@pytest.mark.costly
@pytest.mark.parametrize(("limit", "others"), [(1, False), (10, False), (100, False), (1, True), (2, True)])
def test_pauses_do_not_depend_on_how_many_finished_fits_are_kept(limit, others):
    """Two days in which every first fit is rejected."""
    refit = {"historyLimit": limit} | ({"schedule": "*/20 * * * *"} if others else {})
    now, status, fits, attempts = utc("2026-11-21T00:00"), {}, [], []
    end = now + timedelta(days=2)
    while now < end:
        planned = plan(fits, cr=make_cr({"refit": status}, refit=refit), now=now)
        status = planned.refit
        fits = [fit for fit in fits if fit.name not in planned.delete]
        for name in names(planned):
            number = planned.create["metadata"].get("annotations", {}).get(contract.ANNOTATION_ATTEMPT)
            fits.append(rejected(name, now + timedelta(seconds=30), number))
            attempts += [now] * ("bootstrap" in name)
        assert len(fits) <= limit + 2
        now += minutes(2)
    assert len(attempts) == 14
    assert attempts[-1] - attempts[-2] >= timedelta(hours=6)


def test_attempts_of_before_the_active_set_are_not_counted_and_not_kept():
    def attempt(name, hours, number):
        return rejected(name, NOW - timedelta(hours=hours), number)

    before = [attempt("x-scale-k4-8", 5, "8"), attempt("x-scale-k3", 4, "1"), make_fit("a")]
    cr = make_cr(decode={"replicas": 4}, refit={"historyLimit": 1})
    planned = plan(before, active("a"), cr)
    assert names(planned) == ["x-scale-k4-9"]
    assert planned.create["metadata"]["annotations"] == {contract.ANNOTATION_ATTEMPT: "1"}

    failed = [attempt("x-scale-k4-9", 0.5, "4"), rejected("person", NOW)]
    planned = plan([*before, *failed], active("a"), cr)
    assert names(planned) == [], "four attempts: 40 minutes"
    assert set(planned.delete) == {"x-scale-k4-8", "x-scale-k3"}
    later = plan([*before, *failed], active("a"), cr, now=NOW + minutes(10))
    assert later.create["metadata"]["annotations"] == {contract.ANNOTATION_ATTEMPT: "5"}


@pytest.mark.parametrize("told", ["", "x", "-1", "0", "1e9", "9" * 300, "\u0663", 7])
def test_an_attempt_that_tells_no_number_is_one(told):
    assert names(plan([rejected("x-bootstrap", NOW - minutes(5), told)])) == ["x-bootstrap-2"]


def test_after_a_roll_back_to_no_set_records_of_what_comes_then_are_waited_for():
    fits = [make_fit("x-bootstrap")]
    assert situation(fits, rolled_back(), drift=State()).regime_since == NOW

    def at(count):
        return plan(
            fits, rolled_back(), now=NOW + minutes(count), samples=10**6, blocked=("sha256:x-bootstrap",)
        )

    assert names(at(0)) == names(at(4.9)) == []
    assert names(at(5)) == ["x-bootstrap-2"]
    assert at(5).create["spec"]["since"] == "2026-11-21T12:00:00Z"


@pytest.mark.parametrize("reason", ["RolledBack", "AckTimeout", "Pinned"])
def test_after_a_roll_back_to_an_older_set_no_fit_reads_what_the_set_that_failed_was_made_of(reason):
    """A flood of some hours is over: its set is taken back, and a scheduled fit comes soon after."""
    now = utc("2026-11-22T02:00:30")
    table = active("a", since=now - minutes(10)).but(previous=make_set("b"), reason=reason)
    fits = [make_fit("a", since="2026-11-01T00:00:00Z")]
    state = State(digest="sha256:a", blocked=("sha256:b",))
    assert situation(fits, table, drift=state).regime_since == table.activated_at
    planned = nightly("2026-11-22T02:00:30", fits, table, drift=state)
    assert planned.create["spec"]["since"] == "2026-11-22T01:50:30Z"
    changed = now - minutes(2)
    moved = state.but(drift=Drift(phase="Detected", changed=changed))
    assert situation(fits, table, drift=moved).regime_since == changed, "traffic has changed once more"
    kept = State(digest="sha256:a")
    found = situation(fits, table.but(reason="Accepted"), drift=kept).regime_since
    assert found == fits[0].spec.since


@pytest.mark.costly
@pytest.mark.parametrize("kept", [[], ["x-kept"]])
def test_sets_that_are_rolled_back_to_none_one_after_the_other_are_made_at_growing_intervals(kept):
    now, table = NOW, rolled_back()
    fits, blocked, made = [make_fit(name, k=3) for name in kept], [], []
    while now < NOW + timedelta(days=2):
        now += minutes(1)
        for name in names(plan(fits, table, now=now, blocked=blocked)):
            made.append(now)
            fits.append(make_fit(name, finished=now.isoformat()))
            blocked.append(f"sha256:{name}")
            now += minutes(6)  # it is active, and on trial
            table = rolled_back(now)
    assert 10 < len(made) < 16
    assert made[-1] - made[-2] == timedelta(hours=6)
    lost = f"{fits[-1].name}9"
    fits += [
        make_fit("x-good", finished=now.isoformat()),
        make_fit(lost, finished=(now + minutes(1)).isoformat()),
    ]
    table = rolled_back(now + minutes(2)).but(epoch=3)
    planned = plan(fits, table, now=now + minutes(7), blocked=[*blocked, f"sha256:{lost}"])
    assert planned.create is not None, "a set that was kept begins anew"


def test_after_a_first_set_that_routers_refuse_there_is_another():
    fits = [make_fit("x-bootstrap", finished=(NOW - minutes(4)).isoformat())]
    blocked = ("sha256:x-bootstrap",)
    assert names(plan(fits, blocked=blocked)) == []
    assert names(plan(fits, blocked=blocked, now=NOW + minutes(1))) == ["x-bootstrap-2"]


def test_after_a_roll_back_to_no_set_older_ones_are_no_reason_to_wait():
    fits = [make_fit("old", finished="2026-11-01T10:00:00Z"), make_fit("x-bootstrap-7")]
    planned = plan(fits, rolled_back(), now=NOW + minutes(6), blocked=("sha256:x-bootstrap-7",))
    assert names(planned) == ["x-bootstrap-8"]
