"""Prices of full clusters: what each must charge for its points to spread over the others.

References
----------
.. [1] M. Cuturi, "Sinkhorn distances: lightspeed computation of optimal transport", NeurIPS 2013: choices that are
   softened make the dual problem smooth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.intp]

HOT, WARM = 0.125, 0.25
"""First temperature over the mean advantage of the cheapest cluster; with a start, that times the share to move."""
COLDEST = 1e-9
"""Temperature over what costs and prices are, below which single precision has nothing left to soften."""
COOLING = 0.25
"""Ratio of temperatures: Newton's method follows, and has something to do at each."""
LEVELS = 10
STEPS_PER_LEVEL = 12
FARTHEST = -40.0
"""Shares below exp of it are as good as none; squares of smaller ones are denormal, and those are slow."""


class Priced(NamedTuple):
    """Prices, and the cluster that each point then chooses: the cheapest, whether it has room or not."""

    prices: Doubles
    labels: Labels


def balancing_prices(costs: Doubles, capacity: int, start: Doubles | None = None) -> Priced:
    """Find prices under which hardly any cluster is chosen by more points than it may hold.

    Parameters
    ----------
    costs : ndarray of float64, shape (n_points, n_clusters)
    capacity : int
        Most points per cluster.
    start : ndarray of float64, shape (n_clusters,), optional
        Prices to begin with, such as those of nearly the same costs.

    Returns
    -------
    Priced
        The best that were seen. Prices are not negative, the least is 0.

    Notes
    -----
    Newton's method on the dual problem, whose choices are softened less and less; each step is O(n_points
    n_clusters^2). Nothing relies on its success: whatever the prices, their labels are the cheapest for the loads that
    they make.
    """
    n, k = costs.shape
    best, over = _priced(costs, np.zeros(k) if start is None else start - start.min(), capacity)
    # What a cluster costs more than the cheapest: no precision is lost to an offset, sums over clusters run along memory.
    rows = np.ascontiguousarray((costs - costs.min(axis=1, keepdims=True)).T, dtype=np.float32)
    spread = float(rows.mean())
    # A few points too many need a small change of prices: a high temperature would forget the start.
    temperature = spread * (HOT if start is None else min(HOT, WARM * over / n))
    prices = best.prices
    few = max(8, k // 4, n // 4000)  # moving these costs less than another level
    for _ in range(LEVELS):
        coldest = max(COLDEST * max(spread, float(prices.max())), float(np.finfo(np.float32).tiny))
        if over <= few or temperature <= coldest:
            break
        goal = max(few / 2, 0.02 * over)
        prices = _relax(rows, prices, capacity, temperature, goal)
        found, excess = _priced(costs, prices, capacity)
        if excess < over:
            best, over = found, excess
        temperature *= COOLING
    return best


def _priced(costs: Doubles, prices: Doubles, capacity: int) -> tuple[Priced, int]:
    """Return what the points choose, and how many of them are too many."""
    labels = (costs + prices).argmin(axis=1)
    demand = np.bincount(labels, minlength=len(prices))
    return Priced(prices, labels), int(np.maximum(demand - capacity, 0).sum())


def _relax(rows: Floats, prices: Doubles, capacity: int, temperature: float, goal: float) -> Doubles:
    """Take Newton steps until the softened demand of priced clusters misses their capacity by less than ``goal``."""
    k, n = rows.shape
    for _ in range(STEPS_PER_LEVEL):
        shares = rows + prices.astype(np.float32)[:, None]
        shares -= shares.min(axis=0)
        shares *= -1.0 / temperature
        np.maximum(shares, FARTHEST, out=shares)
        np.exp(shares, out=shares)
        shares /= shares.sum(axis=0)
        demand = shares.sum(axis=1, dtype=np.float64)
        full = (prices > 0.0) | (demand > capacity)
        missed = np.where(full, demand - min(capacity, n / max(1, int(full.sum()))), 0.0)
        if np.abs(missed).sum() <= 2.0 * goal:
            break
        # The ridge bounds the step of a cluster that nobody is undecided about.
        hessian = np.diag(demand + 1e-3 * n / k) - (shares @ shares.T).astype(np.float64)
        step = np.zeros(k)
        step[full] = temperature * np.linalg.solve(hessian[np.ix_(full, full)], missed[full])
        longest = float(np.abs(step).max())
        prices = prices + step * min(1.0, 4.0 * temperature / longest) if longest > 0.0 else prices
        prices = np.maximum(prices - prices.min() if full.all() else prices, 0.0)
    return prices
