import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from eldr.core.ranks import RankCorrelation


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_rho_is_scipys(seed, ties):
    rng = np.random.default_rng(seed)
    x, y = (np.round(rng.normal(size=50), 1 if ties else 9) for _ in range(2))
    assert RankCorrelation(y)(x) == pytest.approx(spearmanr(x, y).statistic, abs=1e-9)


def test_constant_distances_have_no_correlation():
    assert RankCorrelation(np.arange(5.0))(np.ones(5)) == 0.0
    assert RankCorrelation(np.zeros(5))(np.arange(5.0)) == 0.0
