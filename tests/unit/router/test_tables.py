"""What routers tell each other of their requests' experts."""

import base64

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eldr.core.union import Shape, Unions
from eldr.wire import ExpertCounts
from eldr_router.placement.exchange import UnionReport, question, read_answer, read_question, write_answer
from eldr_router.placement.locality import Locality
from eldr_router.placement.peer_unions import PeerUnions
from eldr_router.placement.signature import Signature

SHAPE = Shape(2, 4, 2, (0, 1))
HERE, THERE = ("a", 1), ("b", 2)


def counts(*values):
    return np.array(values, dtype=np.uint16).reshape(2, 4)


KIND_A, KIND_B = counts(500, 500, 0, 0, 500, 500, 0, 0), counts(0, 0, 500, 500, 0, 0, 500, 500)


def tell(unions, since=0, of="r.1"):
    return read_answer(200, orjson.dumps(write_answer(of, unions, since)))


def test_a_question_finds_its_way():
    assert read_question(question("abc.3", 17).partition("?")[2]) == ("abc.3", 17)
    assert read_question("of=&since=-4") == ("", 0)
    assert read_question("since=" + "9" * 40) == ("", 0)


def test_a_table_survives_the_wire():
    unions = Unions(SHAPE)
    for kind, n in ((KIND_A, 1), (KIND_B, 3)):
        unions.join("d0", unions.request(kind, 500), n)
    report = tell(unions)
    sequences, logs = report.rows["d0"]
    assert (report.source, report.version, report.shape, sequences) == ("r.1", 2, SHAPE, 4)
    assert np.exp(logs) == pytest.approx(np.exp(unions.table()["d0"][1]), abs=2e-3)
    assert tell(None) == UnionReport("r.1", 0, None, {})


def packed(*values):
    return base64.b64encode(np.array(values, dtype="<f2").tobytes()).decode()


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2}, {"shape": [2, 4]}, {"shape": 7}, {"version": None}, {"rows": []}, {"rows": {"d0": 1}}, {"rows": {"d0": {}}},
        {"rows": {"d0": {"sequences": 1}}}, {"rows": {"d0": {"sequences": 1, "logs": "!"}}},
        {"rows": {"d0": {"sequences": 1, "logs": packed(-1, -1)}}}, {"rows": {"d0": {"sequences": -1, "logs": packed(*[0] * 8)}}},
        {"rows": {"d0": {"sequences": 1, "logs": packed(*[1] * 8)}}},
        {"rows": {"d0": {"sequences": 1, "logs": packed(*[float("nan")] * 8)}}},
    ],
)  # fmt: skip
def test_answers_that_are_none(change):
    good = {
        "v": 1,
        "of": "r.1",
        "version": 1,
        "shape": [2, 4, 2, [0, 1]],
        "rows": {"d0": {"sequences": 1, "logs": packed(*[-1] * 8)}},
    }
    assert read_answer(200, orjson.dumps(good)).rows["d0"][0] == 1
    with pytest.raises(ValueError, match=r"its (answer|unions)|not enough"):
        read_answer(200, orjson.dumps(good | change))


def test_other_answers_are_refused():
    with pytest.raises(ValueError, match="answers 404"):
        read_answer(404, b"{}")
    with pytest.raises(ValueError, match=r"unexpected|JSON"):
        read_answer(200, b"<html>")


@pytest.fixture
def locality():
    locality = Locality()
    locality.unions = Unions(SHAPE)
    return locality


def exchange(tables, there, now, of="r.1"):
    """Ask, and take the answer."""
    asked = tables.question(THERE)
    tables.receive(THERE, tell(there, since=asked[1] if asked[0] == of else 0, of=of), now)


def told(locality):
    """Return the tables of a router that was told of one request, and the unions of the one that told."""
    tables, there = PeerUnions(locality), Unions(SHAPE)
    there.join("d0", there.request(KIND_A, 500))
    exchange(tables, there, 0.0)
    return tables, there


def active(locality, totals=(0,)):
    return locality.unions.outlook(None, ["d0"], totals).active[0]


