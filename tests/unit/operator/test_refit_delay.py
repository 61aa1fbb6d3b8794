"""Fits of equal schedules are spread: an operator of many deployments does not start as many Jobs at once."""

from datetime import timedelta

from tests.unit.operator.builders import make_cr
from tests.unit.operator.planned import DUE, NIGHTLY, names, plan, utc

MINUTE = utc("2026-11-22T02:00:00")


def test_fits_of_equal_schedules_do_not_begin_together():
    begins = []
    for uid in map(str, range(40)):
        cr = make_cr(DUE, refit=NIGHTLY)
        cr = cr.model_copy(update={"metadata": cr.metadata.model_copy(update={"uid": uid})})
        waits = plan(cr=cr, samples=0, now=MINUTE)
        begins.append(waits.wake_at)
        if begins[-1] > MINUTE:
            assert names(waits) == []
            assert waits.refit["nextScheduleTime"] == "2026-11-22T02:00:00Z"
        due = plan(cr=cr, samples=0, now=begins[-1])
        assert names(due) == ["x-20261122-0200"], "named by its minute, whenever it begins"
        assert due.refit["lastScheduleTime"] == "2026-11-22T02:00:00Z"
        assert due.refit["nextScheduleTime"] == "2026-11-23T02:00:00Z"
    assert min(begins) >= MINUTE
    assert max(begins) < MINUTE + timedelta(minutes=10)
    assert len({(at - MINUTE) // timedelta(minutes=1) for at in begins}) >= 8, "over all of the ten minutes"


def test_the_next_minute_waits_for_no_delay_of_the_one_before():
    refit = {"schedule": "* * * * *", "timeZone": "Etc/UTC"}
    status = {"refit": {"schedule": "* * * * * Etc/UTC", "nextScheduleTime": "2026-11-22T02:00:00Z"}}
    wake_at = plan(cr=make_cr(status, refit=refit), samples=0, now=MINUTE).wake_at
    assert wake_at - MINUTE < timedelta(seconds=6)
