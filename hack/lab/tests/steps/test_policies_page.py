"""The page of `make -C hack/lab bench-policies` holds what the traces found together."""

import json

import numpy as np
import pytest
from scipy.stats import ttest_rel

from eldr_lab.steps import policies_figures, policies_page
from eldr_lab.steps.outcome import MEASURES

JSQ, PRIOR = "JSQ", "MarginalUnion:prior=0.23"
JSQ_TIMES = (0.050, 0.052, 0.049, 0.055, 0.051, 0.050)
OTHER_TIMES = (0.047, 0.050, 0.047, 0.052, 0.0495, 0.046)


def row(trace, *, holds, law=9e-4, learned=9.5e-4):
    times = {JSQ: JSQ_TIMES[trace], PRIOR: OTHER_TIMES[trace]}
    rng = np.random.default_rng(trace)
    fit = {"constants": [9e-3, law * (1 + 0.01 * rng.normal()), 4e-4], "r2": 0.95, "r2_batch": 0.8, "steps": 1000}  # fmt: skip
    predicted = {name: {"active experts": 31.0, "TPOT P50": seconds} for name, seconds in times.items()}
    return {
        "setting": {"engines": 4, "batch": 12, "requests": 120, "holds": holds},
        "trace": trace,
        "commit": "commit abc",
        "date": "2026-11-23",
        "slowness": [0.9, 1.4],
        "found": {
            "rate": 17.5,
            "requests": 110 + trace,
            "policies": {name: dict.fromkeys(MEASURES, 30.0) | {f"TPOT {m}": seconds for m in ("mean", "P50", "P99")} for name, seconds in times.items()},
            "proofs": {
                name: {"reason": reason, "decisions": 150, "unlike": 20, "answered": 110, "tokens": 7000}
                for name, reason in ((JSQ, "fewest in flight"), (PRIOR, "union and prior"))
            },
            "law": fit,
            "laws": dict.fromkeys(times, fit),
            "learned": {JSQ: {"constants": fit["constants"], "expert_error": 1e-5}, PRIOR: {"constants": [9e-3, learned, 4e-4], "expert_error": 1e-5}},
            "predicted": {} if holds else predicted,
        },
    }  # fmt: skip


def results(traces, **options):
    about = {
        "machine": "a CPU",
        "vllm": "0.32.0",
        "dtype": "float32",
        "kinds": ["french"],
        "prompts": 180,
        "reference": 0.023,
        "batches": {
            "constants": [8e-3, 8e-4, 3e-4],
            "intervals": [[7e-3, 9e-3], [7.5e-4, 8.5e-4], [2e-4, 4e-4]],
            "r2": 0.97,
            "r2_batch": 0.6,
        },
    }
    rows = [row(trace, holds=holds, **options) for trace in range(traces) for holds in (False, True)]
    return json.loads(json.dumps(policies_figures.as_json(about, rows), allow_nan=False))


def test_changes_are_paired_by_trace_with_students_interval():
    (one, _) = policies_figures.measured(results(6))
    mean, half = one.changes["TPOT P50"]
    changes = 100 * (np.array(OTHER_TIMES) / np.array(JSQ_TIMES) - 1)
    expected = ttest_rel(changes, np.zeros(6)).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((expected.low, expected.high))
    assert one.changes["active experts"] == (0.0, 0.0)
    assert (one.policy, one.traces) == ("MarginalUnion + prior", 6)


def test_verdicts_rest_on_six_traces_and_the_interval_alone():
    (one, _) = policies_figures.measured(results(6))
    assert one.verdict("TPOT mean") == "shorter over 6 traces"
    wide = one._replace(changes={"TPOT mean": (-3.0, 3.1), "TPOT P99": (3.2, 3.1)})
    assert wide.verdict("TPOT mean") == "not distinguished over 6 traces"
    assert wide.verdict("TPOT P99") == "longer over 6 traces"


@pytest.mark.parametrize("traces", [1, 2, 5])
def test_a_page_of_few_traces_says_so_and_calls_nothing_shorter(traces):
    text = policies_page.page(results(traces))
    assert f"**Of {traces} of 6 traces: too few" in text
    assert f"too few traces ({traces})" in text
    assert "shorter" not in text
    assert "longer" not in text
    assert "nan" not in text


def test_the_page_says_what_was_found():
    text = policies_page.page(results(6, learned=2e-3))
    assert "too few" not in text
    assert "| 4 engines, 17.5 requests/s | MarginalUnion + prior | shorter over 6 traces |" in text
    assert "P99 rests on 110 to 115 requests of each trace" in text
    assert "commit abc" in text
    assert "it takes 23.0 ms" in text
    assert "| MarginalUnion + prior | union and prior | 900 | 120 | 660 | 42000 |" in text
    rows = [line for line in text.splitlines() if line.startswith("| 4 engines, 17.5 requests/s |")]
    assert [line.split("|")[-2].strip() for line in rows[-2:]] == ["agree", "**apart**"]
    assert (
        "| batches of bench-steps | 8.000 ±1.000 | 0.800 ±0.050 |  | 0.300 ±0.100 | 0.970 | 0.600 |" in text
    )
    (pool,) = [line for line in text.splitlines() if line.startswith("| 4 engines, 17.5 requests/s | 9.000")]
    assert float(pool.split("|")[4].split()[0]) == pytest.approx(12.5, abs=2), "against the batches"
    assert text.count("`eldr simulate`'s code") == 1, (
        "there is no prediction where the number in flight is held"
    )


def test_the_picture_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(policies_page, "PICTURE", tmp_path / "policies.png")
    policies_page.draw(results(6))
    assert (tmp_path / "policies.png").stat().st_size > 1000
