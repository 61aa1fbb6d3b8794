from datetime import timedelta

import pytest

from eldr_operator.drift.next_fit import FitOrder
from eldr_operator.fits.candidates import candidates
from eldr_operator.fits.planner import STABLE
from eldr_operator.locality.memory import Memory
from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import NOW, make_cr, make_fit, make_set
from tests.unit.operator.planned import NIGHTLY, SHOWN, names, plan, utc

pytestmark = pytest.mark.usefixtures("on_the_minute")


def test_a_new_schedule_starts_from_now():
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
def test_due_minutes(now, name, served, following):
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    planned = plan(make_cr(status, refit=NIGHTLY), [], Table(), 0, utc(now))
    assert names(planned) == ([name] if name else [])
    assert planned.refit.get("lastScheduleTime") == served
    assert planned.refit["nextScheduleTime"] == following
    if name:
        assert planned.create["spec"] == {"deploymentRef": {"name": "x"}, "trigger": "Schedule"}
        assert planned.create["metadata"]["ownerReferences"][0]["uid"] == "cr"


def test_a_restart_between_creation_and_status_makes_no_second_fit():
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    fits = [make_fit("x-20261122-0200")]
    planned = plan(make_cr(status, refit=NIGHTLY), fits, Table(), 0, utc("2026-11-22T02:00:05"))
    assert names(planned) == []
    assert planned.refit["lastScheduleTime"] == "2026-11-22T02:00:00Z"


def test_a_changed_schedule_forgets_what_was_due():
    status = {"refit": {"schedule": "0 1 * * * Etc/UTC", "nextScheduleTime": "2026-11-22T01:00:00Z"}}
    planned = plan(make_cr(status, refit=NIGHTLY), [], Table(), 0, utc("2026-11-22T12:00"))
    assert names(planned) == []
    assert planned.refit["nextScheduleTime"] == "2026-11-23T02:00:00Z"


@pytest.mark.parametrize("refit", [NIGHTLY | {"suspend": "Enabled"}, NIGHTLY | {"schedule": "bad"}, {}])
def test_nothing_is_planned_without_a_usable_schedule(refit):
    status = {
        "refit": {
            "schedule": SHOWN,
            "nextScheduleTime": "2026-11-22T02:00:00Z",
            "lastScheduleTime": "2026-11-21T02:00:00Z",
        }
    }
    planned = plan(make_cr(status, refit=refit), [], Table(), 0, utc("2026-11-25T12:00"))
    assert (names(planned), planned.refit, planned.wake_at) == (
        [],
        {"lastScheduleTime": "2026-11-21T02:00:00Z"},
        None,
    )


def test_a_scheduled_fit_is_left_out_while_another_runs():
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    planned = plan(
        make_cr(status, refit=NIGHTLY), [make_fit("a", "Running")], Table(), 0, utc("2026-11-22T02:00")
    )
    assert names(planned) == []
    assert planned.refit["lastScheduleTime"] == "2026-11-22T02:00:00Z"


def test_daylight_saving_in_spring_and_autumn():
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
def test_bootstrap(samples, active, fits, expected):
    table = Table(epoch=1, active=make_set(active)) if active else Table()
    planned = plan(make_cr(), [make_fit(*fit) for fit in fits], table, samples, NOW)
    assert names(planned) == expected
    assert names(plan(make_cr(refit={"suspend": "Enabled"}), [], table, samples, NOW)) == []


def test_scale_fit_for_a_new_number_of_decode_workers():
    table = Table(epoch=1, active=make_set("a"))
    planned = plan(make_cr(decode={"replicas": 4}), [make_fit("a")], table, 5000, NOW)
    assert planned.create["spec"]["trigger"] == "Scale"
    assert names(planned) == ["x-scale-k4"]
    known = [make_fit("a"), make_fit("b", k=4, finished="2026-11-21T10:30:00Z")]
    assert names(plan(make_cr(decode={"replicas": 4}), known, table, 5000, NOW)) == []
    assert names(plan(make_cr(decode={"replicas": 4}), [make_fit("a")], table, 999, NOW)) == []


