from datetime import UTC, datetime, timedelta

import pytest

from eldr_operator.fits.planner import plan
from eldr_operator.locality.routing import Table

NIGHTLY = {"schedule": "0 3 * * *", "timeZone": "Europe/Berlin"}
SHOWN = "0 3 * * * Europe/Berlin"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def names(planned) -> list[str]:
    return [fit["metadata"]["name"] for fit in planned.create]


def test_a_new_schedule_starts_from_now(make_cr):
    planned = plan(
        make_cr(refit=NIGHTLY, created="2025-01-01T00:00:00Z"), [], Table(), 0, utc("2026-11-21T12:00")
    )
    assert names(planned) == []
    assert planned.status == {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}
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
    assert planned.status.get("lastScheduleTime") == served
    assert planned.status["nextScheduleTime"] == following
    if name:
        assert planned.create[0]["spec"] == {"deploymentRef": {"name": "x"}, "trigger": "Schedule"}
        assert planned.create[0]["metadata"]["ownerReferences"][0]["uid"] == "cr"


def test_a_restart_between_creation_and_status_makes_no_second_fit(make_cr, make_fit):
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    fits = [make_fit("x-20261122-0200")]
    planned = plan(make_cr(status, refit=NIGHTLY), fits, Table(), 0, utc("2026-11-22T02:00:05"))
    assert names(planned) == []
    assert planned.status["lastScheduleTime"] == "2026-11-22T02:00:00Z"


def test_a_changed_schedule_forgets_what_was_due(make_cr):
    status = {"refit": {"schedule": "0 1 * * * Etc/UTC", "nextScheduleTime": "2026-11-22T01:00:00Z"}}
    planned = plan(make_cr(status, refit=NIGHTLY), [], Table(), 0, utc("2026-11-22T12:00"))
    assert names(planned) == []
    assert planned.status["nextScheduleTime"] == "2026-11-23T02:00:00Z"


@pytest.mark.parametrize("refit", [NIGHTLY | {"suspend": "Enabled"}, NIGHTLY | {"schedule": "bad"}, {}])
def test_nothing_is_planned_without_a_usable_schedule(make_cr, refit):
    status = {
        "refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z", "lastScheduleTime": "l"}
    }
    planned = plan(make_cr(status, refit=refit), [], Table(), 0, utc("2026-11-25T12:00"))
    assert (names(planned), planned.status, planned.wake_at) == ([], {"lastScheduleTime": "l"}, None)


def test_a_scheduled_fit_is_left_out_while_another_runs(make_cr, make_fit):
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    planned = plan(
        make_cr(status, refit=NIGHTLY), [make_fit("a", "Running")], Table(), 0, utc("2026-11-22T02:00")
    )
    assert names(planned) == []
    assert planned.status["lastScheduleTime"] == "2026-11-22T02:00:00Z"


def test_daylight_saving_in_spring_and_autumn(make_cr):
    """Half past two does not exist on 29 March 2026 in Berlin, and comes twice on 25 October."""

    def year(schedule):
        refit = {"schedule": schedule, "timeZone": "Europe/Berlin"}
        status, served, now = {}, [], utc("2026-03-27T12:00")
        while now < utc("2026-10-27T12:00"):
            planned = plan(make_cr({"refit": status}, refit=refit), [], Table(), 0, now)
            status = planned.status
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
        (1000, None, [("manual", "Accepted")], []),
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
        (["x-bootstrap-9", "x-bootstrap-10"], 359, []),
        (["x-bootstrap-9", "x-bootstrap-10"], 360, ["x-bootstrap-11"]),
        (["x-bootstrap-other"], 1, ["x-bootstrap"]),
    ],
)
def test_bootstrap_backs_off(make_cr, make_fit, now, attempts, minutes, expected):
    finished = (now - timedelta(minutes=minutes)).isoformat()
    fits = [make_fit(name, "Rejected", finished) for name in attempts]
    assert names(plan(make_cr(), fits, Table(), 5000, now)) == expected


def test_scale_fit_for_a_new_number_of_decode_workers(make_cr, make_fit, make_set, now):
    table = Table(epoch=1, active=make_set("a"))
    planned = plan(make_cr(decode={"replicas": 4}), [make_fit("a")], table, 5000, now)
    assert [fit["spec"]["trigger"] for fit in planned.create] == ["Scale"]
    assert names(planned) == ["x-scale-k4"]
    known = [make_fit("a"), make_fit("b", k=4)]
    assert names(plan(make_cr(decode={"replicas": 4}), known, table, 5000, now)) == []
    assert names(plan(make_cr(decode={"replicas": 4}), [make_fit("a")], table, 999, now)) == []


def test_history(make_cr, make_fit, make_set, now):
    fits = [make_fit(f"f{n}", finished=f"2026-11-2{n}T00:00:00Z") for n in range(6)]
    fits.append(make_fit("running", "Running"))
    table = Table(epoch=3, active=make_set("f2"), previous=make_set("f1"), staged=make_set("f3"))
    planned = plan(make_cr(refit={"historyLimit": 1}, centroids={"pin": "f0"}), fits, table, 0, now)
    assert planned.delete == ("f4",)
    assert planned.status == {"lastFit": "f5"}
    assert plan(make_cr(refit={"historyLimit": 6}), fits, Table(), 0, now).delete == ()
    assert plan(make_cr(refit={"historyLimit": 4}), fits, Table(), 0, now).delete == ("f0", "f1")


def test_last_fit_is_remembered(make_cr, now):
    assert plan(make_cr({"refit": {"lastFit": "gone"}}), [], Table(), 0, now).status == {"lastFit": "gone"}
