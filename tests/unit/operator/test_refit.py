from datetime import UTC, datetime, timedelta

import pytest

from eldr import contract
from eldr_operator.drift.decide import FitOrder
from eldr_operator.drift.state import Drift, State
from eldr_operator.fits.candidates import candidates
from eldr_operator.fits.planner import Situation, regime_since
from eldr_operator.fits.planner import plan as plan_at
from eldr_operator.locality.routing import Table

NIGHTLY = {"schedule": "0 3 * * *", "timeZone": "Europe/Berlin"}
SHOWN = "0 3 * * * Europe/Berlin"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def plan(cr, fits, table, samples, now, **more):
    """Plan after a pass that left what the status shows."""
    before = cr.status.get("refit", {})
    return plan_at(cr, Situation(fits=fits, table=table, samples=samples, before=before, **more), now)


def names(planned) -> list[str]:
    return [fit["metadata"]["name"] for fit in planned.create]


def test_a_new_schedule_starts_from_now(make_cr):
    planned = plan(
        make_cr(refit=NIGHTLY, created="2025-01-01T00:00:00Z"), [], Table(), 0, utc("2026-11-21T12:00")
    )
    assert names(planned) == []
    assert planned.refit == {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}
    assert planned.wake_at == utc("2026-11-22T02:00")


@pytest.mark.parametrize(
    ("now", "name", "served", "following"),
    [
        ("2026-11-22T01:59:59", None, None, "2026-11-22T02:00:00Z"),
        ("2026-11-22T02:00:00", "x-20261122-0200", "2026-11-22T02:00:00Z", "2026-11-23T02:00:00Z"),
        ("2026-11-22T02:00:30", "x-20261122-0200", "2026-11-22T02:00:00Z", "2026-11-23T02:00:00Z"),
        ("2026-11-25T14:00:00", "x-20261125-0200", "2026-11-25T02:00:00Z", "2026-11-26T02:00:00Z"),
    ],
    ids=["not yet", "to the second", "a little late", "three missed: only the latest"],
)
def test_due_minutes(make_cr, now, name, served, following):
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    planned = plan(make_cr(status, refit=NIGHTLY), [], Table(), 0, utc(now))
    assert names(planned) == ([name] if name else [])
    assert planned.refit.get("lastScheduleTime") == served
    assert planned.refit["nextScheduleTime"] == following
    if name:
        assert planned.create[0]["spec"] == {"deploymentRef": {"name": "x"}, "trigger": "Schedule"}
        assert planned.create[0]["metadata"]["ownerReferences"][0]["uid"] == "cr"


def test_a_restart_between_creation_and_status_makes_no_second_fit(make_cr, make_fit):
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    fits = [make_fit("x-20261122-0200")]
    planned = plan(make_cr(status, refit=NIGHTLY), fits, Table(), 0, utc("2026-11-22T02:00:05"))
    assert names(planned) == []
    assert planned.refit["lastScheduleTime"] == "2026-11-22T02:00:00Z"


def test_a_changed_schedule_forgets_what_was_due(make_cr):
    status = {"refit": {"schedule": "0 1 * * * Etc/UTC", "nextScheduleTime": "2026-11-22T01:00:00Z"}}
    planned = plan(make_cr(status, refit=NIGHTLY), [], Table(), 0, utc("2026-11-22T12:00"))
    assert names(planned) == []
    assert planned.refit["nextScheduleTime"] == "2026-11-23T02:00:00Z"


@pytest.mark.parametrize("refit", [NIGHTLY | {"suspend": "Enabled"}, NIGHTLY | {"schedule": "bad"}, {}])
def test_nothing_is_planned_without_a_usable_schedule(make_cr, refit):
    status = {
        "refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z", "lastScheduleTime": "l"}
    }
    planned = plan(make_cr(status, refit=refit), [], Table(), 0, utc("2026-11-25T12:00"))
    assert (names(planned), planned.refit, planned.wake_at) == ([], {"lastScheduleTime": "l"}, None)


