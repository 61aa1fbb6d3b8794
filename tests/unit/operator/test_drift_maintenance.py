"""Maintenance windows: in their own time zone, over midnight, over the change to summer time."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr_operator.drift import maintenance
from eldr_operator.drift.spec import MaintenanceWindow


def window(schedule, minutes, zone="Etc/UTC"):
    return MaintenanceWindow(schedule=schedule, duration_minutes=minutes, time_zone=zone)


def at(text):
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("schedule", "minutes", "zone", "when", "opens"),
    [
        ("0 3 * * *", 60, "Etc/UTC", "2026-11-21T02:59:59Z", "2026-11-21T03:00:00Z"),
        ("0 3 * * *", 60, "Etc/UTC", "2026-11-21T03:00:00Z", None),
        ("0 3 * * *", 60, "Etc/UTC", "2026-11-21T03:59:59Z", None),
        ("0 3 * * *", 60, "Etc/UTC", "2026-11-21T04:00:00Z", "2026-11-22T03:00:00Z"),
        ("0 3 * * *", 60, "Asia/Tokyo", "2026-11-21T18:30:00Z", None),
        ("0 23 * * *", 180, "Etc/UTC", "2026-11-22T01:30:00Z", None),
        ("0 1 * * SUN", 120, "Etc/UTC", "2026-11-21T01:30:00Z", "2026-11-22T01:00:00Z"),
        # 2026-03-29 has no 02:30 in Berlin: the window opens when the clock has jumped
        ("30 2 * * *", 60, "Europe/Berlin", "2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z"),
        ("30 2 * * *", 60, "Europe/Berlin", "2026-03-29T01:30:00Z", None),
    ],
)
def test_open_and_closed(schedule, minutes, zone, when, opens):
    assert maintenance.opens_at(window(schedule, minutes, zone), at(when)) == (opens and at(opens))


@given(st.integers(0, 365 * 86_400), st.integers(1, 1440))
def test_what_is_told_is_open_then_and_not_a_moment_before(seconds, minutes):
    found = window("15 4 * * *", minutes, "America/New_York")
    when = at("2026-01-01T00:00:00Z") + timedelta(seconds=seconds)
    opens = maintenance.opens_at(found, when)
    if opens is not None:
        assert opens > when
        assert maintenance.opens_at(found, opens) is None
        assert maintenance.opens_at(found, opens - timedelta(seconds=1)) == opens
