"""The study of long contexts, and its page."""

import json

from eldr_lab.studies.contexts import CASES, FIGURES, PAGE, POLICIES, Case, job, page


def test_cases_are_found_by_keys_of_their_own():
    assert len({case.key for case in CASES}) == len(CASES)
    assert any(not case.share for case in CASES), "where no prompt is long, nothing should be lost"


def test_a_small_case_is_measured_and_told():
    case = Case(112_000, 0.3, 4.0)
    figures = {case.key: {str(seed): job(case, seed, requests=60, end=50.0) for seed in (0, 1)}}
    (found,) = figures.values()
    for run in found.values():
        assert set(run) == set(POLICIES)
        assert all(one["preemptions"] == 0 for name, one in run.items() if "requests only" not in name)
        assert all(one["refused"] == 0 for name, one in run.items() if "requests only" in name)
        assert all("long_p99" in one for one in run.values())
        assert all(0.005 < one["tpot_p50"] <= one["tpot_p99"] < 0.1 for one in run.values())
    assert "## Every cell\n" in page(figures)


def test_the_page_is_that_of_its_figures():
    assert page(json.loads(FIGURES.read_text())) == PAGE.read_text()
