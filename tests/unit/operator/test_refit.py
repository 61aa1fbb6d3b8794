"""Which fits are made when, how soon again, and from which records."""

from datetime import timedelta

import pytest

from eldr import contract
from eldr_operator.drift.next_fit import FitOrder
from eldr_operator.drift.state import Drift, State
from eldr_operator.fits.candidates import candidates
from eldr_operator.fits.planner import STABLE
from eldr_operator.locality.memory import Memory
from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import NOW, make_cr, make_fit, make_set
from tests.unit.operator.planned import DUE, NIGHTLY, SHOWN, active, names, nightly, plan, situation, utc

pytestmark = pytest.mark.usefixtures("on_the_minute")
SUSPENDED = {"suspend": "Enabled"}


def test_a_new_schedule_starts_from_now():
    planned = plan(cr=make_cr(refit=NIGHTLY, created="2025-01-01T00:00:00Z"), samples=0)
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
    planned = nightly(now)
    assert names(planned) == ([name] if name else [])
    assert planned.refit.get("lastScheduleTime") == served
    assert planned.refit["nextScheduleTime"] == following
    if name:
        assert planned.create["spec"] == {"deploymentRef": {"name": "x"}, "trigger": "Schedule"}
        assert planned.create["metadata"]["ownerReferences"][0]["uid"] == "cr"


@pytest.mark.parametrize(
    "fit",
    [make_fit("x-20261122-0200"), make_fit("a", "Running")],
    ids=["a restart between creation and status", "another one runs"],
)
def test_a_minute_for_which_no_fit_is_made_is_over(fit):
    planned = nightly("2026-11-22T02:00:05", [fit])
    assert names(planned) == []
    assert planned.refit["lastScheduleTime"] == "2026-11-22T02:00:00Z"


def test_a_changed_schedule_forgets_what_was_due():
    status = {"refit": {"schedule": "0 1 * * * Etc/UTC", "nextScheduleTime": "2026-11-22T01:00:00Z"}}
    planned = plan(cr=make_cr(status, refit=NIGHTLY), samples=0, now=utc("2026-11-22T12:00"))
    assert names(planned) == []
    assert planned.refit["nextScheduleTime"] == "2026-11-23T02:00:00Z"


@pytest.mark.parametrize("refit", [NIGHTLY | SUSPENDED, NIGHTLY | {"schedule": "bad"}, {}])
def test_nothing_is_planned_without_a_usable_schedule(refit):
    last = {"lastScheduleTime": "2026-11-21T02:00:00Z"}
    cr = make_cr({"refit": DUE["refit"] | last}, refit=refit)
    planned = plan(cr=cr, samples=0, now=utc("2026-11-25T12:00"))
    assert (names(planned), planned.refit, planned.wake_at) == ([], last, None)


@pytest.mark.parametrize(
    ("samples", "serves", "fits", "expected"),
    [
        (999, False, [], []),
        (1000, False, [], ["x-bootstrap"]),
        (1000, True, [], []),
        (1000, False, [("manual", "Accepted")], []),  # it is about to be activated
        (1000, False, [("manual", "Accepted", "2026-11-21T10:00:00Z", 3)], ["x-scale-k2"]),
        (1000, False, [("manual", "Failed")], ["x-bootstrap"]),
    ],
)
def test_bootstrap(samples, serves, fits, expected):
    table = active("a") if serves else Table()
    assert names(plan([make_fit(*fit) for fit in fits], table, samples=samples)) == expected
    assert names(plan([], table, make_cr(refit=SUSPENDED), samples=samples)) == []


def test_scale_fit_for_a_new_number_of_decode_workers():
    scaled = make_cr(decode={"replicas": 4})
    planned = plan([make_fit("a")], active("a"), scaled)
    assert (planned.create["spec"]["trigger"], names(planned)) == ("Scale", ["x-scale-k4"])
    known = [make_fit("a"), make_fit("b", k=4, finished="2026-11-21T11:30:00Z")]
    assert names(plan(known, active("a"), scaled)) == []
    assert names(plan([make_fit("a")], active("a"), scaled, samples=999)) == []


def test_a_scale_fit_waits_until_replicas_have_not_changed_for_half_an_hour():
    """An autoscaler that goes from 2 to 6 and back would get a Job for each step."""
    memory, made = Memory(), []
    for minute, replicas in enumerate([*(3, 4, 5, 6, 5, 4) * 20, *[4] * 40]):
        at = NOW + timedelta(minutes=minute)
        memory = memory.with_replicas(replicas, at)
        cr, since = make_cr(decode={"replicas": replicas}), memory.replicas_since
        planned = plan([make_fit("a")], active("a"), cr, now=at, since=since)
        made += [(minute, name) for name in names(planned)]
        assert made or planned.wake_at == since + STABLE
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
    table = active("x-scale-k3", 3, NOW - timedelta(minutes=1))
    fits = [
        make_fit("x-scale-k2", finished="2026-11-21T09:00:00Z"),
        make_fit("x-scale-k3", finished="2026-11-21T11:00:00Z", k=3),
    ]
    assert names(plan(fits, table)) == ["x-scale-k2-2"], "at once: what was tried before is no reason to wait"
    failed = make_fit("x-scale-k2-2", "Rejected", (NOW - timedelta(seconds=30)).isoformat())
    assert names(plan([*fits, failed], table)) == []
    assert names(plan([*fits, failed], table, now=NOW + timedelta(minutes=5))) == ["x-scale-k2-3"]


