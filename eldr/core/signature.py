"""Expert signatures: what a prompt says about the decode steps' experts.

References
----------
.. [1] ELDR, arXiv 2607.00466: counts, inverse document frequency, one global L2 norm over the kept layers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.integer[Any]] | npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float32]

TINY = 1e-9
"""Norms below this are zero: the request has no preference."""


def check_counts(counts: Counts, name: str = "counts") -> Counts:
    """Return expert counts of several requests after checking them.

    Parameters
    ----------
    counts : ndarray of int or float, shape (n_requests, n_layers, n_experts)
        Hits; finite and not negative.
    name : str

    Raises
    ------
    ValueError
        If the shape or a value is wrong; the message names it.
    """
    if counts.ndim != 3 or 0 in counts.shape:
        raise ValueError(
            f"{name}: expected (n_requests, n_layers, n_experts) with no empty axis, got {counts.shape}"
        )
    if counts.dtype.kind == "f" and not np.isfinite(counts).all():
        bad = int(np.flatnonzero(~np.isfinite(counts).all(axis=(1, 2)))[0])
        raise ValueError(f"{name}: request {bad} holds NaN or infinity; drop the record")
    if counts.dtype.kind != "u" and counts.min() < 0:
        raise ValueError(f"{name}: negative count {counts.min()}")
    return counts


def document_frequency(counts: Counts) -> npt.NDArray[np.int64]:
    """Count the requests that used each expert at least once.

    Parameters
    ----------
    counts : ndarray, shape (n_requests, n_layers, n_experts)

    Returns
    -------
    ndarray of int64, shape (n_layers, n_experts)
    """
    df: npt.NDArray[np.int64] = np.count_nonzero(check_counts(counts), axis=0).astype(np.int64)
    return df


def inverse_document_frequency(df: npt.NDArray[np.integer[Any]], n_requests: int) -> Floats:
    """Return ``ln((N + 1) / (df + 1))`` per layer and expert.

    An expert that every request uses weighs exactly 0, one that none uses weighs ``ln(N + 1)``.

    Parameters
    ----------
    df : ndarray of int, shape (n_layers, n_experts)
        Document frequency, 0..N.
    n_requests : int
        N, the calibration requests counted.

    Returns
    -------
    ndarray of float32, shape (n_layers, n_experts)

    Examples
    --------
    >>> inverse_document_frequency(np.array([[3, 0]]), 3).round(3).tolist()
    [[0.0, 1.3860000371932983]]
    """
    if n_requests < 1:
        raise ValueError(f"n_requests: expected at least 1, got {n_requests}")
    if df.min() < 0 or df.max() > n_requests:
        raise ValueError(f"df: expected 0..{n_requests}, got {df.min()}..{df.max()}")
    return np.log((n_requests + 1) / (df + 1)).astype(np.float32)


def signatures(counts: Counts, weights: Floats, layer_mask: npt.NDArray[np.bool_]) -> Floats:
    """Turn expert counts into unit-length signatures.

    Parameters
    ----------
    counts : ndarray, shape (n_requests, n_layers, n_experts)
        Prompt tokens that the gate sent to each expert.
    weights : ndarray of float32, shape (n_layers, n_experts)
        Inverse document frequencies, or ones.
    layer_mask : ndarray of bool, shape (n_layers,)
        Layers to keep.

    Returns
    -------
    ndarray of float32, shape (n_requests, n_kept * n_experts)
        Rows of unit length; a row without any weight stays all zero and means "no preference".

    Raises
    ------
    ValueError
        If shapes disagree or no layer is kept.
    """
    check_counts(counts)
    n, layers, experts = counts.shape
    if weights.shape != (layers, experts):
        raise ValueError(
            f"weights: expected shape {(layers, experts)} as the counts have it, got {weights.shape}"
        )
    if layer_mask.shape != (layers,) or layer_mask.dtype != np.bool_:
        raise ValueError(f"layer_mask: expected {layers} booleans, got {layer_mask.dtype} {layer_mask.shape}")
    if not layer_mask.any():
        raise ValueError("layer_mask: keeps no layer; keep at least one")
    x = (counts[:, layer_mask].astype(np.float32) * weights[layer_mask]).reshape(n, -1)
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    unit: Floats = np.divide(x, norm, out=np.zeros_like(x), where=norm > TINY)
    return unit


def similarities(
    counts: npt.NDArray[np.integer[Any]],
    weights: Floats | None,
    kept: slice | npt.NDArray[np.intp],
    centers: Floats,
) -> Floats:
    """Score one request against every centroid: the router's hot path.

    Parameters
    ----------
    counts : ndarray of int, shape (n_layers, n_experts)
        The request's prompt counts.
    weights : ndarray of float32, shape (n_kept * n_experts,), optional
        Weights of the kept layers, flat; None if all are 1.
    kept : slice or ndarray of int, shape (n_kept,)
        The kept layers; a slice where they lie side by side, which costs no copy.
    centers : ndarray of float32, shape (n_clusters, n_kept * n_experts)
        Unit centroids in rows, C-contiguous: one matrix-vector product scores all engines.

    Returns
    -------
    ndarray of float32, shape (n_clusters,)
        Cosines; all zero for a request without a preference.
    """
    # every call of NumPy costs about 1 us here, as much as the arithmetic: as few as possible
    rows = counts[kept] if isinstance(kept, slice) else counts.take(kept, axis=0)
    x: Floats = rows.reshape(-1).astype(np.float32)
    if weights is not None:
        x *= weights
    norm = math.sqrt(x.dot(x))
    if norm <= TINY:
        return np.zeros(len(centers), dtype=np.float32)
    cosines: Floats = centers.dot(x)
    cosines /= norm
    return cosines