def test_a_scale_fit_waits_until_replicas_have_not_changed_for_half_an_hour():
    """An autoscaler that goes from 2 to 6 and back would get a Job for each step."""
    table, cr = Table(epoch=1, active=make_set("a")), make_cr(decode={"replicas": 4})
    memory, made = Memory(), []
    for minute, replicas in enumerate([*(3, 4, 5, 6, 5, 4) * 20, *[4] * 40]):
        at = NOW + timedelta(minutes=minute)
        memory = memory.with_replicas(replicas, at)
        cr = make_cr(decode={"replicas": replicas})
        planned = plan(cr, [make_fit("a")], table, 5000, at, since=memory.replicas_since)
        made += [(minute, name) for name in names(planned)]
        assert made or planned.wake_at == memory.replicas_since + STABLE
    assert made[0] == (119 + 30, "x-scale-k4")
    assert {name for _, name in made} == {"x-scale-k4"}


def test_replicas_that_have_not_changed_ahead_of_now_have_not_changed_since_now():
    ahead = Memory(replicas=2, replicas_since=NOW + timedelta(days=1))
    assert ahead.with_replicas(2, NOW).replicas_since == NOW
    assert Memory().with_replicas(2, NOW).replicas_since == NOW
    later = NOW + timedelta(minutes=1)
    assert Memory().with_replicas(2, NOW).with_replicas(2, later).replicas_since == NOW


def test_a_set_older_than_the_active_one_does_not_spare_a_fit():
    """Scaled from 2 to 3 and back: the traffic of then may not be that of now."""
    table = Table(epoch=2, active=make_set("x-scale-k3", 3), activated_at=NOW - timedelta(minutes=1))
    fits = [
        make_fit("x-scale-k2", finished="2026-11-21T09:00:00Z"),
        make_fit("x-scale-k3", finished="2026-11-21T11:00:00Z", k=3),
    ]
    planned = plan(make_cr(), fits, table, 5000, NOW)
    assert names(planned) == ["x-scale-k2-2"], "at once: what was tried before is no reason to wait"
    failed = make_fit("x-scale-k2-2", "Rejected", (NOW - timedelta(seconds=30)).isoformat())
    assert names(plan(make_cr(), [*fits, failed], table, 5000, NOW)) == []
    later = NOW + timedelta(minutes=5)
    assert names(plan(make_cr(), [*fits, failed], table, 5000, later)) == ["x-scale-k2-3"]


def test_a_set_that_a_router_cannot_load_is_made_anew():
    table = Table(epoch=1, active=make_set("a"), activated_at=NOW - timedelta(hours=1))
    planned = plan(make_cr(), [make_fit("a")], table, 5000, NOW, refused="sha256:a")
    assert (names(planned), planned.create["spec"]["trigger"]) == (["x-repair"], "Repair")
    assert names(plan(make_cr(), [make_fit("a")], table, 5000, NOW)) == []


def test_a_set_that_is_the_active_one_once_more_is_not_waited_for():
    table = Table(epoch=1, active=make_set("a"), activated_at=NOW - timedelta(hours=1))
    again = make_fit("b", finished="2026-11-21T11:30:00Z")
    fits = [make_fit("a"), again.model_copy(update={"status": again.status | {"digest": "sha256:a"}})]
    assert names(plan(make_cr(), fits, table, 5000, NOW, refused="sha256:a")) == ["x-repair"]


def test_names_of_other_deployments_are_gone_round():
    assert names(plan(make_cr(), [], Table(), 5000, NOW, taken={"x-bootstrap"})) == ["x-bootstrap-2"]
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    cr, due = make_cr(status, refit=NIGHTLY), utc("2026-11-22T02:00:05")
    planned = plan(cr, [], Table(), 0, due, taken={"x-20261122-0200"})
    assert names(planned) == ["x-20261122-0200-2"]
    assert names(plan(cr, [make_fit("x-20261122-0200-2")], Table(), 0, due)) == [], "it was made already"


