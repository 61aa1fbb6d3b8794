"""Fits that are made again: how soon after those before, and from which records after a roll-back."""

from datetime import timedelta

import pytest

from eldr import contract
from eldr_operator.drift.state import Drift, State
from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import NOW, make_cr, make_fit, make_set
from tests.unit.operator.planned import NIGHTLY, SHOWN, names, plan, situation, utc

pytestmark = pytest.mark.usefixtures("on_the_minute")


@pytest.mark.parametrize(
    ("attempts", "minutes", "expected"),
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
def test_bootstrap_backs_off(attempts, minutes, expected):
    finished = (NOW - timedelta(minutes=minutes)).isoformat()
    fits = [make_fit(name, "Rejected", finished) for name in attempts]
    assert names(plan(make_cr(), fits, Table(), 5000, NOW)) == expected


@pytest.mark.costly
@pytest.mark.parametrize(
    ("limit", "others"),
    [
        *((1, False), (10, False), (100, False)),
        *(pytest.param(limit, True, marks=pytest.mark.costly) for limit in (1, 2)),
    ],
)
def test_pauses_do_not_depend_on_how_many_finished_fits_are_kept(limit, others):
    """Two days in which every first fit is rejected."""
    refit = {"historyLimit": limit} | ({"schedule": "*/20 * * * *"} if others else {})
    now, status, fits, attempts = utc("2026-11-21T00:00"), {}, [], []
    end = now + timedelta(days=2)
    while now < end:
        planned = plan(make_cr({"refit": status}, refit=refit), fits, Table(), 5000, now)
        status = planned.refit
        fits = [fit for fit in fits if fit.name not in planned.delete]
        if made := planned.create:
            finished = make_fit(
                made["metadata"]["name"], "Rejected", (now + timedelta(seconds=30)).isoformat()
            )
            metadata = finished.metadata.model_copy(
                update={"annotations": made["metadata"].get("annotations", {})}
            )
            fits.append(finished.model_copy(update={"metadata": metadata}))
            if "bootstrap" in finished.name:
                attempts.append(now)
        assert len(fits) <= limit + 2
        now += timedelta(minutes=2)
    assert len(attempts) == 14
    assert attempts[-1] - attempts[-2] >= timedelta(hours=6)


def test_attempts_of_before_the_active_set_are_not_counted_and_not_kept():
    since = NOW - timedelta(hours=1)

    def attempt(name, hours, number):
        made = make_fit(name, "Rejected", (NOW - timedelta(hours=hours)).isoformat())
        metadata = made.metadata.model_copy(update={"annotations": {contract.ANNOTATION_ATTEMPT: number}})
        return made.model_copy(update={"metadata": metadata})

    table = Table(epoch=2, active=make_set("a"), activated_at=since)
    before = [attempt("x-scale-k4-8", 5, "8"), attempt("x-scale-k3", 4, "1")]
    cr = make_cr(decode={"replicas": 4}, refit={"historyLimit": 1})
    planned = plan(cr, [*before, make_fit("a")], table, 5000, NOW)
    assert names(planned) == ["x-scale-k4-9"]
    assert planned.create["metadata"]["annotations"] == {contract.ANNOTATION_ATTEMPT: "1"}

    failed = [attempt("x-scale-k4-9", 0.5, "4"), make_fit("person", "Rejected", NOW.isoformat())]
    planned = plan(cr, [*before, make_fit("a"), *failed], table, 5000, NOW)
    assert names(planned) == [], "four attempts: 40 minutes"
    assert set(planned.delete) == {"x-scale-k4-8", "x-scale-k3"}
    later = plan(cr, [*before, make_fit("a"), *failed], table, 5000, NOW + timedelta(minutes=10))
    assert later.create["metadata"]["annotations"] == {contract.ANNOTATION_ATTEMPT: "5"}


@pytest.mark.parametrize("told", ["", "x", "-1", "0", "1e9", "9" * 300, "\u0663", None, 7])
def test_an_attempt_that_tells_no_number_is_one(told):
    made = make_fit("x-bootstrap", "Rejected", (NOW - timedelta(minutes=5)).isoformat())
    metadata = made.metadata.model_copy(update={"annotations": {contract.ANNOTATION_ATTEMPT: told}})
    fits = [made.model_copy(update={"metadata": metadata})]
    assert names(plan(make_cr(), fits, Table(), 5000, NOW)) == ["x-bootstrap-2"]


def test_after_a_roll_back_to_no_set_records_of_what_comes_then_are_waited_for():
    back = utc("2026-11-21T12:00")
    fits = [make_fit("x-bootstrap")]
    table = Table(epoch=2, activated_at=back, reason="RolledBack")

    since = situation(fits, table, drift=State()).regime_since
    assert since == back

    def at(minutes):
        now = back + timedelta(minutes=minutes)
        return plan(make_cr(), fits, table, 10**6, now, blocked=(fits[0].accepted_set.digest,))

    assert names(at(0)) == names(at(4.9)) == []
    planned = at(5)
    assert names(planned) == ["x-bootstrap-2"]
    assert planned.create["spec"]["since"] == "2026-11-21T12:00:00Z"


@pytest.mark.parametrize("reason", ["RolledBack", "AckTimeout", "Pinned"])
def test_after_a_roll_back_to_an_older_set_no_fit_reads_what_the_set_that_failed_was_made_of(reason):
    """A flood of some hours is over: its set is taken back, and a scheduled fit comes soon after."""
    now = utc("2026-11-22T02:00:30")
    back = now - timedelta(minutes=10)
    table = Table(epoch=3, active=make_set("a"), previous=make_set("b"), activated_at=back, reason=reason)
    fits = [make_fit("a", since="2026-11-01T00:00:00Z")]
    state = State(digest="sha256:a", blocked=("sha256:b",))
    since = situation(fits, table, drift=state).regime_since
    assert since == back
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    planned = plan(make_cr(status, refit=NIGHTLY), fits, table, 9000, now, drift=state)
    assert planned.create["spec"]["since"] == "2026-11-22T01:50:30Z"
    changed = now - timedelta(minutes=2)
    moved = state.model_copy(update={"drift": Drift(phase="Detected", changed=changed)})
    assert situation(fits, table, drift=moved).regime_since == changed, "traffic has changed once more"
    kept = State(digest="sha256:a")
    other = Table(epoch=3, active=make_set("a"), previous=make_set("b"), activated_at=back, reason="Accepted")
    assert situation(fits, other, drift=kept).regime_since == fits[0].spec.since


@pytest.mark.costly
@pytest.mark.parametrize("kept", [[], ["x-kept"]])
def test_sets_that_are_rolled_back_to_none_one_after_the_other_are_made_at_growing_intervals(kept):
    begin = utc("2026-11-21T12:00")
    now, fits, blocked, made = begin, [make_fit(name, k=3) for name in kept], [], []
    table = Table(epoch=2, activated_at=begin, reason="RolledBack")
    while now < begin + timedelta(days=2):
        now += timedelta(minutes=1)
        for name in names(plan(make_cr(), fits, table, 5000, now, blocked=blocked)):
            made.append(now)
            finished = make_fit(name, finished=now.isoformat())
            fits.append(finished)
            blocked.append(finished.accepted_set.digest)
            now += timedelta(minutes=6)  # it is active, and on trial
            table = Table(epoch=2, activated_at=now, reason="RolledBack")
    assert 10 < len(made) < 16
    name = fits[-1].name
    assert made[-1] - made[-2] == timedelta(hours=6)
    after = make_fit("x-good", finished=now.isoformat())
    lost = make_fit(f"{name}9", finished=(now + timedelta(minutes=1)).isoformat())
    planned = plan(
        make_cr(),
        [*fits, after, lost],
        Table(epoch=3, activated_at=now + timedelta(minutes=2), reason="RolledBack"),
        5000,
        now + timedelta(minutes=7),
        blocked=[*blocked, lost.accepted_set.digest],
    )
    assert planned.create is not None, "a set that was kept begins anew"


def test_after_a_first_set_that_routers_refuse_there_is_another():
    fits = [make_fit("x-bootstrap", finished=(NOW - timedelta(minutes=4)).isoformat())]
    blocked = ("sha256:x-bootstrap",)
    assert names(plan(make_cr(), fits, Table(), 5000, NOW, blocked=blocked)) == []
    assert names(plan(make_cr(), fits, Table(), 5000, NOW + timedelta(minutes=1), blocked=blocked)) == [
        "x-bootstrap-2"
    ]


def test_after_a_roll_back_to_no_set_older_ones_are_no_reason_to_wait():
    back = utc("2026-11-21T12:00")
    fits = [make_fit("old", finished="2026-11-01T10:00:00Z"), make_fit("x-bootstrap-7")]
    table = Table(epoch=2, activated_at=back, reason="RolledBack")
    planned = plan(
        make_cr(), fits, table, 5000, back + timedelta(minutes=6), blocked=("sha256:x-bootstrap-7",)
    )
    assert names(planned) == ["x-bootstrap-8"]
