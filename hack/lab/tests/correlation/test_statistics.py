import numpy as np
import pytest
from scipy.stats import pearsonr

from eldr_lab.correlation import statistics as correlation

LAYERS, EXPERTS, TOP_K, STEPS = 2, 16, 2, 12


def test_activations_count_every_step_once(capture) -> None:
    found = capture(3)
    counts = found.activations
    assert counts.shape == found.prefill.shape
    assert (counts.sum(axis=2) == STEPS * TOP_K).all()
    assert counts[4, 1, 7] == (found.decode[4, :, 1] == 7).sum()


def test_pearson_is_pearsons() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 9, (2, 4, 8))
    assert correlation.pearson(x, y) == pytest.approx(pearsonr(x.ravel(), y.ravel()).statistic)
    assert correlation.pearson(x, np.ones_like(x)) == 0.0


def test_prompts_tell_their_own_steps_and_not_those_of_strangers(capture) -> None:
    found = capture()
    own = np.median(correlation.request_correlations(found))
    strangers = np.median(correlation.stranger_correlations(found, np.random.default_rng(0)))
    assert own > 0.5
    assert strangers < -0.3, "the other kind uses the other half"
    by_kind = correlation.kind_correlations(found)
    assert set(by_kind) == {"a", "b"}
    assert min(by_kind.values()) > own, "sums over requests are less noisy than single ones"


def test_without_loyalty_nothing_correlates(capture) -> None:
    found = capture(loyalty=0.5)
    assert abs(np.median(correlation.request_correlations(found))) < 0.15


def test_a_union_counts_an_expert_once() -> None:
    experts = np.array([[[0, 1], [2, 3]], [[1, 0], [2, 5]]], dtype=np.uint16)
    assert correlation.union(experts, EXPERTS) == 2.5


def test_batches_of_one_kind_use_fewer_experts(capture) -> None:
    found = correlation.unions(capture(), 8, np.random.default_rng(0))
    assert found.same < found.mixed
    assert found.change == pytest.approx(found.same / found.mixed - 1)
    assert found.change < -3 * found.error
    assert found.mixed <= EXPERTS


def test_a_batch_larger_than_a_kind_is_refused(capture) -> None:
    with pytest.raises(ValueError, match="a kind has 5 requests, fewer than 8"):
        correlation.unions(capture(5), 8, np.random.default_rng(0))
