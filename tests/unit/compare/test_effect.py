"""The interval covers what it should: by simulation, with an effect and without."""

import math

import numpy as np
import pytest

from eldr.compare.course import windows
from eldr.compare.effect import change
from eldr.compare.figures import Figures
from eldr.compare.report import document, lines, report
from eldr.compare.run import Measured

RUNS = 4000


def simulated(draw, pairs, effect, *, trend=0.0, order=None):
    """Return figures of pairs whose load wanders by half, with a trend within each, and windows that scatter by 3 %."""
    wander = np.exp(np.cumsum(draw.normal(0, 0.15, pairs)))
    own_first = draw.random(pairs) < 0.5 if order is None else order
    late = np.where(own_first, -trend, trend)
    own = wander * (1 + effect) * np.exp(late / 2 + draw.normal(0, 0.03, pairs))
    other = wander * np.exp(-late / 2 + draw.normal(0, 0.03, pairs))
    return list(zip(own.tolist(), other.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [3, pytest.param(12, marks=pytest.mark.costly)])
@pytest.mark.parametrize("effect", [0.0, -0.08])
def test_the_interval_covers_the_truth_in_19_of_20_runs(pairs, effect):
    draw = np.random.default_rng(1)
    found = [change(simulated(draw, pairs, effect)) for _ in range(RUNS)]
    covered = sum(one.low <= effect <= one.high for one in found) / RUNS
    assert covered == pytest.approx(0.95, abs=0.012)


def test_a_random_order_keeps_a_trend_from_counting_as_an_effect():
    """Load that grows through every pair: always the same policy first is fooled, the order of the design is not."""
    draw = np.random.default_rng(4)
    orders = [np.array([one.is_own for one in windows(12, seed)[::2]]) for seed in range(500)]
    fixed = [change(simulated(draw, 12, 0.0, trend=0.1, order=np.ones(12, bool))) for _ in range(500)]
    drawn = [change(simulated(draw, 12, 0.0, trend=0.1, order=order)) for order in orders]
    assert sum(one.is_significant for one in fixed) > 450
    assert sum(one.is_significant for one in drawn) < 50


def test_which_policy_is_named_first_does_not_matter():
    pairs = simulated(np.random.default_rng(5), 12, -0.08)
    one, other = change(pairs), change([(b, a) for a, b in pairs])
    assert math.log1p(one.change) == pytest.approx(-math.log1p(other.change))
    assert math.log1p(one.low) == pytest.approx(-math.log1p(other.high))


def measured(*tpots, policy="JSQ"):
    return [
        Measured(n // 2, policy, t if isinstance(t, str) else Figures(t, 0.5, 900.0, 10))
        for n, t in enumerate(tpots)
    ]


def test_windows_without_figures_take_their_pair_with_them():
    found = report(
        measured(1.0, 1.1, "no traffic", 1.1, 1.0, 1.1, 1.0, 1.1), [True, False] * 4, "A", "JSQ", 7
    )
    assert found.pairs == 3
    assert found.left_out == ("pair 2, JSQ: no traffic",)
    assert found.changes["tpot"].change == pytest.approx(1 / 1.1 - 1)
    assert "-9.1 %" in "\n".join(lines(found))


def test_too_few_pairs_say_nothing():
    assert change([(1.0, 1.1)] * 2) is None
    found = report(measured(1.0, 1.1), [True, False], "A", "JSQ", 7)
    assert "fewer than 3 pairs" in "\n".join(lines(found))
    assert document(found)["tpot"]["change"] is None