def test_drift_orders_a_fit_of_the_records_since_the_change():
    table = Table(epoch=1, active=make_set("a"), activated_at=NOW - timedelta(hours=9))
    order = FitOrder(number=2, since=NOW - timedelta(hours=1))
    planned = plan(make_cr(), [make_fit("a")], table, 0, NOW, order=order)
    assert names(planned) == ["x-drift-2"]
    assert planned.create["spec"] == {
        "deploymentRef": {"name": "x"},
        "trigger": "Drift",
        "since": "2026-11-21T11:00:00Z",
    }
    assert names(plan(make_cr(), [make_fit("a")], table, 0, NOW, order=order, taken={"x-drift-2"})) == [
        "x-drift-3"
    ]
    assert names(plan(make_cr(), [make_fit("b", "Running")], table, 0, NOW, order=order)) == []
    unchanged = FitOrder(number=2, since=None)
    assert "since" not in plan(make_cr(), [], table, 0, NOW, order=unchanged).create["spec"]
    known = plan(make_cr(), [], table, 0, NOW, order=unchanged, changed=NOW - timedelta(hours=8))
    assert known.create["spec"]["since"] == "2026-11-21T04:00:00Z"
    assert names(plan(make_cr(refit={"suspend": "Enabled"}), [], table, 0, NOW, order=order)) == []


def test_no_automatic_fit_looks_back_into_an_earlier_regime():
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    since = utc("2026-11-21T20:00")
    planned = plan(make_cr(status, refit=NIGHTLY), [], Table(), 0, utc("2026-11-22T02:00:05"), changed=since)
    assert planned.create["spec"]["since"] == "2026-11-21T20:00:00Z"
    table = Table(epoch=1, active=make_set("a"), activated_at=NOW - timedelta(hours=9))
    planned = plan(make_cr(decode={"replicas": 3}), [], table, 5000, NOW, changed=since)
    assert planned.create["spec"]["since"] == "2026-11-21T20:00:00Z"


def test_sets_of_another_model_or_out_of_service_do_not_count():
    other = make_fit("a")
    other = other.model_copy(update={"status": other.status | {"model": "another"}})
    assert candidates(make_cr(), [other], Table()) == []
    assert names(plan(make_cr(), [other], Table(), 5000, NOW)) == ["x-bootstrap"]
    assert candidates(make_cr(), [make_fit("a")], Table(), {"sha256:a"}) == []
    assert [fit.name for fit in candidates(make_cr(), [make_fit("b"), make_fit("a")], Table())] == ["a", "b"]


def test_history():
    fits = [make_fit(f"f{n}", finished=f"2026-11-2{n}T00:00:00Z") for n in range(6)]
    fits.append(make_fit("running", "Running"))
    table = Table(epoch=3, active=make_set("f2"), previous=make_set("f1"), staged=make_set("f3"))
    planned = plan(make_cr(refit={"historyLimit": 1}, centroids={"pin": "f0"}), fits, table, 0, NOW)
    assert planned.delete == ("f4",)
    assert planned.refit == {"lastFit": "f5"}
    assert plan(make_cr(refit={"historyLimit": 6}), fits, Table(), 0, NOW).delete == ()
    assert plan(make_cr(refit={"historyLimit": 4}), fits, Table(), 0, NOW).delete == ("f0", "f1")


def test_fits_that_people_made_stay_and_do_not_count():
    """One that is kept in Git would be made again, and run again, for ever."""
    fits = [make_fit(f"f{n}", finished=f"2026-11-2{n}T00:00:00Z", automatic=n % 2 == 0) for n in range(6)]
    assert plan(make_cr(refit={"historyLimit": 2}), fits, Table(), 0, NOW).delete == ("f0",)


def test_last_fit_is_remembered():
    assert plan(make_cr({"refit": {"lastFit": "gone"}}), [], Table(), 0, NOW).refit == {"lastFit": "gone"}
