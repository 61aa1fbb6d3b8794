"""What a report recommends and says."""

import math
from dataclasses import fields, replace

import pytest

from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.simulate.comparison import Setting
from eldr.simulate.drafts import NO_DRAFTS
from eldr.simulate.measures import Measures
from eldr.simulate.policies import Settings, contenders
from eldr.simulate.report import as_json, notes

CALM = replace(Measures(**{field.name: 1 for field in fields(Measures)}), waited=0.0)
SETTING = Setting(
    step_time=QWEN3_30B_MI300X, speeds=(1.0,) * 4, rate=5.0, seconds=9.0, settings=Settings(), drafts=NO_DRAFTS
)  # fmt: skip
NAMES = "ELDR", "MarginalUnion"


def report(*rows, seeds=4, width=0.001):
    """Return a report of JSQ with 20 ms and rows of changes of mean and P99, which seeds spread by a width."""
    outcomes = []
    for seed in range(seeds):
        measures = [replace(CALM, tpot_mean=0.02, tpot_p50=0.02, tpot_p99=0.04)]
        for at, (mean, p99) in enumerate(rows):
            chance = width * (-1) ** (seed + at)
            times = {"tpot_mean": 0.02 * (1 + mean + chance), "tpot_p50": 0.02, "tpot_p99": 0.04 * (1 + p99)}
            measures.append(replace(CALM, **times))
        outcomes.append(measures)
    found = as_json(SETTING, contenders(NAMES), outcomes)
    return found | {"requests": "Requests.", "notes": ["one caveat"]}


@pytest.mark.parametrize(
    ("rows", "width", "recommended"),
    [
        ([(-0.2, -0.1), (-0.1, 0.0), (-0.15, -0.1)], 0.001, "ELDR"),
        ([(-0.10, 0.1), (-0.08, -0.05), (-0.099, -0.04)], 0.001, "MarginalUnion, no centroids"),
        ([(-0.0005, -0.1), (0.1, -0.1), (0.0, 0.0)], 0.0, None),
        ([(-0.01, -0.1), (0.1, -0.1), (0.0, 0.0)], 0.02, None),
    ],
)
def test_the_least_mean_and_tail_of_those_that_shorten_the_mean_is_recommended(rows, width, recommended):
    assert report(*rows, width=width)["recommended"] == recommended


def test_intervals_are_students():
    found = report((-0.2, 0.0), (0.0, 0.0), (0.0, 0.0), seeds=3, width=0.05)
    assert found["policies"][1]["change"]["tpot_mean"][1] == pytest.approx(
        4.302653 * 0.057735 / math.sqrt(3), rel=1e-4
    )
    alone = report((-0.2, -0.1), (0.0, 0.0), (0.0, 0.0), seeds=1)
    assert alone["policies"][1]["change"]["tpot_p99"] == (pytest.approx(-0.1), None)


def test_readers_hear_of_few_requests_and_of_full_engines():
    rows, calm = contenders(["ELDR"]), replace(CALM, batch=10.0)
    figures = as_json(SETTING, rows, [[calm, calm]] * 2)
    assert list(notes(figures, 100)) == []
    (few,) = notes(figures, 30)
    assert "30 different" in few
    (full,) = notes(as_json(SETTING, rows, [[calm, replace(calm, waited=0.4)]] * 2), 100)
    assert "ELDR 40%" in full
    assert list(notes(as_json(SETTING, rows, [[calm, calm]]), 100)) == ["one seed gives no intervals"]
