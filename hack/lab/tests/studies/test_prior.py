"""The study of the learned prior, and its page."""

from dataclasses import replace

import pytest

from eldr_lab.evidence.cells import SMOKE
from eldr_lab.evidence.strengths import strengths
from eldr_lab.pool.contenders import parse_contender
from eldr_lab.pool.models import GEOMETRIES
from eldr_lab.pool.study import prepare
from eldr_lab.studies import prior
from eldr_lab.studies.prior_cases import POLICIES, Case, cases, measure
from eldr_lab.studies.prior_page import page
from eldr_lab.synthetic.activations import Synthetic


def figures(mean, none=-8.0, fitted=-10.0):
    one = {"p50": 0.0, "p99": 0.0, "most": 110.0, "least": 90.0, "new": 100.0}
    return {
        str(200 + seed): {
            "none": {"mean": none + 0.01 * seed, **one},
            "fitted": {"mean": fitted + 0.01 * seed, **one},
            "learned": {"mean": mean + 0.011 * seed, **one},
        }
        for seed in range(3)
    }


REST = Case(group="rest", geometry="qwen3-30b", workload="task", rate=20.0)


def test_every_cell_is_found_by_a_key_of_its_own():
    all_of_them = cases()
    assert (
        len({case.key for case in all_of_them})
        == len({prior.key(case) for case in all_of_them})
        == len(all_of_them)
    )
    assert {case.group for case in all_of_them} >= {
        "rest",
        "drift",
        "popular",
        "uneven",
        "size",
        "routers",
        "joins",
        "restart",
    }


def test_figures_of_other_preferences_are_not_found(monkeypatch):
    before = prior.key(REST)
    monkeypatch.setattr(prior, "factors", lambda: {REST.geometry: 0.5})
    assert prior.key(REST) != before


def test_the_bound_is_tighter_after_a_drift():
    text = page([(REST, figures(-9.6)), (replace(REST, group="drift"), figures(-9.6))])
    assert "The bound does not hold in 1:\n\n- Qwen3-30B, task, 20/s (after a drift)\n" in text
    row = next(line for line in text.splitlines() if line.startswith("| Qwen3-30B"))
    assert "| +0.40 ±0.00 |" in row
    assert "| holds |" in row
    assert "| -1.60 ±0.00 |" in row
    assert "**no**" in text
    assert "The bound does not hold in none." in page([(REST, figures(-9.6))])


@pytest.mark.parametrize("group", ["rest", "joins", "restart", "uneven"])
def test_a_case_is_measured(group):
    case = Case(group=group, geometry="qwen3-30b", workload="task", rate=60.0)
    source = Synthetic(
        strengths("task", 1.0),
        GEOMETRIES["qwen3-30b"],
        n_layers=SMOKE.layers,
        calibration=SMOKE.calibration,
        requests=SMOKE.requests,
    )
    prepared = prepare(source, 0, [case.engines], [parse_contender(name) for name in POLICIES.values()])
    found = measure(case, prepared, SMOKE)
    assert found.keys() == POLICIES.keys()
    assert ("new" in found["learned"]) == (group == "joins")
    assert found["none"]["most"] >= 100.0 >= found["none"]["least"]
