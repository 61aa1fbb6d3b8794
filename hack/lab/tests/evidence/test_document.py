"""A few tiny cells through everything: what is tested is the machinery, not what is true."""

import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from eldr_bench.machine import ROOT
from eldr_lab.evidence import advice, details, document, opening, real, routing
from eldr_lab.evidence.__main__ import beside, main, write
from eldr_lab.evidence.cells import (
    BAND,
    BLIND,
    CEILING,
    FULL,
    JSQ,
    MAIN,
    MARGINAL,
    PRIOR,
    RATES,
    ROLLING,
    SMOKE,
)
from eldr_lab.evidence.document import pages
from eldr_lab.evidence.grid import full, smoke
from eldr_lab.evidence.intervals import Interval
from eldr_lab.evidence.reproduction import rows, top1
from eldr_lab.evidence.results import BEST, EXPERTS, FIRST_P50, MEAN, P50, Results
from eldr_lab.evidence.running import Plan, prove, run
from eldr_lab.steps.policies_figures import Measured

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def results() -> Results:
    plan = Plan(smoke(), (0, 1), SMOKE, more=(2,), ceilings=1, factors={"qwen3-30b": 0.9})
    return Results(plan, run(plan))


def test_two_runs_agree_whoever_ends_first(results):
    with ThreadPoolExecutor(2) as executor:
        again = run(Plan(results.plan.cells, (1,), SMOKE, factors=results.plan.factors), executor)
    here = {(one.group, key): value for one in results.found for key, value in one.runs.items()}
    for one in again:
        assert all(here[one.group, key] == value for key, value in one.runs.items())


@pytest.fixture(scope="module")
def written(results, tmp_path_factory) -> Path:
    return write(results, tmp_path_factory.mktemp("docs")).parent


def test_pages_hold_every_picture_and_every_link_leads_to_a_file(results, written):
    made = pages(results, beside())
    assert {name: (written / name).read_text() for name in made} == made
    pictures = set()
    for name, text in made.items():
        assert "nan" not in text.replace("finance", "")
        for target in re.findall(r"\]\(([^)#]+)[)#]", text):
            path = (written / name).parent / target
            if "images/evidence/" in target:
                pictures.add(path.resolve())
                assert path.stat().st_size > 1000
            elif "evidence" in target:
                assert path.exists(), (name, target)
            elif not target.startswith("http"):
                assert (DOCS / name).parent.joinpath(target).exists(), (name, target)
    assert pictures == {path.resolve() for path in (written / "images" / "evidence").iterdir()}


def test_first_page_fits_two_screens_and_opens_with_the_table(written):
    lines = (written / "evidence.md").read_text().splitlines()
    assert len(lines) <= 80
    head = next(line for line in lines if line.startswith("|"))
    assert head == "| P50 / P99, % against the balancer | paper: band | band | default | ceiling |"
    assert lines.index(head) < 6
    assert any(line.startswith("| Qwen3-30B, task | -13.9 / -6.0 |") for line in lines)


def test_committed_pages_and_pictures_belong_together():
    texts = [
        (DOCS / "evidence.md").read_text(),
        *(path.read_text() for path in (DOCS / "evidence").iterdir()),
    ]
    named = {name for text in texts for name in re.findall(r"\]\((?:\.\./)?images/evidence/([^)]+)\)", text)}
    assert named == {path.name for path in (DOCS / "images" / "evidence").iterdir()}


def test_each_published_number_has_one_row_and_tuned_ones_are_marked(results):
    found = [*rows(results), *routing.rows(routing.read())]
    assert len({row.what for row in found}) == len(found)
    tuned = [row.what for row in found if row.tuned]
    assert len(tuned) == 5, tuned  # Domain twice, unions twice, rho
    assert not any("band" in what for what in tuned), "no figure of the policy was tuned to"


