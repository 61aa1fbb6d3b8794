"""Fits of equal schedules are spread: an operator of many deployments does not start as many Jobs at once."""

from datetime import timedelta

from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import make_cr
from tests.unit.operator.planned import NIGHTLY, SHOWN, names, plan, utc


def test_fits_of_equal_schedules_do_not_begin_together():
    status = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    minute, begins = utc("2026-11-22T02:00:00"), []
    for uid in map(str, range(40)):
        cr = make_cr(status, refit=NIGHTLY)
        cr = cr.model_copy(update={"metadata": cr.metadata.model_copy(update={"uid": uid})})
        waits = plan(cr, [], Table(), 0, minute)
        begins.append(waits.wake_at)
        if begins[-1] > minute:
            assert names(waits) == []
            assert waits.refit["nextScheduleTime"] == "2026-11-22T02:00:00Z"
        due = plan(cr, [], Table(), 0, begins[-1])
        assert names(due) == ["x-20261122-0200"], "named by its minute, whenever it begins"
        assert due.refit["lastScheduleTime"] == "2026-11-22T02:00:00Z"
        assert due.refit["nextScheduleTime"] == "2026-11-23T02:00:00Z"
    assert minute <= min(begins)
    assert max(begins) < minute + timedelta(minutes=10)
    assert len({(at - minute) // timedelta(minutes=1) for at in begins}) >= 8, "over all of the ten minutes"


def test_the_next_minute_waits_for_no_delay_of_the_one_before():
    refit = {"schedule": "* * * * *", "timeZone": "Etc/UTC"}
    status = {"refit": {"schedule": "* * * * * Etc/UTC", "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    wake_at = plan(make_cr(status, refit=refit), [], Table(), 0, utc("2026-11-22T02:00:00")).wake_at
    assert wake_at - utc("2026-11-22T02:00:00") < timedelta(seconds=6)