def test_a_set_that_is_the_active_one_once_more_is_not_waited_for():
    again = make_fit("b", finished="2026-11-21T11:30:00Z")
    fits = [make_fit("a"), again.model_copy(update={"status": again.status | {"digest": "sha256:a"}})]
    assert names(plan(fits, active("a"), refused="sha256:a")) == ["x-repair"]


def test_names_of_other_deployments_are_gone_round():
    assert names(plan(taken={"x-bootstrap"})) == ["x-bootstrap-2"]
    due = "2026-11-22T02:00:05"
    assert names(nightly(due, taken={"x-20261122-0200"})) == ["x-20261122-0200-2"]
    assert names(nightly(due, [make_fit("x-20261122-0200-2")])) == [], "it was made already"


def test_drift_orders_a_fit_of_the_records_since_the_change():
    table, fits = active("a", since=NOW - timedelta(hours=9)), [make_fit("a")]
    order = {"samples": 0, "order": FitOrder(number=2, since=NOW - timedelta(hours=1))}
    planned = plan(fits, table, **order)
    assert names(planned) == ["x-drift-2"]
    assert planned.create["spec"] == {
        "deploymentRef": {"name": "x"},
        "trigger": "Drift",
        "since": "2026-11-21T11:00:00Z",
    }
    assert names(plan(fits, table, taken={"x-drift-2"}, **order)) == ["x-drift-3"]
    assert names(plan([make_fit("b", "Running")], table, **order)) == []
    assert names(plan(fits, table, make_cr(refit=SUSPENDED), **order)) == []
    order["order"] = FitOrder(number=2, since=None)
    assert "since" not in plan([], table, **order).create["spec"]
    known = plan([], table, changed=NOW - timedelta(hours=8), **order)
    assert known.create["spec"]["since"] == "2026-11-21T04:00:00Z"


def test_no_automatic_fit_looks_back_into_an_earlier_regime():
    since = utc("2026-11-21T20:00")
    scaled = make_cr(decode={"replicas": 3})
    for planned in (
        nightly("2026-11-22T02:00:05", changed=since),
        plan([], active("a"), scaled, changed=since),
    ):
        assert planned.create["spec"]["since"] == "2026-11-21T20:00:00Z"


def test_sets_of_another_model_or_out_of_service_do_not_count():
    other = make_fit("a")
    other = other.model_copy(update={"status": other.status | {"model": "another"}})
    assert candidates(make_cr(), [other], Table()) == []
    assert names(plan([other])) == ["x-bootstrap"]
    assert candidates(make_cr(), [make_fit("a")], Table(), {"sha256:a"}) == []
    assert [fit.name for fit in candidates(make_cr(), [make_fit("b"), make_fit("a")], Table())] == ["a", "b"]


def kept(limit, fits, table=Table(), pin=None, samples=0):  # noqa: B008 - frozen
    return plan(fits, table, make_cr(refit={"historyLimit": limit}, centroids={"pin": pin}), samples=samples)


def test_history():
    fits = [make_fit(f"f{n}", finished=f"2026-11-2{n}T00:00:00Z") for n in range(6)]
    fits.append(make_fit("running", "Running"))
    table = Table(epoch=3, active=make_set("f2"), previous=make_set("f1"), staged=make_set("f3"))
    planned = kept(1, fits, table, pin="f0")
    assert planned.delete == ("f4",)
    assert planned.refit == {"lastFit": "f5"}
    assert kept(6, fits).delete == ()
    assert kept(4, fits).delete == ("f0", "f1")


def test_fits_that_people_made_stay_and_do_not_count():
    """One that is kept in Git would be made again, and run again, for ever."""
    fits = [make_fit(f"f{n}", finished=f"2026-11-2{n}T00:00:00Z", automatic=n % 2 == 0) for n in range(6)]
    assert kept(2, fits).delete == ("f0",)


def test_last_fit_is_remembered():
    assert plan(cr=make_cr({"refit": {"lastFit": "gone"}}), samples=0).refit == {"lastFit": "gone"}


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
        ([f"x-bootstrap-{n}" for n in range(1, 10)], 359, []),
        ([f"x-bootstrap-{n}" for n in range(1, 10)], 360, ["x-bootstrap-10"]),
        (["x-bootstrap-other"], 1, ["x-bootstrap"]),
    ],
)
def test_bootstrap_backs_off(attempts, since, expected):
    assert names(plan([rejected(name, NOW - minutes(since)) for name in attempts])) == expected


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


def test_after_a_first_set_that_routers_refuse_there_is_another():
    fits = [make_fit("x-bootstrap", finished=(NOW - minutes(4)).isoformat())]
    blocked = ("sha256:x-bootstrap",)
    assert names(plan(fits, blocked=blocked)) == []
    assert names(plan(fits, blocked=blocked, now=NOW + minutes(1))) == ["x-bootstrap-2"]


def test_after_a_roll_back_to_no_set_older_ones_are_no_reason_to_wait():
    fits = [make_fit("old", finished="2026-11-01T10:00:00Z"), make_fit("x-bootstrap-7")]
    planned = plan(fits, rolled_back(), now=NOW + minutes(6), blocked=("sha256:x-bootstrap-7",))
    assert names(planned) == ["x-bootstrap-8"]
