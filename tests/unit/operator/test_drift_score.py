"""The statistic: against SciPy's laws, and against samples of one distribution."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from eldr.contract import SIMILARITY_BINS
from eldr_operator.drift.counts import Counts
from eldr_operator.drift.score import (
    ALPHA,
    LEAST_BASELINE,
    MOVED,
    SIGNALS,
    compare,
    compare_spans,
    critical,
    in_groups,
    pair_dispersion,
)

ALONE = (1.0, 1.0)


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def draw(rng, n, shares=(0.4, 0.3, 0.2, 0.1), centre=0.8, spread=0.05, size=1):
    """Draw requests in groups of one size that are alike."""
    cluster = np.repeat(rng.choice(len(shares), n // size, p=shares), size)
    value = np.repeat(np.clip(rng.normal(centre, spread, n // size), 0, 0.999), size)
    similarity = np.bincount((value * SIMILARITY_BINS).astype(int), minlength=SIMILARITY_BINS)
    clusters = np.bincount(cluster, minlength=len(shares))
    return Counts(tuple(similarity.tolist()), tuple(clusters.tolist()), len(cluster))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 15, 64, 255])
@pytest.mark.parametrize("alpha", [0.01, 1e-4, ALPHA / SIGNALS, 1e-7])
def test_the_critical_value_is_that_of_the_chi_square_distribution(freedom, alpha):
    assert critical(freedom, alpha) == pytest.approx(stats.chi2.isf(alpha, freedom), rel=1e-9)


def test_the_statistic_is_that_of_pearsons_test_of_two_samples(rng):
    first, second = draw(rng, 600), draw(rng, 900, shares=(0.3, 0.3, 0.2, 0.2))
    table = np.array([first.clusters, second.clusters])
    # SciPy pools by size, ours by certainty: with equal dispersions that is the same
    expected = stats.chi2_contingency(table, correction=False).statistic
    assert compare(first, second, ALONE, 1.0).clusters.ratio * critical(3) == pytest.approx(expected)


def test_samples_of_one_distribution_are_judged_alike_as_often_as_stated(rng):
    ratios = []
    for _ in range(800):
        score = compare(draw(rng, 200), draw(rng, 1500), ALONE, 1.0)
        ratios.append((score.similarity.ratio * critical(9), score.clusters.ratio * critical(3)))
    over = (np.array(ratios) > [stats.chi2.isf(0.05, 9), stats.chi2.isf(0.05, 3)]).mean(axis=0)
    assert np.all((over > 0.02) & (over < 0.08)), over


@pytest.mark.parametrize(("k", "size"), [(64, 60), (64, 150), (128, 250), (256, 250)])
def test_many_clusters_of_the_same_traffic_are_alike(k, size, rng):
    even = (1 / k,) * k
    ratios = [
        compare(draw(rng, size, even), draw(rng, 500, even), ALONE, 1.0).clusters.ratio for _ in range(300)
    ]
    assert max(ratios) < 1


def test_requests_that_come_together_are_allowed_for(rng):
    groups = [draw(rng, 1500, size=6) for _ in range(300)]
    expected = draw(rng, 600)
    found = np.array(
        [pair_dispersion(expected, a, b) for a, b in zip(groups[::2], groups[1::2], strict=True)]
    )
    assert found.mean(axis=0) == pytest.approx([6.0, 6.0], rel=0.25)
    naive = np.mean([compare(expected, one, ALONE, 0.0).similarity.ratio for one in groups])
    told = np.mean([compare(expected, one, (6.0, 6.0), 0.0).similarity.ratio for one in groups])
    assert told < naive / 2


def test_a_thinned_baseline_varies_less(rng):
    baseline, window = draw(rng, 200), draw(rng, 1500, centre=0.78)
    ratios = [compare(baseline, window, (8.0, 8.0), share).similarity.ratio for share in (1.0, 1 / 3, 0.01)]
    assert ratios == sorted(ratios)


def test_a_trifle_does_not_count_however_many_requests_show_it(rng):
    baseline = draw(rng, 100_000)
    score = compare(baseline, draw(rng, 1_000_000, shares=(0.43, 0.27, 0.2, 0.1)), ALONE, 1.0)
    assert score.clusters.ratio > 10
    assert score.clusters.score < 1
    assert score.clusters.moved == pytest.approx(0.03, abs=0.005)
    more = compare(baseline, draw(rng, 1_000_000, shares=(0.52, 0.18, 0.2, 0.1)), ALONE, 1.0)
    assert more.clusters.score == pytest.approx(0.12 / MOVED, rel=0.05)


@pytest.mark.parametrize(
    "changed", [{"centre": 0.5}, {"centre": 0.95}, {"shares": (0.1, 0.2, 0.3, 0.4)}, {"spread": 0.15}]
)
def test_a_change_counts(changed, rng):
    assert compare(draw(rng, 300), draw(rng, 1500, **changed), (3.0, 3.0), 0.1).value > 1


def test_spans_are_compared_in_the_groups_of_the_baseline(rng):
    baseline = draw(rng, 300)
    assert compare_spans(baseline, draw(rng, 1500), draw(rng, 1500), ALONE).value < 0.7
    assert compare_spans(baseline, draw(rng, 1500), draw(rng, 1500, centre=0.6), ALONE).value > 1


def test_a_baseline_that_says_nothing_is_not_used(rng):
    window = draw(rng, 1500)
    assert compare(draw(rng, LEAST_BASELINE - 1), window, ALONE, 1.0) is None
    assert compare(draw(rng, 200, shares=(0.5, 0.5)), window, ALONE, 1.0) is None
    assert compare(draw(rng, LEAST_BASELINE), window, ALONE, 1.0) is not None


def test_all_requests_in_one_bin_leave_the_clusters_to_tell():
    one = [0] * SIMILARITY_BINS
    one[99] = 300
    baseline = Counts(tuple(one), (150, 150), 300)
    same = compare(baseline, Counts(tuple(one), (140, 160), 300), ALONE, 1.0)
    assert (same.similarity.score, same.similarity.moved) == (0.0, 0.0)
    assert compare(baseline, Counts(tuple(one), (10, 290), 300), ALONE, 1.0).value > 1


def test_requests_that_were_as_expected_make_the_baseline_more_certain(rng):
    baseline, window = draw(rng, 150), draw(rng, 1500, shares=(0.3, 0.3, 0.2, 0.2))
    known = in_groups(baseline, draw(rng, 5000))
    assert sum(known[0]) == sum(known[1]) == 5000
    more = in_groups(baseline, draw(rng, 1000), known)
    assert [sum(one) for one in more] == [6000, 6000]
    alone = compare(baseline, window, (4.0, 4.0), 0.1)
    assert compare(baseline, window, (4.0, 4.0), 0.1, more).clusters.ratio > 1.5 * alone.clusters.ratio
    # of another baseline's groups they say nothing
    assert compare(baseline, window, (4.0, 4.0), 0.1, ((5, 5), (5,))) == alone


counts = st.lists(st.integers(0, 500), min_size=4, max_size=4).filter(
    lambda found: sum(found) >= LEAST_BASELINE
)


@given(counts, counts, st.floats(1, 50), st.floats(0, 1))
def test_any_counts_have_a_score(first, second, factor, thinning):
    def made(clusters):
        similarity = [*clusters, *[0] * (SIMILARITY_BINS - 4)]
        return Counts(tuple(similarity), tuple(clusters), sum(clusters))

    score = compare(made(first), made(second), (factor, factor), thinning)
    assert 0 <= score.value < float("inf")
    assert 0 <= score.similarity.moved <= 1
    assert compare(made(first), made(first), (factor, factor), thinning).value == pytest.approx(0)
