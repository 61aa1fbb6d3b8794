"""What one pass leaves to the next, through the ConfigMap and back."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from eldr import contract
from eldr.contract import SIMILARITY_BINS
from eldr_operator.drift.counts import Baseline, Counts
from eldr_operator.drift.state import State
from eldr_operator.locality import memory
from eldr_operator.locality.memory import HISTORY, KEY, Entry, Memory, Refit
from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import NOW, make_cr, make_set

BASELINE = Baseline(Counts((*[0] * (SIMILARITY_BINS - 1), 5), (2, 3), 5))


@pytest.fixture
def full():
    table = Table(
        epoch=3, active=make_set("b"), previous=make_set("a"), staged=make_set("c"), activated_at=NOW,
        staged_at=datetime(2026, 1, 1, tzinfo=UTC), reason="Pinned",
    )  # fmt: skip
    drift = State(digest="sha256:b", blocked=("sha256:z",))
    day = {datetime(2026, 11, 21, 11, 30, tzinfo=UTC): 0.25}
    more = {"drift": drift, "day": day, "baselines": {"sha256:b": BASELINE}, "protective": True}
    return Memory(refit=Refit(last_fit="b"), **more).with_table(table)


def test_it_survives_the_way_through_the_cluster(full):
    assert memory.read(memory.config_map(make_cr(), full), {}) == full
    assert full.day
    assert full.baselines
    assert memory.read(memory.config_map(make_cr(), Memory()), {}) == Memory()


@pytest.mark.parametrize("live", [None, {}, {"data": {}}, {"data": {contract.ROUTING_KEY: "{"}}])
def test_a_lost_one_goes_on_from_what_the_status_shows(live):
    assert memory.read(live, {}) == Memory()
    entry = {"time": "2026-11-21T12:00:00Z", "fit": "f", "epoch": 7, "reason": "Accepted"}
    day = {"since": "2026-11-21T11:30:00Z", "scores": "0.25"}
    shown = {"history": [entry], "refit": {"lastFit": "f"}, "locality": {"driftDay": day}}
    found = memory.read(live, shown)
    assert found.table == Table(epoch=8), "an epoch names one table for ever"
    assert (found.history, found.refit) == ((Entry(**entry),), Refit(last_fit="f"))
    assert [*found.day.values()] == [0.25]


def test_one_of_a_version_without_a_drift_day_is_read_whole(full):
    live = memory.config_map(make_cr(), full)
    told = json.loads(live["data"][KEY])
    del told["driftDay"]
    live["data"][KEY] = json.dumps(told)
    assert memory.read(live, {}) == full.but(day={})


@pytest.mark.parametrize("text", ["{", "{}", '{"epoch": 9, "active": null}', None])
def test_what_somebody_writes_into_the_routing_table_is_not_believed(full, text):
    live = memory.config_map(make_cr(), full)
    live["data"][contract.ROUTING_KEY] = text
    assert memory.read(live, {}) == full
    assert memory.lost(live, full) == ()


def test_one_of_a_version_that_told_the_table_to_routers_only_is_read_whole(full):
    live = memory.config_map(make_cr(), full)
    told = json.loads(live["data"][KEY])
    for key in ("epoch", "active", "staged"):
        del told[key]
    live["data"][KEY] = json.dumps(told)
    assert memory.read(live, {}) == full
    assert memory.lost(live, full) == ()


@pytest.mark.parametrize("damage", [None, "{", "[]", "{}"])
def test_what_routers_use_is_known_even_if_the_rest_is_damaged(full, damage):
    live = memory.config_map(make_cr(), full)
    if damage is None:
        del live["data"][KEY]
    else:
        live["data"][KEY] = damage
    found = memory.read(live, {})
    assert (found.table.epoch, found.table.active, found.table.staged) == (
        *(3, full.table.active),
        full.table.staged,
    )
    assert found.table.activated_at is None


def test_history_grows_with_the_epoch_and_is_bounded():
    found = Memory()
    for epoch in range(1, HISTORY + 3):
        table = Table(epoch=epoch, active=make_set(f"f{epoch}"), activated_at=NOW, reason="Accepted")
        found = found.with_table(table).with_table(table)
    assert [entry.epoch for entry in found.history] == list(range(3, HISTORY + 3))
    assert found.history[-1].to_json() == {
        "time": "2026-11-21T12:00:00Z",
        "fit": f"f{HISTORY + 2}",
        "epoch": HISTORY + 2,
        "reason": "Accepted",
    }


def test_history_tells_that_no_set_serves():
    table = Table(epoch=4, activated_at=NOW, reason="RolledBack")
    assert Memory().with_table(table).history[-1].fit == "none"


def test_history_tells_when_the_active_set_went_out_of_service_and_came_back():
    table = Table(epoch=4, active=make_set("f"), activated_at=NOW, reason="Accepted")
    found = Memory().with_protection(False, NOW).with_table(table)
    later = NOW + timedelta(minutes=5)
    for protective in (False, True, True, False, False):
        found = found.with_protection(protective, later).with_table(table)
    assert [(entry.fit, entry.epoch, entry.reason) for entry in found.history] == [
        ("f", 4, "Accepted"),
        ("f", 4, "Protective"),
        ("f", 4, "ServesAgain"),
    ]
    assert found.history[-1].time == later
    assert not found.protective


def test_a_set_that_follows_one_out_of_service_does_not_come_back():
    first = Table(epoch=4, active=make_set("f"), activated_at=NOW, reason="Accepted")
    second = Table(epoch=5, active=make_set("g"), activated_at=NOW, reason="Accepted")
    found = Memory().with_table(first).with_protection(True, NOW).with_table(second)
    found = found.with_protection(False, NOW)
    assert [entry.reason for entry in found.history] == ["Accepted", "Protective", "Accepted"]
    assert not found.protective
