"""Bins of a request's best similarity.

Routers bin live requests, and fits bin held-out ones, alike.
"""

from __future__ import annotations

from eldr.contract import SIMILARITY_BINS


def similarity_bin(best: float) -> int:
    """Return the bin of a request's best cosine.

    There are ``SIMILARITY_BINS`` of equal width over [0, 1].

    Parameters
    ----------
    best : float
        Below 0 it counts as 0, above 1 as 1, which is in the last bin; rounding makes either.

    Examples
    --------
    >>> similarity_bin(-0.2), similarity_bin(0.005), similarity_bin(0.995), similarity_bin(1.0)
    (0, 0, 99, 99)
    """
    return min(max(int(best * SIMILARITY_BINS), 0), SIMILARITY_BINS - 1)