def test_published_tails_of_tau_0_stand_beside_the_cells_that_they_are_of():
    changes = {"task": Interval(11.3, 4.3), "language": Interval(9.0, 1.0)}
    told = SimpleNamespace(
        kinds=lambda experiment: [
            ("qwen3-30b", "task"),
            ("gemma-4-26b", "task"),
            ("gemma-4-26b", "language"),
        ],
        cells=lambda experiment, workload, geometry: [workload],
        change=lambda cells, *rest: changes[cells[0]],
    )
    task, language = top1(told)
    assert (task.what, task.ours.mean, task.published) == (
        "Gemma-4-26B, task: band, tau = 0, P99 against the best balancer", 11.3, "+6.7 (paper)"
    )  # fmt: skip
    assert (language.ours.mean, language.published) == (9.0, "+7.9 (paper)")
    assert "+6.7" not in str(document._MISSING)


def test_the_artifacts_sweeps_are_judged_like_for_like(results):
    what = {row.what: row for row in rows(results)}
    start = "Qwen3-30B, task, 60 requests/s: band, min-2, refit, "
    for name in (
        "P50 against",
        "P99 against",
        "tau = 0, P50 against",
        "tau = 0.3, P99 against",
        "plain K-means, P99 against",
    ):
        assert f"{start}{name} round robin" in what
    assert not any("tau = 0.1" in name for name in what)
    assert what[f"{start}tau = 0, P50 against round robin"].low == pytest.approx(100 * (22.84 / 26.97 - 1))
    (tau,), (other,) = (results.cells(name, "task") for name in ("tau", "clusters"))
    for measure in (P50, "tpot_p99"):  # the same requests, whatever the experiment is called
        assert results.values(tau, "ELDR:tau=0.1:min_candidates=2:refit=2.5", measure) == results.values(other, ROLLING, measure)  # fmt: skip


def test_ceiling_is_never_worse_than_the_policy_it_starts_from(results):
    for cell in results.cells("main"):
        ceiling, policy = (results.values(cell, name, MEAN, [2])[0] for name in (CEILING, PRIOR))
        assert ceiling <= policy
    assert results.share(results.cells("main"), PRIOR, CEILING, MEAN).mean <= 100.0 + 1e-9


def test_best_balancer_is_the_baseline_asked_for(results):
    cell = results.cells("main")[0]
    best = results.best(cell, P50)
    assert results.change([cell], best, BEST, P50).mean == pytest.approx(0.0)
    assert results.change([cell], BAND, best, P50) == results.change([cell], BAND, BEST, P50)


def test_full_grid_holds_the_papers_cells():
    cells = full()
    main_cells = [cell for cell in cells if cell.experiment == "main"]
    assert len(main_cells) == 3 * 2 * 5
    assert all(set(MAIN) == set(cell.policies) for cell in main_cells)
    pools = {(cell.engines, cell.workload, cell.rate) for cell in cells if cell.experiment == "pool"}
    assert pools == set(itertools.product((8, 24), ("language",), RATES))
    assert {cell.layers for cell in cells if cell.experiment == "deep"} == {48}
    assert all(BLIND in cell.policies for cell in cells if cell.experiment == "uneven")
    assert len(set(cells)) == len(cells)
    assert FULL.output_tokens == 512


def test_duellists_are_compared_over_more_seeds(results):
    cells = results.cells("main")
    assert results.seeds(cells, (BAND, PRIOR)) == [0, 1, 2]
    assert results.seeds(cells, (BAND, "Domain")) == [0, 1]
    assert results.seeds(results.cells("drift"), (BAND, PRIOR)) == [0, 1, 2]
    assert results.seeds(results.cells("steps"), (BAND, PRIOR)) == [0, 1]
    known = dict(zip((0, 1, 2), results.values(cells[0], PRIOR, P50, (0, 1, 2)), strict=True))
    band = results.values(cells[0], BAND, P50, (0, 1, 2))
    changes = [100 * (known[seed] / band[seed] - 1) for seed in (0, 1, 2)]
    fresh = results.change(cells[:1], PRIOR, BAND, P50)
    assert fresh.mean == pytest.approx(changes[2]), (
        "the constants of MarginalUnion were not chosen under that seed"
    )
    plain = results.values(cells[0], JSQ, P50, (0, 1, 2))
    expected = [100 * (band[seed] / plain[seed] - 1) for seed in (0, 1, 2)]
    assert results.change(cells[:1], BAND, JSQ, P50).mean == pytest.approx(sum(expected) / 3)
    assert results.values(cells[0], PRIOR, P50) == [known[0], known[1]]


