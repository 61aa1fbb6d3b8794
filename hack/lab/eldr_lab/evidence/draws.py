"""Decode steps drawn from a population, and the experts of their fullest rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eldr.core.signature import Floats
from eldr_lab.pool.replicas import Balance, fullest
from eldr_lab.synthetic.population import Population
from tests.support.metro import Placement

Ids = npt.NDArray[np.int64]


def shares_of(population: Population, among: Ids) -> Floats:
    """Return how often a token of a decode step of some requests uses each expert: float32 of shape (n_layers, n_experts)."""
    chances = population.chances[among]
    flat = (chances / chances.sum()) @ -np.expm1(population.logs[among])
    shares: Floats = flat.reshape(population.n_layers, population.n_experts).astype(np.float32)
    return shares


def draw(population: Population, among: Ids, batch: int, draws: int, rng: np.random.Generator) -> list[Ids]:
    """Return the experts of random steps of random requests: int of shape (batch, n_layers, top_k) each."""
    if population.steps is None:
        raise ValueError("population: its single steps are not known")
    chances = population.chances[among]
    first = population.n_experts * np.arange(population.n_layers)[:, None]
    drawn = []
    for _ in range(draws):
        records = rng.choice(among, batch, p=chances / chances.sum())
        cells = population.steps[records, rng.integers(0, population.steps.shape[1], batch)]
        drawn.append(cells.reshape(batch, population.n_layers, -1).astype(np.int64) - first)
    return drawn


def mean(
    steps: Sequence[Ids], placements: Sequence[Placement], balance: Balance, *, own_tokens: bool = False
) -> float:
    """Return the fullest rank's experts, mean over steps and layers."""
    return float(np.mean([fullest(ids, placements, balance, own_tokens=own_tokens) for ids in steps]))
