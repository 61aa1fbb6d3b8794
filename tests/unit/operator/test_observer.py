"""What a look at a deployment sees of the set in use."""

import json

import pytest

from eldr.contract import SIMILARITY_BINS
from eldr_operator import records
from eldr_operator.drift.counts import Saving
from eldr_operator.drift.decide import decide
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.drift.state import State
from eldr_operator.locality.memory import Memory
from eldr_operator.locality.observer import look
from eldr_operator.locality.router_view import RouterView
from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import NOW, POD, make_cr, make_fit, make_set

NOTHING = Memory()
ACTIVE, OTHER_SET = "sha256:f", "sha256:g"
COUNTS = {"similarity": [0] * (SIMILARITY_BINS - 1) + [60], "clusters": [30, 30], "requests": 60}


def seen(memory=NOTHING, fits=(), views=(), **spec):
    return look(make_cr(**spec), fits, memory, views, None)


def with_baseline(value):
    """Return a memory that holds a baseline of the active set, as it is read."""
    table = Table(epoch=2, active=make_set("f"))
    return records.read(Memory, {"table": table.to_json(), "baselines": {ACTIVE: value}})


def test_what_was_before_a_sets_own_traffic_is_known_where_its_fit_stored_it():
    for more, known in ({}, None), ({"before": COUNTS}, 60), ({"before": None}, None):
        before = with_baseline(COUNTS | more)
        found = seen(before).baseline
        assert found.counts.requests == 60
        assert (found.before and found.before.requests) == known


BEFORE = ("before", {"requests": 1}), ("before", COUNTS | {"clusters": [1]}), ("before", [1]), ("before", "x")
SAVING = [("saving", value) for value in (10**400, float("nan"), "x", 2, -1e300)]


@pytest.mark.parametrize(("field", "value"), [*BEFORE, *SAVING, ("saving_low", 10**400), ("batch", 10**400)])
def test_a_field_of_a_baseline_that_cannot_be_read_is_unknown(field, value):
    good = COUNTS | {"saving": 0.2, "saving_low": 0.1, "saving_high": 0.3, "batch": 8.0, "before": COUNTS}
    found = seen(with_baseline(good | {field: value})).baseline
    assert found.counts.requests == 60
    shown = {"saving": found.saving, "saving_low": found.low, "batch": found.batch, "before": found.before}
    assert shown.pop(field) is None
    assert (found.before is None) == (field == "before")
    assert (found.saving is None) == field.startswith("saving"), "none without the interval it was made with"


def test_what_was_measured_on_the_most_steps_counts():
    def saving(*found):
        views = [RouterView(POD, saving=one) for one in found]
        return seen(views=views).saving

    assert saving(Saving(0.1, 0.1, 50), None, Saving(0.2, 0.1, 70)) == Saving(0.2, 0.1, 70)
    assert saving(None) is None


@pytest.mark.parametrize(
    ("told", "believed"),
    [
        ([(ACTIVE, True, 11)], ("f11", True)),
        ([(ACTIVE, False, 11)], ("f11", False)),
        ([(ACTIVE, True, 11), (ACTIVE, False, 12)], ("f12", False)),
        ([(ACTIVE, True, 12), (ACTIVE, False, 11)], ("f12", True)),
        ([(ACTIVE, True, 11), (OTHER_SET, False, 12)], ("f11", True)),
        ([(OTHER_SET, True, 11)], None),
        ([(None, True, 11)], None),  # of a version that did not tell which set it was about
        ([(ACTIVE, None, 11)], None),  # nothing was compared
        ([(ACTIVE, True, 9)], None),  # before it served
        ([("nonsense " * 99, "yes", 11)], None),
    ],
)
def test_only_reports_about_the_active_set_are_believed_and_the_last_word_counts(told, believed):
    fits = []
    for digest, harms, hour in told:
        fit = make_fit(f"f{hour}", "Rejected", f"2026-11-21T{hour:02}:00:00Z")
        status = {"activeSetDigest": digest, "activeSetRegresses": harms}
        fits.append(fit.model_copy(update={"status": fit.status | status}))
    memory = Memory(table=Table(epoch=2, active=make_set("f"), activated_at=NOW.replace(hour=10)))
    found = seen(memory, fits).report
    assert (found and (found.fit, found.harms)) == believed


@pytest.mark.parametrize(
    ("pin", "told"),
    [
        (None, (False, False)),
        ("first", (True, True)),
        ("again", (True, True)),  # the very same set
        ("gone", (True, True)),  # its EldrFit is deleted
        ("newer", (True, False)),
        ("rejected", (True, False)),
        ("nosuch", (True, False)),
    ],
)
def test_any_pin_counts_and_it_is_known_whether_it_names_the_active_set(pin, told):
    first = make_fit("first")
    fits = [first, with_set_of(make_fit("again"), first), make_fit("newer"), make_fit("rejected", "Rejected")]
    active = make_set("gone") if pin == "gone" else make_set("first")
    spec = {"centroids": {"pin": pin}} if pin else {}
    found = seen(Memory(table=Table(epoch=2, active=active)), fits, **spec)
    assert (found.pinned, found.chosen) == told
    nothing = seen(fits=fits, **spec)
    assert (nothing.pinned, nothing.chosen) == (pin is not None, False)


def with_set_of(fit, other):
    """Return a fit whose set is another's, byte for byte."""
    return fit.model_copy(update={"status": fit.status | {"digest": other.status["digest"]}})


def test_a_fit_that_made_the_active_set_once_more_keeps_nobody_waiting():
    first = make_fit("first")
    before = Memory(table=Table(epoch=2, active=make_set("first"), activated_at=NOW))
    again = with_set_of(make_fit("again", finished="2026-11-21T11:30:00Z"), first)
    passed_over = make_fit("passed-over", finished="2026-11-21T11:00:00Z")

    def busy(*fits):
        return seen(before, fits).busy

    assert busy(first) is None
    assert busy(first, passed_over) == "passed-over"
    assert busy(first, again) is None
    assert busy(first, passed_over, again) is None, "only the newest set is activated"
    assert busy(first, again, make_fit("next", finished="2026-11-21T11:40:00Z")) == "next"


@pytest.mark.parametrize("name", ["x-drift-20261121120000000", "x-drift-" + "9" * 200])
def test_a_number_that_cannot_be_remembered_is_none_of_the_operators(name):
    fits, state = [make_fit(name, "Rejected", trigger="Drift")], State()
    for _ in range(5):
        after, _ = decide(state, DriftSpec(), seen(fits=fits), NOW)
        state = records.read(State, json.loads(json.dumps(after.to_json())))
    assert (state.fits.number, state.fits.fruitless) == (0, 0)
    assert state.fits.finished == fits[0].finished_at, "yet there was one, and it counts for the pause"
