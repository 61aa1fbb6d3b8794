"""What one pass leaves to the next: what is bad of it is forgotten and named, the rest stays."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from eldr import contract
from eldr.contract import SIMILARITY_BINS
from eldr_operator import clock, records
from eldr_operator.drift.counts import Baseline, Counts
from eldr_operator.drift.state import Drift, Fits, Known, Protection, Shown, Spread, State
from eldr_operator.errors import InvalidResourceError
from eldr_operator.locality import memory
from eldr_operator.locality.memory import HISTORY, KEY, Entry, Memory, Refit
from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import HUGE, NOW, ODD, make_cr, make_fit, make_set

BASELINE = Baseline(Counts((*[0] * (SIMILARITY_BINS - 1), 5), (2, 3), 5))


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


def test_history_grows_with_the_epoch_and_is_bounded():
    found = Memory()
    for epoch in range(1, HISTORY + 3):
        table = Table(epoch=epoch, active=make_set(f"f{epoch}"), activated_at=NOW, reason="Accepted")
        found = found.with_table(table).with_table(table)
    assert [entry.epoch for entry in found.history] == list(range(3, HISTORY + 3))


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


TIME = "2026-01-01T00:00:00Z"
AT = datetime(2026, 1, 1, tzinfo=UTC)
ENTRY = {"time": TIME, "fit": "b", "epoch": 3, "reason": "Accepted"}
STATE = State(
    digest="sha256:b",
    seen=AT,
    shown=Shown(value=0.5, similarity=0.1, clusters=0.1, requests=500),
    known=Known(windows=2, similarity=(3, 4), clusters=(5,)),
    spread=Spread(similarity=2.0, clusters=3.0, weight=9.0),
    drift=Drift(phase="Detected", cause="TrafficChanged", since=AT, changed=AT, requests=5),
    protection=Protection(active=True, since=AT),
    fits=Fits(number=3, started=(AT,), finished=AT),
    blocked=("sha256:y", "sha256:z"),
)


TABLE = Table(
    epoch=3,
    active=make_set("b"),
    previous=make_set("a"),
    staged=make_set("c"),
    activated_at=NOW,
    staged_at=NOW,
    reason="Accepted",
)
REFIT = Refit(last_fit="b", schedule="0\t3 * * * UTC", next_schedule_time=AT)
WHOLE = Memory(
    table=TABLE,
    history=(Entry(**ENTRY),),
    refit=REFIT,
    drift=STATE,
    day={AT: 0.25},
    baselines={"sha256:b": BASELINE},
    protective=True,
)
LIVE = memory.config_map(make_cr(), WHOLE)
odd = pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:12])


def holds(**data):
    """Return the ConfigMap with other data, or without."""
    kept = {key: value for key, value in (LIVE["data"] | data).items() if value is not None}
    return LIVE | {"data": kept}


def damaged(*without, **keys):
    """Return the ConfigMap with other values of some keys, or without."""
    told = json.loads(LIVE["data"][KEY]) | keys
    return holds(**{KEY: json.dumps({key: value for key, value in told.items() if key not in without})})


def read(status=None, **keys):
    return memory.read(damaged(**keys), status or {})


def written(found):
    """Write it again, as every pass does, so that the API server takes it."""
    text = memory.config_map(make_cr(), found)["data"][KEY]
    assert "\\u0000" not in text
    assert "\\ud800" not in text
    told = json.loads(text, parse_constant=pytest.fail)
    assert len(text) < 20_000
    json.dumps(found.to_json(), allow_nan=False).encode()
    return told


def test_what_is_whole_is_read_whole_and_nothing_is_lost():
    found = memory.read(LIVE, {})
    assert found == WHOLE
    assert memory.config_map(make_cr(), found)["data"] == LIVE["data"]
    assert memory.lost(LIVE, found) == memory.lost(None, Memory()) == ()
    assert memory.read(memory.config_map(make_cr(), Memory()), {}) == Memory()


@pytest.mark.parametrize("text", ["{", "{}", '{"epoch": 9, "active": null}', None])
def test_what_somebody_writes_into_the_routing_table_is_not_believed(text):
    live = holds(**{contract.ROUTING_KEY: text})
    assert (memory.read(live, {}), memory.lost(live, WHOLE)) == (WHOLE, ())


def test_one_of_an_earlier_version_is_read_whole():
    """It had no drift day, and told the table to routers only."""
    assert memory.read(damaged("driftDay"), {}) == WHOLE.but(day={})
    live = damaged("epoch", "active", "staged")
    assert (memory.read(live, {}), memory.lost(live, WHOLE)) == (WHOLE, ())


@pytest.mark.parametrize("text", [None, "{", "[]", "{}"])
def test_what_routers_use_is_known_even_if_the_rest_is_damaged(text):
    found = memory.read(holds(**{KEY: text}), {}).table
    assert (found.epoch, found.active, found.staged) == (3, TABLE.active, TABLE.staged)
    assert found.activated_at is None


@odd
@pytest.mark.parametrize(
    "key",
    [
        "previous", "activatedAt", "stagedAt", "reason", "history", "refit", "drift", "driftDay", "baselines", "protective",
    ],
)  # fmt: skip
def test_one_bad_key_loses_only_itself(key, value):
    bad = damaged(**{key: value})
    found = memory.read(bad, {})
    before, after = json.loads(LIVE["data"][KEY]), written(found)
    assert {name for name in before if before[name] != after[name]} <= {key}
    if value and key not in {"protective", "reason", "baselines"}:
        assert memory.lost(bad, found) == (key,)


@odd
@pytest.mark.parametrize("part", [None, "drift", "known", "spread", "shown", "promise", "protection", "fits"])
def test_one_bad_field_of_drift_loses_only_itself(part, value):
    whole = STATE.to_json()
    for name in type(STATE if part is None else getattr(STATE, part) or Shown).model_fields:
        alias = {"lost_since": "lostSince"}.get(name, name)
        told = whole | ({alias: value} if part is None else {part: {**whole.get(part, {}), alias: value}})
        found = records.read(State, json.loads(json.dumps(told)))
        written(Memory(drift=found))
        for other in State.model_fields:
            if other not in {part, name} or (part is not None and other != part):
                assert getattr(found, other) == getattr(STATE, other), (name, other)


@odd
def test_what_was_called_otherwise_once_may_be_damaged_too(value):
    for key in ("barred", "blocked"):
        found = records.read(State, STATE.to_json() | {"blocked": [], key: value})
        assert found == STATE.but(blocked=tuple(found.blocked))
    told = {key: one for key, one in STATE.to_json().items() if key != "blocked"}
    assert records.read(State, told | {"barred": value}).digest == STATE.digest


def test_what_is_reckoned_here_is_as_large_as_it_is():
    """A router that lies may make a sum of any size: it is not read again, and ends no pass."""
    huge = Shown(value=1e15, similarity=1.0, clusters=1.0, requests=1 << 60)
    made = STATE.but(shown=huge, known=Known(similarity=(1 << 60,)), drift=Drift(requests=1 << 60))
    found = memory.read(memory.config_map(make_cr(), Memory(drift=made)), {}).drift
    assert (found.shown, found.known, found.drift) == (None, Known(), Drift())
    assert found.blocked == STATE.blocked


def test_a_history_that_grew_is_cut():
    found = read(history=[ENTRY | {"epoch": epoch} for epoch in range(40)], epoch=39)
    assert [entry.epoch for entry in found.history] == list(range(40 - HISTORY, 40))


def test_history_knows_no_later_epoch_than_the_table():
    found = read(history=[ENTRY, ENTRY | {"epoch": 1 << 40}])
    assert [entry.epoch for entry in found.history] == [3], "else nothing would become history any more"


def test_good_items_of_a_list_stay():
    told = STATE.to_json() | {"blocked": ["sha256:y", 5, "a\0", None, "sha256:z"]}
    told["fits"] = {"number": 3, "started": [TIME, "soon", "2026-01-01T00:00:00", 7], "finished": TIME}
    assert records.read(State, told) == STATE
    assert records.read(
        State, told | {"known": {"windows": 2, "similarity": [3, -4], "clusters": [5]}}
    ).known == Known(windows=2, clusters=(5,)), "counts are told by their place"


@pytest.mark.parametrize(
    "bad",
    [
        None, {}, {**ENTRY, "epoch": HUGE}, {**ENTRY, "time": "0001-01-01T00:00:00+12:00"}, {**ENTRY, "reason": "a\0"},
    ],
)  # fmt: skip
def test_a_bad_entry_of_the_history_is_dropped(bad):
    entries = [bad, ENTRY, bad]
    assert read(history=entries).history == (Entry(**ENTRY),)
    assert memory.read(None, json.loads(json.dumps({"history": entries}))).table.epoch == 4


@pytest.mark.parametrize(
    ("key", "value", "lost"),
    [
        ("epoch", HUGE, None), ("epoch", -1, None),
        ("active", {"fit": "f"}, None), ("staged", "x", None), ("active", None, "active"),
    ],
)  # fmt: skip
def test_a_bad_pointer_loses_only_itself(key, value, lost):
    found = read({"history": [ENTRY]}, **{key: value})
    assert found.table.epoch == 3
    if key != "epoch":
        assert (found.table.active is None) == (lost == "active")
        assert found.drift == STATE


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "{", "", "7"])
@pytest.mark.parametrize("keys", [{KEY}, {KEY, contract.ROUTING_KEY}], ids=len)
def test_what_is_no_json_is_named(text, keys):
    data = holds(**dict.fromkeys(keys, text))
    found = memory.read(data, {"history": [ENTRY]})
    both = contract.ROUTING_KEY in keys
    assert (found.table.epoch, found.table.active is None) == (3 + both, both)
    assert memory.lost(data, found)


def test_what_is_no_config_map_is_nothing():
    assert memory.read({"data": [1]}, {}) == Memory()


@pytest.mark.parametrize(
    "told",
    [
        None, 5, "soon", "", "2026-01-01T00:00:00", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+12:00",
        "9999-12-31T23:59:59-12:00", "0000-01-01T00:00:00Z",
    ],
)  # fmt: skip
def test_a_time_that_one_cannot_reckon_with_is_none(told):
    assert clock.read(told) is None


def test_a_time_of_another_zone_is_read_in_utc():
    assert clock.read("2026-01-01T02:00:00+02:00") == AT
    assert clock.stamp(clock.read(TIME)) == TIME


@pytest.mark.parametrize("key", ["since", "before"])
@pytest.mark.parametrize(
    "told",
    [
        "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+12:00", "9999-12-31T23:59:59-12:00", "2026-01-01T00:00:00",
        "0001-01-01T00:00:00Z",
    ],
)  # fmt: skip
def test_a_fit_with_a_time_that_one_cannot_reckon_with_is_named(key, told):
    with pytest.raises(InvalidResourceError, match=f"spec.{key}"):
        make_fit("f", **{key: told})


@pytest.mark.parametrize(
    "damage",
    [
        {"digest": "a\0"},
        {"k": 10**400},
        {"k": 0},
        {"shards": None},
        {"shards": [{"name": ""}]},
        {"digest": None},
    ],
)
def test_a_fit_whose_status_tells_no_set_has_none(damage):
    fit = make_fit("f")
    fit = fit.model_copy(update={"status": fit.status | damage | {"finishedAt": "0000-01-01T00:00:00Z"}})
    assert fit.accepted_set is None
    assert fit.finished_at == fit.metadata.creation_timestamp
