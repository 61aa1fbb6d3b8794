"""The decision benchmark gives no figures for a pool that decides otherwise than its rows name."""

from dataclasses import replace

import pytest

from eldr.contract import POLICY_ELDR, POLICY_MARGINAL
from eldr_bench import decision
from eldr_bench.proof import Unproven
from eldr_router.state.locality import Locality
from eldr_router.state.placer import Placer

BAND = decision.Case(POLICY_ELDR, 3)
UNION = decision.Case(POLICY_MARGINAL, 3, layers=2)
MIXED = replace(UNION, mixed=True)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few cells and few requests: what is timed is not looked at."""
    for name, value in {"LAYERS": 4, "EXPERTS": 16, "TOP_K": 2, "DIFFERENT": 31, "IN_FLIGHT": 4}.items():
        monkeypatch.setattr(decision, name, value)


def measure(*cases):
    return decision.measure(cases, rounds=3, repeats=20)


def test_pools_that_decide_as_named_have_figures():
    figures = measure(BAND, UNION, MIXED)
    assert [len(figure["values"]) for figure in figures] == [3, 3, 3]
    assert all(value > 0 for figure in figures for value in figure["values"])
    assert len({figure["name"] for figure in figures}) == 3


def test_a_locality_that_does_not_follow_ends_the_program_with_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(Locality, "follow", lambda *_, **__: None)
    monkeypatch.setattr(decision, "CASES", (UNION,))
    monkeypatch.setattr(decision, "one_thread", lambda: None)
    monkeypatch.setattr(decision, "COMPILED", True)
    with pytest.raises(SystemExit) as ended:
        decision.main()
    assert ended.value.code not in {0, None}
    assert "expected MarginalUnion for reason 'union'" in str(ended.value)
    assert "wrong_shape" in str(ended.value)
    assert not capsys.readouterr().out


def test_a_band_without_similarities_is_no_band(monkeypatch):
    monkeypatch.setattr("eldr_router.plan.placement.score", lambda *_: (None, "no_centroids"))
    with pytest.raises(Unproven, match="expected ELDR for reason 'similarity'"):
        measure(BAND)


def test_a_prior_without_centroids_is_no_prior(monkeypatch):
    monkeypatch.setattr("eldr_router.plan.placement.score", lambda *_: (None, "no_centroids"))
    with pytest.raises(Unproven, match=r"'union', False"):
        measure(UNION)


def test_requests_that_are_all_the_same_are_told(monkeypatch):
    monkeypatch.setattr(decision, "count", lambda: iter(lambda: 0, 1))
    with pytest.raises(Unproven, match="1 different requests"):
        measure(UNION)


def test_unions_that_nobody_joins_are_told(monkeypatch):
    monkeypatch.setattr(Locality, "join", lambda *_: None)
    with pytest.raises(Unproven, match=r"unions hold \{\}, in flight are \{'d"):
        measure(UNION)


def test_unions_that_nobody_leaves_are_told(monkeypatch):
    monkeypatch.setattr("eldr.core.union.Stay.leave", lambda _: None)
    with pytest.raises(Unproven, match="unions hold"):
        measure(UNION)


def test_unions_of_other_layers_are_told(monkeypatch):
    monkeypatch.setattr(decision, "Locality", lambda most_layers: Locality(most_layers + 1))
    with pytest.raises(Unproven, match="unions are of 3 layers"):
        measure(UNION)


def test_unsigned_requests_that_count_for_nothing_are_told(monkeypatch):
    expect = Locality.expect

    def blind(self, signature, engines, field):
        held = self.unions.table() if self.unions else {}
        totals = [held.get(engine, (0, None))[0] for engine in engines]
        return expect(self, signature, engines, field._replace(totals=totals))

    monkeypatch.setattr(Locality, "expect", blind)
    with pytest.raises(Unproven, match="unsigned requests beside"):
        measure(MIXED)
    measure(UNION)


def test_another_policy_than_named_is_told(monkeypatch):
    def place(self, table, *arguments, exact=Placer.place, **more):
        return exact(self, table, *arguments, **more)._replace(policy="JSQ")

    monkeypatch.setattr(Placer, "place", place)
    with pytest.raises(Unproven, match="expected ELDR"):
        measure(BAND)
