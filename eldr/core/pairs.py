"""Pairs of requests and how far apart they are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from eldr.core.signature import TINY, Counts, check_counts

Pairs = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.intp]

_CHUNK = 512  # pairs whose rows stay in the processor's cache


def sample_pairs(n_requests: int, n_pairs: int, rng: np.random.Generator) -> Pairs:
    """Draw distinct pairs of distinct requests, all where there are few.

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


def layer_rows(counts: Counts, layer: int, rows: Rows | None = None) -> Floats:
    """Return one layer of some requests, shape (n_rows, n_experts).

    This is the only copy of counts that is made.
    """
    one = counts[:, layer]
    return (one if rows is None else one.take(rows, axis=0)).astype(np.float32)


def pair_dots(rows: Floats, pairs: Pairs) -> Doubles:
    """Return the dot product of each pair of rows.

    Parameters
    ----------
    rows : ndarray of float32, shape (n_requests, n_features)
    pairs : tuple of ndarray of int, shape (n_pairs,) each

    Returns
    -------
    ndarray of float64, shape (n_pairs,)
        Of float32 precision; dot products of counts below 2^24 are exact.
    """
    first, second = pairs
    dots = np.empty(len(first))
    for at in range(0, len(first), _CHUNK):
        part = slice(at, at + _CHUNK)
        dots[part] = np.vecdot(rows.take(first[part], axis=0), rows.take(second[part], axis=0))
    return dots


def activation_distances(activations: Counts, pairs: Pairs, rows: Rows | None = None) -> Doubles:
    """Return cosine distances of decode-time activations, one per pair.

    Parameters
    ----------
    activations : ndarray, shape (n_requests, n_layers, n_experts)
        Counts of the generated tokens.
    pairs : tuple of ndarray of int, shape (n_pairs,) each
    rows : ndarray of int, shape (n_rows,), optional
        The requests that the pairs count; all without it.

    Returns
    -------
    ndarray of float64, shape (n_pairs,)
        1 where a request has no activations.
    """
    n = len(activations) if rows is None else len(rows)
    check_counts(activations, "activations")
    dots, squares = np.zeros(len(pairs[0])), np.zeros(n)
    for layer in range(activations.shape[1]):
        x = layer_rows(activations, layer, rows)
        dots += pair_dots(x, pairs)
        squares += np.vecdot(x, x)
    return distances(dots, squares[pairs[0]], squares[pairs[1]])


def distances(dots: Doubles, first: Doubles, second: Doubles) -> Doubles:
    """Return cosine distances of pairs, shape (n_pairs,).

    They come from dot products and squared norms; the distance is 1 where a norm is 0.
    """
    norm = first * second
    np.sqrt(norm, out=norm)
    norm[norm <= TINY] = np.inf
    cosines = np.divide(dots, norm, out=norm)
    return np.subtract(1.0, cosines, out=cosines)
