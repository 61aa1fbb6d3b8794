"""Which layers make the best signature: greedy forward selection by rank correlation with decode-time activations.

References
----------
.. [1] ELDR, arXiv 2607.00466: Spearman's rho between pairwise cosine distances of signatures and of decode-time
   activation vectors, over sampled pairs of requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.core.signature import TINY, Counts, check_counts

Pairs = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LayerChoice:
    """Result of the greedy selection.

    Attributes
    ----------
    mask : ndarray of bool, shape (n_layers,)
        Layers to keep.
    order : tuple of int
        All layers in the order in which they were added.
    curve : tuple of float
        rho after each addition; ``mask`` keeps the prefix at its first maximum.
    """

    mask: npt.NDArray[np.bool_]
    order: tuple[int, ...]
    curve: tuple[float, ...]

    @property
    def rho(self) -> float:
        """Correlation that the kept layers reach."""
        return max(self.curve)


def sample_pairs(n_requests: int, n_pairs: int, rng: np.random.Generator) -> Pairs:
    """Draw distinct pairs of distinct requests; all of them where there are no more than asked for.

    Raises
    ------
    ValueError
        If there are fewer than two requests.
    """
    if n_requests < 2:
        raise ValueError(f"n_requests: a pair needs 2, got {n_requests}")
    if n_requests * (n_requests - 1) // 2 <= n_pairs:
        first, second = np.triu_indices(n_requests, k=1)
        return first.astype(np.intp), second.astype(np.intp)
    first, second = np.sort(rng.integers(0, n_requests, (2, n_pairs)), axis=0)
    drawn = np.unique(first[first != second] * n_requests + second[first != second])
    return (drawn // n_requests).astype(np.intp), (drawn % n_requests).astype(np.intp)


def activation_distances(activations: Counts, pairs: Pairs) -> Doubles:
    """Return cosine distances of decode-time activation vectors over all layers, one per pair.

    Parameters
    ----------
    activations : ndarray, shape (n_requests, n_layers, n_experts)
        Counts of the generated tokens.
    pairs : tuple of ndarray of int
    """
    flat = check_counts(activations, "activations").reshape(len(activations), -1).astype(np.float32)
    norm = np.linalg.norm(flat, axis=1, keepdims=True)
    unit = np.divide(flat, norm, out=np.zeros_like(flat), where=norm > TINY)
    return 1.0 - pair_dots(unit, pairs)


def pair_dots(rows: npt.NDArray[np.float32], pairs: Pairs) -> Doubles:
    """Return the dot product of each pair of rows.

    One matrix product of all rows with all rows is far faster than gathering two rows per pair.
    """
    return (rows @ rows.T)[pairs].astype(np.float64)


def rank_correlation(x: Doubles, y_ranks: Doubles) -> float:
    """Return Spearman's rho of ``x`` with values whose centred ranks are given; 0 where either is constant."""
    ranks = centred_ranks(x)
    scale = np.sqrt((ranks @ ranks) * (y_ranks @ y_ranks))
    return float(ranks @ y_ranks / scale) if scale > 0 else 0.0


def centred_ranks(values: Doubles) -> Doubles:
    """Return average ranks minus their mean, as Spearman's rho wants them.

    An unstable sort is enough because ties share their mean rank; ten times as fast as :func:`scipy.stats.rankdata`.
    """
    order = np.argsort(values)
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    sizes = np.diff(np.append(starts, len(values)))
    ranks = np.empty(len(values))
    ranks[order] = np.repeat(starts + (sizes - 1) / 2.0, sizes)
    return ranks - (len(values) - 1) / 2.0


def choose_layers(weighted: npt.NDArray[np.floating], target: Doubles, pairs: Pairs) -> LayerChoice:
    """Select layers greedily: add the one that raises rho most, keep the prefix where rho peaks.

    Parameters
    ----------
    weighted : ndarray of float, shape (n_requests, n_layers, n_experts)
        Counts times weights: signatures before their norm.
    target : ndarray of float, shape (n_pairs,)
        Decode-time distance of each pair (:func:`activation_distances`).
    pairs : tuple of ndarray of int, shape (n_pairs,) each

    Returns
    -------
    LayerChoice
        Ties go to the lowest layer. A layer that no request uses adds nothing and therefore comes late.

    Raises
    ------
    ValueError
        If shapes disagree.

    Notes
    -----
    O(n_layers^2 n_pairs log n_pairs): each candidate costs one ranking, from running sums of dot products and norms.
    """
    check_counts(weighted, "weighted")
    n, layers, _ = weighted.shape
    if target.shape != pairs[0].shape:
        raise ValueError(f"target: expected one distance per pair {pairs[0].shape}, got {target.shape}")
    ranks = centred_ranks(target)
    dots = np.empty((layers, len(target)))
    squares = np.empty((layers, n))
    for layer in range(layers):
        x = weighted[:, layer].astype(np.float32)
        squares[layer] = np.einsum("ne,ne->n", x, x)
        dots[layer] = pair_dots(x, pairs)

    def rho(dot: Doubles, square: Doubles) -> float:
        norm = np.sqrt(square[pairs[0]] * square[pairs[1]])
        cosine = np.divide(dot, norm, out=np.zeros_like(dot), where=norm > TINY)
        return rank_correlation(1.0 - cosine, ranks)

    dot_sum, square_sum = np.zeros(len(target)), np.zeros(n)
    order: list[int] = []
    curve: list[float] = []
    left = list(range(layers))
    while left:
        values = [rho(dot_sum + dots[layer], square_sum + squares[layer]) for layer in left]
        best = int(np.argmax(values))
        layer = left.pop(best)
        dot_sum += dots[layer]
        square_sum += squares[layer]
        order.append(layer)
        curve.append(values[best])
    mask = np.zeros(layers, dtype=np.bool_)
    mask[order[: int(np.argmax(curve)) + 1]] = True
    return LayerChoice(mask=mask, order=tuple(order), curve=tuple(curve))