def test_a_scheduled_fit_is_left_out_while_another_runs(make_cr, make_fit):
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    planned = plan(
        make_cr(status, refit=NIGHTLY), [make_fit("a", "Running")], Table(), 0, utc("2026-11-22T02:00")
    )
    assert names(planned) == []
    assert planned.refit["lastScheduleTime"] == "2026-11-22T02:00:00Z"


def test_daylight_saving_in_spring_and_autumn(make_cr):
    """Half past two does not exist on 29 March 2026 in Berlin, and comes twice on 25 October."""

    def year(schedule):
        refit = {"schedule": schedule, "timeZone": "Europe/Berlin"}
        status, served, now = {}, [], utc("2026-03-27T12:00")
        while now < utc("2026-10-27T12:00"):
            planned = plan(make_cr({"refit": status}, refit=refit), [], Table(), 0, now)
            status = planned.refit
            served += names(planned)
            now = planned.wake_at
        return served

    served = year("30 2 * * *")
    days = [name[2:10] for name in served]
    assert len(days) == len(set(days)), "never twice on one day"
    assert [name for name in served if name.startswith("x-202603")][1] in {
        "x-20260329-0100",
        "x-20260329-0130",
    }
    assert sum(name.startswith("x-20261025") for name in served) == 1
    assert len(days) == (utc("2026-10-27") - utc("2026-03-28")).days + 1


@pytest.mark.parametrize(
    ("samples", "active", "fits", "expected"),
    [
        (999, None, [], []),
        (1000, None, [], ["x-bootstrap"]),
        (1000, "a", [], []),
        (1000, None, [("manual", "Accepted")], []),  # it is about to be activated
        (1000, None, [("manual", "Accepted", "2026-11-21T10:00:00Z", 3)], ["x-scale-k2"]),
        (1000, None, [("manual", "Running")], []),
        (1000, None, [("manual", "Failed")], ["x-bootstrap"]),
    ],
)
def test_bootstrap(make_cr, make_fit, make_set, now, samples, active, fits, expected):
    table = Table(epoch=1, active=make_set(active)) if active else Table()
    planned = plan(make_cr(), [make_fit(*fit) for fit in fits], table, samples, now)
    assert names(planned) == expected
    assert names(plan(make_cr(refit={"suspend": "Enabled"}), [], table, samples, now)) == []


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
def test_bootstrap_backs_off(make_cr, make_fit, now, attempts, minutes, expected):
    finished = (now - timedelta(minutes=minutes)).isoformat()
    fits = [make_fit(name, "Rejected", finished) for name in attempts]
    assert names(plan(make_cr(), fits, Table(), 5000, now)) == expected


@pytest.mark.parametrize(("limit", "others"), [(1, False), (2, True), (1, True), (10, False), (100, False)])
def test_pauses_do_not_depend_on_how_many_finished_fits_are_kept(make_cr, make_fit, limit, others):
    """Two days in which every first fit is rejected."""
    refit = {"historyLimit": limit} | ({"schedule": "*/20 * * * *"} if others else {})
    now, status, fits, attempts = utc("2026-11-21T00:00"), {}, [], []
    end = now + timedelta(days=2)
    while now < end:
        planned = plan(make_cr({"refit": status}, refit=refit), fits, Table(), 5000, now)
        status = planned.refit
        fits = [fit for fit in fits if fit.name not in planned.delete]
        for made in planned.create:
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


def test_attempts_of_before_the_active_set_are_not_counted_and_not_kept(make_cr, make_fit, make_set, now):
    since = now - timedelta(hours=1)

    def attempt(name, hours, number):
        made = make_fit(name, "Rejected", (now - timedelta(hours=hours)).isoformat())
        metadata = made.metadata.model_copy(update={"annotations": {contract.ANNOTATION_ATTEMPT: number}})
        return made.model_copy(update={"metadata": metadata})

    table = Table(epoch=2, active=make_set("a"), activated_at=since)
    before = [attempt("x-scale-k4-8", 5, "8"), attempt("x-scale-k3", 4, "1")]
    cr = make_cr(decode={"replicas": 4}, refit={"historyLimit": 1})
    planned = plan(cr, [*before, make_fit("a")], table, 5000, now)
    assert names(planned) == ["x-scale-k4-9"]
    assert planned.create[0]["metadata"]["annotations"] == {contract.ANNOTATION_ATTEMPT: "1"}

    failed = [attempt("x-scale-k4-9", 0.5, "4"), make_fit("person", "Rejected", now.isoformat())]
    planned = plan(cr, [*before, make_fit("a"), *failed], table, 5000, now)
    assert names(planned) == [], "four attempts: 40 minutes"
    assert set(planned.delete) == {"x-scale-k4-8", "x-scale-k3"}
    later = plan(cr, [*before, make_fit("a"), *failed], table, 5000, now + timedelta(minutes=10))
    assert later.create[0]["metadata"]["annotations"] == {contract.ANNOTATION_ATTEMPT: "5"}


