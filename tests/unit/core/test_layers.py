import numpy as np
import pytest
from scipy.stats import rankdata

from eldr.core.layers import choose_layers
from eldr.core.pairs import activation_distances, sample_pairs
from eldr.sim import traces


def problem(seed, n=14, layers=4, experts=5):
    rng = np.random.default_rng(seed)
    # Continuous values: small integers tie in exact arithmetic, and rounding then decides on their ranks.
    counts = rng.uniform(0, 9, (n, layers, experts)).astype(np.float32)
    activations = counts + rng.uniform(0, 9, counts.shape)
    pairs = sample_pairs(n, 1000, rng)
    return counts, activation_distances(activations, pairs), pairs


def plain_choice(counts, weights, activations, pairs, dtype):
    """Greedy selection with every product of all with all and SciPy's ranks: for comparison."""
    n, layers, _ = counts.shape
    flat = activations.reshape(n, -1).astype(dtype)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    target = rankdata(1.0 - (unit @ unit.T)[pairs].astype(np.float64))
    x = (counts * weights).astype(dtype)
    dots = [(x[:, layer] @ x[:, layer].T)[pairs].astype(np.float64) for layer in range(layers)]
    squares = [np.einsum("ne,ne->n", x[:, layer], x[:, layer]).astype(np.float64) for layer in range(layers)]
    dot, square, order, curve = 0.0, 0.0, [], []
    while len(order) < layers:
        values = {}
        for layer in sorted(set(range(layers)) - set(order)):
            norm = np.sqrt((square + squares[layer])[pairs[0]] * (square + squares[layer])[pairs[1]])
            values[layer] = np.corrcoef(rankdata(1.0 - (dot + dots[layer]) / norm), target)[0, 1]
        order.append(max(values, key=values.get))
        curve.append(values[order[-1]])
        dot, square = dot + dots[order[-1]], square + squares[order[-1]]
    return order, curve


def structured(seed, n, layers=6, experts=16):
    """Counts of prompts of five kinds, of which every second layer tells the experts of the decode steps."""
    rng = np.random.default_rng(seed)
    kinds = rng.normal(size=(2, 5, layers, experts))
    own = rng.normal(0, 0.4, (n, layers, experts))
    told = np.where(np.arange(layers) % 2 == 0, 1.2, 0.2)[:, None]
    kind, style = rng.integers(0, 5, (2, n))
    prompt = np.exp(kinds[0, kind] * told + kinds[1, style] * (1.4 - told) + own)
    return (rng.poisson(6 * mean).astype(np.uint16) for mean in (prompt, np.exp(kinds[0, kind] + own)))


def idf(counts):
    return np.log((len(counts) + 1) / (np.count_nonzero(counts, axis=0) + 1)).astype(np.float32)


@pytest.mark.parametrize("weighting", ["counts", "idf"])
@pytest.mark.parametrize(("seed", "n"), [(None, 0), *((seed, n) for seed in range(3) for n in (300, 1600))])
def test_the_choice_is_that_of_the_plain_greedy(seed, n, weighting):
    """That of double precision: counts' products are exact, those with idf nearly so."""
    if seed is None:
        captured = traces.load()
        counts = captured.prefill_counts
        activations = np.stack([captured.decode_counts(record, 100) for record in range(len(captured))])
    else:
        counts, activations = structured(seed, n)
    weights = idf(counts) if weighting == "idf" else np.ones(counts.shape[1:], np.float32)
    pairs = sample_pairs(len(counts), 5000, np.random.default_rng(7))
    order, curve = plain_choice(counts, weights, activations, pairs, np.float64)
    got = choose_layers(counts, activation_distances(activations, pairs), pairs, weights=weights)
    assert list(got.order) == order
    np.testing.assert_allclose(got.curve, curve, atol=1e-6 if weighting == "idf" else 1e-9)
    peak = int(np.argmax(curve)) + 1
    assert set(np.flatnonzero(got.mask)) == set(order[:peak])
    assert got.rho == max(got.curve)


def test_some_rows_are_as_good_as_those_alone():
    counts, activations = structured(4, 200)
    rows = np.sort(np.random.default_rng(0).choice(200, 90, replace=False))
    pairs = sample_pairs(90, 2000, np.random.default_rng(1))
    target = activation_distances(activations, pairs, rows)
    np.testing.assert_array_equal(target, activation_distances(activations[rows], pairs))
    some = choose_layers(counts, target, pairs, rows=rows)
    alone = choose_layers(counts[rows], target, pairs)
    assert (some.order, some.curve) == (alone.order, alone.curve)


def test_a_layer_nobody_uses_changes_nothing():
    counts, target, pairs = problem(1)
    wide = np.concatenate([counts, np.zeros_like(counts[:, :1])], axis=1)
    a, b = (choose_layers(c.astype(np.float32), target, pairs) for c in (counts, wide))
    assert b.rho == pytest.approx(a.rho)
    assert not b.mask[-1]


def test_ties_go_to_the_lowest_layer():
    counts, target, pairs = problem(2, layers=1)
    choice = choose_layers(np.repeat(counts, 3, axis=1).astype(np.float32), target, pairs)
    assert choice.order[0] == 0
    assert choice.mask.tolist() == [True, False, False]


def test_disagreeing_shapes_are_refused():
    counts, target, pairs = problem(3)
    with pytest.raises(ValueError, match="target: expected one distance per pair"):
        choose_layers(counts.astype(np.float32), target[1:], pairs)
    with pytest.raises(ValueError, match="NaN"):
        choose_layers(np.full(counts.shape, np.nan), target, pairs)