def test_what_is_told_counts_until_it_is_stale(locality):
    tables, there = PeerUnions(locality), Unions(SHAPE)
    there.join("d0", there.request(KIND_A, 500))
    assert tables.question(THERE) == ("", 0)
    tables.receive(THERE, tell(there), 0.0)
    assert tables.question(THERE) == ("r.1", 1)
    known = active(locality, [1])
    there.join("d0", there.request(KIND_A, 500))
    exchange(tables, there, 1.0)
    assert active(locality, [2]) < known + 0.5, "the same experts again"
    assert active(locality, [3]) > known + 0.5, "one more that nobody report of counts as the mean"
    tables.expire(2.9)
    assert tables.known == 1
    tables.expire(3.1)
    assert (tables.known, active(locality)) == (0, 0.0)
    assert active(locality, [2]) > known + 0.5


def test_a_row_that_was_forgotten_before_it_was_told_goes_too(locality):
    tables, there = PeerUnions(locality), Locality()
    there.unions = Unions(SHAPE)
    stay = there.unions.join("d0", there.unions.request(KIND_A, 500))
    exchange(tables, there.unions, 0.0, of=there.generation)
    stay.leave()
    there.retain(["d1"])
    exchange(tables, there.unions, 1.0, of=there.generation)
    assert active(locality) == 0.0


def test_changes_of_what_was_forgotten_meanwhile_are_not_the_whole(locality):
    tables, there = told(locality)
    of, since = tables.question(THERE)
    there.join("d1", there.request(KIND_A, 500))
    answer = tell(there, since=since, of=of)
    tables.expire(2.1)
    tables.receive(THERE, answer, 2.2)
    assert tables.known == 0
    exchange(tables, there, 3.0)
    assert active(locality) > 1.5


def test_a_router_that_began_anew_tells_everything_again(locality):
    tables, there = PeerUnions(locality), Locality()
    there.follow(None, wanted=True)
    for now in (0.0, 1.0):
        there.unions = None
        there.notice(Signature(ExpertCounts(KIND_A, 2, 500, exact=True)))
        if not now:
            there.unions.join("d0", there.unions.request(KIND_A, 500))
        exchange(tables, there.unions, now, of=there.generation)
    assert active(locality) == 0.0


def test_only_tables_of_the_same_shape_count(locality):
    tables, _ = told(locality)
    tables.question(THERE)
    tables.receive(THERE, UnionReport("r.1", 9, SHAPE._replace(layers=(1,)), {}), 1.0)
    assert (tables.known, active(locality)) == (0, 0.0)
    tables.receive(THERE, UnionReport("r.1", 9, None, {}), 1.2)
    assert tables.known == 0


def test_own_beginning_asks_for_everything(locality):
    tables, there = told(locality)
    locality.unions = Unions(SHAPE)
    tables.receive(THERE, tell(there, since=1), 0.1)
    assert tables.question(THERE) == ("", 0)
    tables.receive(THERE, tell(there), 1.0)
    assert active(locality) > 1.5
    locality.follow(None, wanted=False)
    assert tables.question(THERE) == ("", 0)
    tables.receive(THERE, tell(there), 9.0)
    tables.expire(99.0)
    assert tables.known == 0


def test_who_goes_is_forgotten(locality):
    tables, _ = told(locality)
    tables.retain({HERE})
    assert (tables.known, active(locality)) == (0, 0.0)
    assert not tables._asked


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.booleans()), max_size=30))
def test_partial_tables_add_up(events):
    locality = Locality()
    locality.unions = Unions(SHAPE)
    tables, there, stays, now = PeerUnions(locality), Unions(SHAPE), [], 0.0
    for kind, engine, receive in events:
        if stays and engine == 2:
            stays.pop(0).leave()
        else:
            request = there.request(KIND_A if kind == "a" else KIND_B, 500)
            stays.append(there.join(f"d{engine}", request))
        now += 0.25
        if receive:
            exchange(tables, there, now)
        else:
            tables.question(THERE)
    exchange(tables, there, now + 0.25)
    engines = ["d0", "d1", "d2"]
    totals = [there.table().get(engine, (0,))[0] for engine in engines]
    wanted = there.outlook(None, engines, totals).active
    assert locality.unions.outlook(None, engines, totals).active == pytest.approx(wanted, abs=0.02)