def test_every_part_is_simulated_as_its_cell_says(results):
    cold, warm, lost, _ = results.cells("prefix", "task")
    assert results.mean(warm, JSQ, FIRST_P50) < results.mean(cold, JSQ, FIRST_P50)
    assert results.values(warm, JSQ, FIRST_P50) == results.values(lost, JSQ, FIRST_P50)
    assert results.values(warm, BAND, EXPERTS) != results.values(lost, BAND, EXPERTS)
    expected, sampled = results.cells("steps", "task")
    assert results.mean(sampled, JSQ, P50) == pytest.approx(results.mean(expected, JSQ, P50), rel=0.1)
    assert results.values(sampled, JSQ, P50) != results.values(expected, JSQ, P50)
    (main_cell,) = results.cells("main", "task")
    assert results.mean(main_cell, JSQ, FIRST_P50) > 1.3 * results.mean(expected, JSQ, FIRST_P50)


def standing(policy, mean, worst, cell):
    some = Interval(mean, 0.1)
    return advice.Standing(policy, some, some, some, Interval(worst, 0.1), cell)


@pytest.mark.parametrize(("law", "ends"), [("shipped", True), ("flat", False)])
def test_no_figures_come_of_a_prior_that_decided_as_none_does(law, ends):
    cell = next(cell for cell in full() if PRIOR in cell.policies and cell.law == law)
    one, other = (SimpleNamespace(worker=np.array(at)) for at in ([0, 1], [1, 0]))
    prove(cell, {MARGINAL: one, PRIOR: other, JSQ: one})
    raised = pytest.raises(SystemExit, match=r"prior=0.23 placed every request as MarginalUnion did")
    with raised if ends else nullcontext():
        prove(cell, {MARGINAL: one, PRIOR: one})


def test_no_figures_come_of_a_prior_whose_similarity_was_withheld(monkeypatch):
    monkeypatch.setattr("eldr_lab.pool.study._knowledge", lambda *told: (None, None))
    cells = tuple(replace(cell, policies=(MARGINAL, PRIOR)) for cell in smoke()[:1])
    with pytest.raises(SystemExit, match=r"decisions rest on {'union': .*}, not on union and prior"):
        run(Plan(cells, (0,), SMOKE))


def test_recommendation_follows_its_rule():
    cell = full()[0]
    quick, safe = standing(BAND, -20.0, 5.0, cell), standing(PRIOR, -10.0, -1.0, cell)
    assert advice.recommended([quick, safe]) is safe
    assert advice.recommended([quick, standing(PRIOR, -10.0, 8.0, cell)]) is quick
    assert advice.recommended([safe, standing(BAND, -12.0, 0.5, cell)]).policy == BAND


def test_command_refuses_no_seeds():
    done = CliRunner().invoke(main, ["--seeds", "0"])
    assert done.exit_code == 2


def test_what_was_not_measured_on_real_engines_is_told(tmp_path):
    text = real.read(tmp_path / "none.json", tmp_path / "none.json")
    assert "`make -C hack/lab bench-steps` has not been run" in text
    assert "`make -C hack/lab bench-policies` has not been run" in text