@pytest.mark.parametrize("told", ["", "x", "-1", "0", "1e9", "9" * 300, "\u0663", None, 7])
def test_an_attempt_that_tells_no_number_is_one(make_cr, make_fit, now, told):
    made = make_fit("x-bootstrap", "Rejected", (now - timedelta(minutes=5)).isoformat())
    metadata = made.metadata.model_copy(update={"annotations": {contract.ANNOTATION_ATTEMPT: told}})
    fits = [made.model_copy(update={"metadata": metadata})]
    assert names(plan(make_cr(), fits, Table(), 5000, now)) == ["x-bootstrap-2"]


def test_scale_fit_for_a_new_number_of_decode_workers(make_cr, make_fit, make_set, now):
    table = Table(epoch=1, active=make_set("a"))
    planned = plan(make_cr(decode={"replicas": 4}), [make_fit("a")], table, 5000, now)
    assert [fit["spec"]["trigger"] for fit in planned.create] == ["Scale"]
    assert names(planned) == ["x-scale-k4"]
    known = [make_fit("a"), make_fit("b", k=4, finished="2026-11-21T10:30:00Z")]
    assert names(plan(make_cr(decode={"replicas": 4}), known, table, 5000, now)) == []
    assert names(plan(make_cr(decode={"replicas": 4}), [make_fit("a")], table, 999, now)) == []


def test_a_set_older_than_the_active_one_does_not_spare_a_fit(make_cr, make_fit, make_set, now):
    """Scaled from 2 to 3 and back: the traffic of then may not be that of now."""
    table = Table(epoch=2, active=make_set("x-scale-k3", 3), activated_at=now - timedelta(minutes=1))
    fits = [
        make_fit("x-scale-k2", finished="2026-11-21T09:00:00Z"),
        make_fit("x-scale-k3", finished="2026-11-21T11:00:00Z", k=3),
    ]
    planned = plan(make_cr(), fits, table, 5000, now)
    assert names(planned) == ["x-scale-k2-2"], "at once: what was tried before is no reason to wait"
    failed = make_fit("x-scale-k2-2", "Rejected", (now - timedelta(seconds=30)).isoformat())
    assert names(plan(make_cr(), [*fits, failed], table, 5000, now)) == []
    later = now + timedelta(minutes=5)
    assert names(plan(make_cr(), [*fits, failed], table, 5000, later)) == ["x-scale-k2-3"]


def test_a_set_that_a_router_cannot_load_is_made_anew(make_cr, make_fit, make_set, now):
    table = Table(epoch=1, active=make_set("a"), activated_at=now - timedelta(hours=1))
    planned = plan(make_cr(), [make_fit("a")], table, 5000, now, is_refused=True)
    assert (names(planned), planned.create[0]["spec"]["trigger"]) == (["x-repair"], "Repair")
    assert names(plan(make_cr(), [make_fit("a")], table, 5000, now)) == []


def test_a_set_that_is_the_active_one_once_more_is_not_waited_for(make_cr, make_fit, make_set, now):
    table = Table(epoch=1, active=make_set("a"), activated_at=now - timedelta(hours=1))
    again = make_fit("b", finished="2026-11-21T11:30:00Z")
    fits = [make_fit("a"), again.model_copy(update={"status": again.status | {"digest": "sha256:a"}})]
    assert names(plan(make_cr(), fits, table, 5000, now, is_refused=True)) == ["x-repair"]


