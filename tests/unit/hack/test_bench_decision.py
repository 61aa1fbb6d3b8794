"""The decision benchmark gives no figures for a pool that decides otherwise than its rows name."""

from dataclasses import replace

import pytest

from eldr.contract import POLICY_ELDR, POLICY_MARGINAL
from eldr_bench import decision
from eldr_bench.proof import Unproven
from eldr_router.placement.locality import Locality

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


def blind(self, signature, endpoints, situation, exact=Locality.expect):
    """Leave requests without a signature out of what an engine has."""
    held = self.unions.table() if self.unions else {}
    totals = [held.get(engine, (0, None))[0] for engine in (endpoint.name for endpoint in endpoints)]
    return exact(self, signature, endpoints, situation._replace(in_flight=totals))


NO_SCORE = "eldr_router.placement.choice.score", lambda *_: (None, "no_centroids")


@pytest.mark.parametrize(
    ("target", "fault", "case", "why"),
    [
        (*NO_SCORE, BAND, "expected ELDR for reason 'similarity'"),
        (
            "eldr_router.placement.locality.Locality.join",
            lambda *_: None,
            UNION,
            r"unions hold \{\}, in flight are \{'d",
        ),
        (
            "eldr_bench.decision.Locality",
            lambda most_layers: Locality(most_layers + 1),
            UNION,
            "unions are of 3 layers",
        ),
        ("eldr_router.placement.locality.Locality.expect", blind, MIXED, "unsigned requests beside"),
    ],
)
def test_a_pool_that_decides_otherwise_is_told(monkeypatch, target, fault, case, why):
    monkeypatch.setattr(target, fault)
    with pytest.raises(Unproven, match=why):
        measure(case)
