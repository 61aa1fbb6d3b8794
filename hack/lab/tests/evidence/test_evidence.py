"""A few tiny cells through everything: what is tested is the machinery, not what is true."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

from eldr_bench.machine import ROOT
from eldr_lab.evidence.__main__ import write
from eldr_lab.evidence.cells import BAND, BLIND, JSQ, MARGINAL, PRIOR, SMOKE, full, smoke
from eldr_lab.evidence.pages import Standing, recommended, rows
from eldr_lab.evidence.published import Verdict, judge
from eldr_lab.evidence.running import BEST, P50, Plan, Results, prove, run
from eldr_lab.report import Interval, interval, table


@pytest.fixture(scope="module")
def results() -> Results:
    plan = Plan(smoke(), (0, 1), SMOKE, more=(2,))
    return Results(plan, run(plan), "commit 1")


def test_pages_hold_their_figures_and_links_lead_to_files(results, tmp_path):
    write(results, tmp_path)
    made = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.md")}
    assert made.keys() == {"evidence.md", "evidence/default.md", "evidence/reproduction.md"}
    for name, text in made.items():
        assert not re.search(r"\{|\bnan\b", text)
        committed = (ROOT / "docs" / name).read_text()
        assert re.findall("^#.*", text, re.MULTILINE) == re.findall("^#.*", committed, re.MULTILINE)
        for target in re.findall(r"\]\(([^)#:]+)[)#]", text):
            assert (ROOT / "docs" / name).parent.joinpath(target).exists(), (name, target)


def test_full_grid_holds_the_papers_cells():
    assert len(full()) == len(set(full())) == 3 * 2 * 5 + 2 * 4
    assert all(BLIND in cell.policies for cell in full() if cell.experiment == "uneven")


def test_duellists_are_compared_over_more_seeds(results):
    cell = results.cells("main")[0]
    ratio = {
        seed: results.value(cell, PRIOR, P50, seed) / results.value(cell, BAND, P50, seed)
        for seed in (0, 1, 2)
    }
    fresh = results.change([cell], PRIOR, BAND, P50)
    assert fresh.mean == pytest.approx(100 * (ratio[2] - 1)), "constants were not chosen under that seed"
    changes = [
        100 * (results.value(cell, BAND, P50, seed) / results.value(cell, JSQ, P50, seed) - 1)
        for seed in (0, 1, 2)
    ]
    assert results.change([cell], BAND, JSQ, P50) == interval(changes)
    best = results.best(cell, P50)
    assert results.change([cell], BAND, best, P50) == results.change([cell], BAND, BEST, P50)


def test_each_published_number_has_one_row_and_no_figure_of_the_policy_was_tuned(results):
    found = rows(results)
    assert len({row[0] for row in found}) == len(found)
    assert not any("band" in row[0] for row in found if row[3])


def test_no_figures_come_of_a_prior_that_decided_as_none_does():
    one, other = (SimpleNamespace(engine=np.array(at)) for at in ([0, 1], [1, 0]))
    prove(full()[0], {MARGINAL: one, PRIOR: other, JSQ: one})
    with pytest.raises(SystemExit, match=r"prior=0.23 placed every request as MarginalUnion did"):
        prove(full()[0], {MARGINAL: one, PRIOR: one})


def test_recommendation_follows_its_rule():
    def standing(policy, mean, worst):
        some = Interval(mean, 0.1)
        return Standing(policy, some, some, some, Interval(worst, 0.1), full()[0])

    quick, safe = standing(BAND, -20.0, 5.0), standing(PRIOR, -10.0, -1.0)
    assert recommended([quick, safe]) is safe
    assert recommended([quick, standing(PRIOR, -10.0, 8.0)]) is quick
    assert recommended([safe, standing(BAND, -12.0, 0.5)]).policy == BAND


@pytest.mark.parametrize(
    ("ours", "low", "high", "verdict"),
    [
        (Interval(-9.0, 0.2), -12.0, -12.0, Verdict.REPRODUCED),  # the end of a quarter less
        (Interval(-8.7, 0.2), -12.0, -12.0, Verdict.UNDERSTATED),
        (Interval(-8.7, 0.4), -12.0, -12.0, Verdict.REPRODUCED),  # a wider interval reaches it
        (Interval(-3.0, 9.0), -12.0, -12.0, Verdict.NOT),  # but not any width
        (Interval(-18.0, 0.5), -21.0, -17.0, Verdict.REPRODUCED),
        (Interval(-0.9, 1.0), -1.1, -1.1, Verdict.NOT),  # the published number is an effect, ours may be none
        (Interval(-0.4, 1.0), -0.8, -0.8, Verdict.REPRODUCED),  # both are nothing, within the tolerance
        (Interval(-12.0, math.nan), -12.5, -12.5, Verdict.REPRODUCED),  # one seed: the mean alone
    ],
)
def test_judge(ours, low, high, verdict):
    assert judge(ours, low, high) is verdict


def test_interval_is_students():
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.half) == pytest.approx((2.0, 4.303 / math.sqrt(3)), rel=1e-3)
    assert str(interval([-0.04])) == "-0.0"
    with pytest.raises(ValueError, match="expected 2 cells"):
        table(("a", "b"), [("1",)])
