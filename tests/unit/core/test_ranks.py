import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import rankdata, spearmanr

from eldr.core import ranks
from eldr.core.ranks import RankCorrelation, ascending, centred_ranks

numbers = (
    st.integers(0, 8).map(float)
    | st.floats(-3, 3)
    | st.floats(1.0, 1.0 + 1e-12)
    | st.floats(-1e120, 1e120)
    | st.just(5e-324)
)


@pytest.mark.slow
@given(arrays(np.float64, st.integers(2, 60), elements=numbers))
def test_ranks_are_scipys(values):
    np.testing.assert_allclose(centred_ranks(values), rankdata(values) - rankdata(values).mean(), atol=1e-9)


@pytest.mark.slow
@given(arrays(np.float64, st.integers(1, 60), elements=numbers))
def test_the_order_ascends_and_ties_are_told(values):
    order, tied = ascending(values, np.arange(len(values)))
    assert sorted(order.tolist()) == list(range(len(values)))
    assert (np.diff(values[order]) >= 0).all()
    assert tied or len(set(values.tolist())) == len(values)


def test_values_that_differ_in_their_last_bit_alone_are_told_apart():
    values = np.nextafter(0.3, 1.0, dtype=np.float64) * np.ones(50_000)
    values[::2] = 0.3
    np.testing.assert_array_equal(centred_ranks(values), rankdata(values) - 25_000.5)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_rho_is_scipys(seed, ties):
    rng = np.random.default_rng(seed)
    x, y = (np.round(rng.normal(size=50), 1 if ties else 9) for _ in range(2))
    assert RankCorrelation(y)(x) == pytest.approx(spearmanr(x, y).statistic, abs=1e-9)


def test_constant_distances_have_no_correlation():
    assert RankCorrelation(np.arange(5.0))(np.ones(5)) == 0.0
    assert RankCorrelation(np.zeros(5))(np.arange(5.0)) == 0.0


def clouds(seed, n, shape):
    """Return candidates and a target that agree more or less."""
    rng = np.random.default_rng(seed)
    x = {
        "even": lambda: rng.random(n),
        "of one part far away": lambda: np.where(rng.random(n) < 1e-3, 9.0, rng.random(n) * 1e-3),
        "in steps": lambda: np.round(rng.random(n), 2),
        "heavy-tailed": lambda: rng.standard_cauchy(n),
    }[shape]()
    return x, x.argsort().argsort() / n + rng.normal(0, rng.uniform(0.01, 3), n)


@pytest.mark.parametrize("shape", ["even", "of one part far away", "in steps", "heavy-tailed"])
@pytest.mark.parametrize("bins", [ranks.BINS, 64])
@pytest.mark.parametrize("n", [30, 30_000])
def test_an_estimate_is_as_near_as_it_says(monkeypatch, shape, bins, n):
    monkeypatch.setattr(ranks, "BINS", bins)
    for seed in range(5):
        x, y = clouds(seed, n, shape)
        correlation = RankCorrelation(y)
        rho, error = correlation.estimate(x)
        assert abs(rho - correlation(x)) <= error + 1e-12


def test_an_estimate_of_evenly_spread_values_is_near():
    x, y = clouds(0, 30_000, "even")
    assert RankCorrelation(y).estimate(x).error < 2e-5


def test_where_bins_tell_nothing_an_estimate_says_so():
    assert RankCorrelation(np.arange(5.0)).estimate(np.ones(5)) == (0.0, np.inf)
