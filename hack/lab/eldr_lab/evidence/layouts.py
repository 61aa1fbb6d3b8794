"""Where experts without replicas lie on the ranks of an engine: what that does to the fullest rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from eldr.core.signature import Floats
from eldr_lab.evidence.draws import draw, mean, shares_of
from eldr_lab.pool.ranks import dealt
from eldr_lab.pool.replicas import place
from eldr_lab.synthetic.population import Population
from tests.support.metro import Placement

BATCHES = 8, 32, 128
IN_ORDER, DEALT, TOKENS, ACTIVATIONS, ALIKE = "in order", "dealt", "tokens", "activations", "alike"

Placements = tuple[Placement, ...]


def in_order(shares: Floats, ranks: int) -> Placements:
    """Return the experts as vLLM lays them out at its start."""
    n_layers, n_experts = shares.shape
    return tuple([Placement(np.arange(n_experts), n_experts, ranks)] * n_layers)


def dealt_out(shares: Floats, ranks: int) -> Placements:
    """Return ELDR's layout for a cluster: the hottest to one rank after the other, every other round backwards."""
    n_layers, n_experts = shares.shape
    cells = dealt(shares, ranks).reshape(n_layers, n_experts)
    return tuple(Placement(row - n_experts * layer, n_experts, ranks) for layer, row in enumerate(cells))


def layouts(name: str, population: Population, ranks: int, draws: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the fullest rank of batches of one kind of requests, by layout and batch, mean over the kinds.

    Layouts are made from half of a kind's requests and met by the others. All but one are made for the kind, as an engine of an
    ELDR pool has mostly one; *alike* is placed by activation for all kinds at once, as if one layout were to serve every engine.
    """
    rng = np.random.default_rng([seed, ranks])
    halves = [
        np.array_split(rng.permutation(np.flatnonzero(population.label == label)), 2)
        for label in range(len(population.labels))
    ]
    everyone = shares_of(population, np.concatenate([known for known, _ in halves]))
    for batch in BATCHES:
        found: dict[str, list[float]] = {}
        for known, met in halves:
            own = shares_of(population, known)
            steps = draw(population, met, batch, max(3, draws // len(halves)), rng)
            made = {
                IN_ORDER: in_order(own, ranks),
                DEALT: dealt_out(own, ranks),
                TOKENS: place(own, batch, ranks, 1.0, "tokens"),
                ACTIVATIONS: place(own, batch, ranks, 1.0, "activations"),
                ALIKE: place(everyone, batch, ranks, 1.0, "activations"),
            }
            for layout, placements in made.items():
                found.setdefault(layout, []).append(mean(steps, placements, "exact"))
        yield {
            "name": name,
            "ranks": ranks,
            "batch": batch,
            "seed": seed,
            "fullest": {layout: float(np.mean(values)) for layout, values in found.items()},
        }
