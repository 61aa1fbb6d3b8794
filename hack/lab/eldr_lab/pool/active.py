"""Active experts of engines of several ranks: a step waits, layer by layer, for the rank with most of them.

References
----------
.. [1] METRO, arXiv 2512.09277.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from eldr.core.signature import Floats
from eldr.simulate.population import Ints
from eldr_lab.pool.replicas import Held
from eldr_lab.synthetic.active import ExpectedUnion, SampledUnion, active_experts
from eldr_lab.synthetic.population import Cells, Population


class ExpectedOnRanks(ExpectedUnion):
    """Expected unions. The fullest rank is that of the largest mean, which is less than the mean of the largest.

    Parameters
    ----------
    logs, n_layers
        As of an :class:`~eldr_lab.synthetic.active.ExpectedUnion`.
    ranks : int
        Each holds as many experts of every layer.
    order : ndarray of int, shape (n_layers * n_experts,), optional
        Cells of the first layer's first rank, of its second one, and so on; without, experts lie in their own order.
    """

    def __init__(self, logs: Floats, n_layers: int, ranks: int, order: Ints | None) -> None:
        super().__init__(logs, n_layers)
        self._ranks, self._order = ranks, order

    def _fullest(self, survival: npt.NDArray[np.float64], every: float) -> float:  # noqa: ARG002
        placed = survival if self._order is None else survival[self._order]
        left = placed.reshape(self._n_layers, self._ranks, -1)
        return left.shape[2] - float(left.sum(axis=2).min(axis=1).mean())


class SampledOnRanks(SampledUnion):
    """Unions of single steps.

    Parameters
    ----------
    steps, shape
        As of a :class:`~eldr_lab.synthetic.active.SampledUnion`.
    ranks, order
        As of :class:`ExpectedOnRanks`.
    held : Held, optional
        In place of ``order``: experts that have replicas.
    """

    def __init__(
        self, steps: Cells, shape: tuple[int, int], ranks: int, order: Ints | None, held: Held | None
    ) -> None:
        super().__init__(steps, shape)
        self._ranks, self._order, self._held = ranks, order, held

    def _fullest(self, cells: Cells, used: npt.NDArray[np.bool_], every: float) -> float:  # noqa: ARG002
        if self._held is not None:
            return float(self._held.fullest(cells).mean())
        placed = used if self._order is None else used[self._order]
        held = np.count_nonzero(placed.reshape(self._n_layers, self._ranks, -1), axis=2)
        return float(held.max(axis=1).mean())


def on_ranks(
    population: Population,
    *,
    sampled: bool,
    ranks: int = 1,
    order: Ints | None = None,
    held: Held | None = None,
) -> ExpectedUnion | SampledUnion:
    """Return an empty batch on an engine of so many ranks, which hold experts in some order, or with replicas.

    Raises
    ------
    ValueError
        If single steps are asked for and not known, or needed for replicas, or experts cannot be divided evenly.
    """
    experts_of_a_rank(population, ranks)
    if held is not None and not sampled:
        raise ValueError("unions: which replica computes is chosen step by step; use sampled unions")
    if ranks == 1 and held is None:
        return active_experts(population, sampled=sampled)
    if not sampled:
        return ExpectedOnRanks(population.logs, population.n_layers, ranks, order)
    if population.steps is None:
        raise ValueError("unions: single steps of these requests are not known; use expected unions")
    shape = (population.n_layers, population.n_experts)
    return SampledOnRanks(population.steps, shape, ranks, order, held)


def experts_of_a_rank(population: Population, ranks: int) -> int:
    """Return how many experts of a layer each of so many ranks holds.

    Raises
    ------
    ValueError
        If they do not divide evenly.
    """
    if ranks < 1 or population.n_experts % ranks:
        raise ValueError(
            f"ranks: {population.n_experts} experts per layer do not divide evenly among {ranks}"
        )
    return population.n_experts // ranks


def used_on_fullest(
    population: Population, batch: float, rng: np.random.Generator, draws: int, ranks: int
) -> float:
    """Return the expected distinct experts per layer of randomly placed requests, on the fullest rank."""
    held = experts_of_a_rank(population, ranks)
    least = [
        float(left.reshape(population.n_layers, ranks, held).sum(axis=2).min(axis=1).sum())
        for left in population.survival(batch, rng, draws)
    ]
    return held - float(np.mean(least)) / population.n_layers


def expert_shares(population: Population) -> Floats:
    """Return how often a token of a decode step uses each expert, mean over the traffic: shape (n_layers, n_experts)."""
    shares = population.chances @ -np.expm1(population.logs)
    return shares.reshape(population.n_layers, population.n_experts).astype(np.float32)