def test_names_of_other_deployments_are_gone_round(make_cr, make_fit, make_set, now):
    assert names(plan(make_cr(), [], Table(), 5000, now, taken={"x-bootstrap"})) == ["x-bootstrap-2"]
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    cr, due = make_cr(status, refit=NIGHTLY), utc("2026-11-22T02:00:05")
    planned = plan(cr, [], Table(), 0, due, taken={"x-20261122-0200"})
    assert names(planned) == ["x-20261122-0200-2"]
    assert names(plan(cr, [make_fit("x-20261122-0200-2")], Table(), 0, due)) == [], "it was made already"


def test_drift_orders_a_fit_of_the_records_since_the_change(make_cr, make_fit, make_set, now):
    table = Table(epoch=1, active=make_set("a"), activated_at=now - timedelta(hours=9))
    order = FitOrder(number=2, since=now - timedelta(hours=1))
    planned = plan(make_cr(), [make_fit("a")], table, 0, now, order=order)
    assert names(planned) == ["x-drift-2"]
    assert planned.create[0]["spec"] == {
        "deploymentRef": {"name": "x"},
        "trigger": "Drift",
        "since": "2026-11-21T11:00:00Z",
    }
    assert names(plan(make_cr(), [make_fit("a")], table, 0, now, order=order, taken={"x-drift-2"})) == [
        "x-drift-3"
    ]
    assert names(plan(make_cr(), [make_fit("b", "Running")], table, 0, now, order=order)) == []
    unchanged = FitOrder(number=2, since=None)
    assert "since" not in plan(make_cr(), [], table, 0, now, order=unchanged).create[0]["spec"]
    known = plan(make_cr(), [], table, 0, now, order=unchanged, regime_since=now - timedelta(hours=8))
    assert known.create[0]["spec"]["since"] == "2026-11-21T04:00:00Z"
    assert names(plan(make_cr(refit={"suspend": "Enabled"}), [], table, 0, now, order=order)) == []


def test_no_automatic_fit_looks_back_into_an_earlier_regime(make_cr, make_set, now):
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    since = utc("2026-11-21T20:00")
    planned = plan(
        make_cr(status, refit=NIGHTLY), [], Table(), 0, utc("2026-11-22T02:00:05"), regime_since=since
    )
    assert planned.create[0]["spec"]["since"] == "2026-11-21T20:00:00Z"
    table = Table(epoch=1, active=make_set("a"), activated_at=now - timedelta(hours=9))
    planned = plan(make_cr(decode={"replicas": 3}), [], table, 5000, now, regime_since=since)
    assert planned.create[0]["spec"]["since"] == "2026-11-21T20:00:00Z"


def test_sets_of_another_model_or_out_of_service_do_not_count(make_cr, make_fit, make_set, now):
    other = make_fit("a")
    other = other.model_copy(update={"status": other.status | {"model": "another"}})
    assert candidates(make_cr(), [other], Table()) == []
    assert names(plan(make_cr(), [other], Table(), 5000, now)) == ["x-bootstrap"]
    assert candidates(make_cr(), [make_fit("a")], Table(), {"sha256:a"}) == []
    assert [fit.name for fit in candidates(make_cr(), [make_fit("b"), make_fit("a")], Table())] == ["a", "b"]


def test_history(make_cr, make_fit, make_set, now):
    fits = [make_fit(f"f{n}", finished=f"2026-11-2{n}T00:00:00Z") for n in range(6)]
    fits.append(make_fit("running", "Running"))
    table = Table(epoch=3, active=make_set("f2"), previous=make_set("f1"), staged=make_set("f3"))
    planned = plan(make_cr(refit={"historyLimit": 1}, centroids={"pin": "f0"}), fits, table, 0, now)
    assert planned.delete == ("f4",)
    assert planned.refit == {"lastFit": "f5"}
    assert plan(make_cr(refit={"historyLimit": 6}), fits, Table(), 0, now).delete == ()
    assert plan(make_cr(refit={"historyLimit": 4}), fits, Table(), 0, now).delete == ("f0", "f1")


def test_last_fit_is_remembered(make_cr, now):
    assert plan(make_cr({"refit": {"lastFit": "gone"}}), [], Table(), 0, now).refit == {"lastFit": "gone"}