def test_figures_of_real_engines_come_with_verdicts(tmp_path):
    policies, laws = tmp_path / "policies.json", tmp_path / "steps.json"
    times = ("TPOT mean", "TPOT P50", "TPOT P99")
    values = dict.fromkeys((*times, "active experts", "batch", "tokens/s"), 0.02)
    changes = dict.fromkeys(values, (-5.0, 3.0)) | {"TPOT P50": (-1.0, 1.5), "TPOT P99": (5.0, 3.0)}
    pool = {
        "engines": 4,
        "batch": 12,
        "requests": [100] * 6,
        "traces": list(range(6)),
        "holds": True,
        "rate": None,
    }
    pool |= {"policies": {"JSQ": values, "ELDR": values}, "changes": {"ELDR": changes}}
    batches = {"constants": [0.006, 0.0006, 0.0002], "r2": 0.98, "r2_batch": 0.7}
    about = {"traces": 6, "machine": "a CPU", "dates": ["2026-11-23"], "dtype": "float32", "batches": batches}
    policies.write_text(json.dumps(about | {"pools": [pool]}))
    laws.write_text(
        json.dumps({"float32": {"constants": [0.01, 0.001, 0.0004], "r2": 0.95, "r2_batch": 0.7}})
    )
    text = real.read(policies, laws)
    assert "float32: T = 10.0 + 1.000 A + 0.400 B ms, R² 0.950" in text
    assert "on a CPU (2026-11-23), where the same batches gave float32: T = 6.0 + 0.600 A + 0.200 B ms" in text  # fmt: skip
    assert "4 engines, 48 requests kept in flight" in text
    assert "| band | shorter over 6 traces | not distinguished over 6 traces | longer over 6 traces |" in text
    (band,) = real.changes(policies)
    assert (band.policy, band.traces, band.changes["TPOT P99"]) == ("band", 6, (5.0, 3.0))


def test_mean_and_tail_on_real_engines_stand_on_the_first_page():
    changes = {"TPOT mean": (-3.0, 1.0), "TPOT P99": (1.1, 0.9)}
    (text,) = opening._less([Measured("4 engines", "MarginalUnion + prior", 6, changes)])
    assert (
        "changes the mean against JSQ by -3.0 ±1.0 %. P99 changes by +1.1 ±0.9 %. The pools: 4 engines."
        in text
    )


def test_times_that_round_robin_was_simulated_with_stand_beside_the_published_ones(results):
    text = details.laws(results)
    cells = results.cells("main", "task", "qwen3-30b")
    simulated = " / ".join(f"{1e3 * results.mean(cell, 'RoundRobin', P50):.1f}" for cell in cells)
    assert f"| {simulated} | 15.2 / 18.8" in text
    assert "factor (Qwen3-30B 0.9)" in text


def test_figures_of_an_older_form_are_none(tmp_path):
    policies = tmp_path / "policies.json"
    policies.write_text(json.dumps({"pools": []}))
    assert "has not been run" in real.read(policies, tmp_path / "none.json")
    assert real.changes(policies) == []


def test_gate_scores_stand_beside_the_papers_once_they_were_captured(tmp_path):
    assert routing.read(tmp_path / "none.json") is None
    assert "`make -C hack/lab correlation` has not been run" in routing.forms(None)
    pools = {name: dict.fromkeys(("tpot_p50", "tpot_p99", "active_per_token"), values)
             for name, values in {"JSQ": [2.0, 2.0], "counts": [1.8, 1.8], "counts x idf": [1.7, 1.72], "gate probability": [1.76, 1.78]}.items()}  # fmt: skip
    ranks = {
        "counts x idf": (0.7, 0.75),
        "counts": (0.72, 0.735),
        "gate probability": (0.6, 0.66),
        "binary": (0.1, 0.2),
    }
    pools["binary"] = pools["JSQ"]
    found = {
        "requests": 8, "experts": 64, "touched": 0.5, "pools": pools,
        "forms": {name: {"all": low, "chosen": high, "layers": [0]} for name, (low, high) in ranks.items()},
    }  # fmt: skip
    assert [row.verdict.value for row in routing.rows(found)] == ["reproduced", "reproduced"]
    text = routing.forms(found)
    assert "| counts x idf | 0.700 | 0.750 | 0.76 | -14.5 ±6.4 |" in text
    assert "changes P50 by -5.0 ±7.1 %" in text
