"""The study of the learned prior, and its page."""

import json

import pytest

from eldr_lab.evidence.cells import GEOMETRIES, SMOKE, STRENGTHS, strengths
from eldr_lab.pool.contenders import parse_contender
from eldr_lab.studies.prior import FIGURES, PAGE, POLICIES, Case, cases, key, measure, page
from eldr_lab.synthetic.activations import Synthetic
from eldr_lab.synthetic.study import prepare

REST = Case(group="rest", geometry="qwen3-30b", workload="task", rate=20.0)


def test_every_cell_is_found_by_a_key_of_its_own(monkeypatch):
    keys = {key(case) for case in cases()}
    assert len(keys) == len(cases())
    monkeypatch.setitem(STRENGTHS, REST.geometry, 0.5)
    assert key(REST) not in keys, "figures of other preferences are not found"


def test_the_page_is_that_of_its_figures():
    known = json.loads(FIGURES.read_text())
    assert page([(case, known[key(case)]) for case in cases()]) == PAGE.read_text()


@pytest.mark.parametrize("group", ["rest", "joins", "restart"])
def test_a_case_is_measured(group):
    case = Case(group=group, geometry="qwen3-30b", workload="task", rate=60.0)
    source = Synthetic(
        strengths("task", "qwen3-30b"), GEOMETRIES["qwen3-30b"],
        n_layers=SMOKE.layers, calibration=SMOKE.calibration, requests=SMOKE.requests,
    )  # fmt: skip
    prepared = prepare(source, 0, [case.engines], [parse_contender(name) for name in POLICIES.values()])
    found = measure(case, prepared, SMOKE)
    assert found.keys() == POLICIES.keys()
    assert ("new" in found["learned"]) == (group == "joins")
    assert found["none"]["most"] >= 100.0 >= found["none"]["least"]