def test_after_a_roll_back_to_no_set_records_of_what_comes_then_are_waited_for(make_cr, make_fit):
    back = utc("2026-11-21T12:00")
    fits = [make_fit("x-bootstrap")]
    table = Table(epoch=2, activated_at=back, reason="RolledBack")

    since = regime_since(fits, table, State())
    assert since == back

    def at(minutes):
        now = back + timedelta(minutes=minutes)
        more = {"regime_since": since, "barred": (fits[0].accepted_set.digest,)}
        return plan(make_cr(), fits, table, 10**6, now, **more)

    assert names(at(0)) == names(at(4.9)) == []
    planned = at(5)
    assert names(planned) == ["x-bootstrap-2"]
    assert planned.create[0]["spec"]["since"] == "2026-11-21T12:00:00Z"


@pytest.mark.parametrize("reason", ["RolledBack", "AckTimeout", "Pinned"])
def test_after_a_roll_back_to_an_older_set_no_fit_reads_what_the_set_that_failed_was_made_of(
    make_cr, make_fit, make_set, reason
):
    """A flood of some hours is over: its set is taken back, and a scheduled fit comes soon after."""
    now = utc("2026-11-22T02:00:30")
    back = now - timedelta(minutes=10)
    table = Table(epoch=3, active=make_set("a"), previous=make_set("b"), activated_at=back, reason=reason)
    fits = [make_fit("a", since="2026-11-01T00:00:00Z")]
    state = State(digest="sha256:a", barred=("sha256:b",))
    since = regime_since(fits, table, state)
    assert since == back
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    planned = plan(make_cr(status, refit=NIGHTLY), fits, table, 9000, now, regime_since=since)
    assert planned.create[0]["spec"]["since"] == "2026-11-22T01:50:30Z"
    changed = now - timedelta(minutes=2)
    moved = state.model_copy(update={"drift": Drift(phase="Detected", changed=changed)})
    assert regime_since(fits, table, moved) == changed, "traffic has changed once more"
    kept = State(digest="sha256:a")
    other = Table(epoch=3, active=make_set("a"), previous=make_set("b"), activated_at=back, reason="Accepted")
    assert regime_since(fits, other, kept) == fits[0].spec.since


@pytest.mark.parametrize("kept", [[], ["x-kept"]])
def test_sets_that_are_rolled_back_to_none_one_after_the_other_are_made_at_growing_intervals(
    make_cr, make_fit, kept
):
    begin = utc("2026-11-21T12:00")
    now, fits, barred, made = begin, [make_fit(name, k=3) for name in kept], [], []
    table = Table(epoch=2, activated_at=begin, reason="RolledBack")
    while now < begin + timedelta(days=2):
        now += timedelta(minutes=1)
        for name in names(plan(make_cr(), fits, table, 5000, now, barred=barred)):
            made.append(now)
            finished = make_fit(name, finished=now.isoformat())
            fits.append(finished)
            barred.append(finished.accepted_set.digest)
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
        barred=[*barred, lost.accepted_set.digest],
    )
    assert len(planned.create) == 1, "a set that was kept begins anew"


def test_after_a_first_set_that_routers_refuse_there_is_another(make_cr, make_fit, now):
    fits = [make_fit("x-bootstrap", finished=(now - timedelta(minutes=4)).isoformat())]
    barred = ("sha256:x-bootstrap",)
    assert names(plan(make_cr(), fits, Table(), 5000, now, barred=barred)) == []
    assert names(plan(make_cr(), fits, Table(), 5000, now + timedelta(minutes=1), barred=barred)) == [
        "x-bootstrap-2"
    ]


def test_after_a_roll_back_to_no_set_older_ones_are_no_reason_to_wait(make_cr, make_fit):
    back = utc("2026-11-21T12:00")
    fits = [make_fit("old", finished="2026-11-01T10:00:00Z"), make_fit("x-bootstrap-7")]
    table = Table(epoch=2, activated_at=back, reason="RolledBack")
    planned = plan(
        make_cr(), fits, table, 5000, back + timedelta(minutes=6), barred=("sha256:x-bootstrap-7",)
    )
    assert names(planned) == ["x-bootstrap-8"]
