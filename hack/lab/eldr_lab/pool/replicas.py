"""Experts with replicas on the ranks of an engine: where they are, and which of them computes a step.

References
----------
.. [1] METRO, arXiv 2512.09277: a step waits for the rank that activates most experts, so these are balanced, not tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from eldr.engine.balance.packing import activation_weights, spread
from eldr_lab.synthetic.population import Cells
from tests.support.metro import Placement, exact, greedy
from tests.support.metro.baselines import active_set, pack, rank_loads, vllm_choice

Balance = Literal["tokens", "greedy", "exact"]
"""Replicas are chosen by vLLM's hash of the token's index, or by METRO: greedily, or as well as can be."""
Placing = Literal["tokens", "activations"]
"""Replicas are placed by tokens, as vLLM's EPLB does, or by how often steps use an expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """How an engine's ranks hold and choose replicas.

    Attributes
    ----------
    ratio : float
        Physical experts per expert, 1 or more; the slots are rounded up to a multiple of the ranks.
    balance : Balance
    placing : Placing
    """

    ratio: float
    balance: Balance = "exact"
    placing: Placing = "activations"


def place(
    shares: npt.NDArray[np.floating], batch: float, ranks: int, ratio: float, placing: Placing
) -> tuple[Placement, ...]:
    """Place the experts of every layer.

    Parameters
    ----------
    shares : ndarray of float, shape (n_layers, n_experts)
        How often a token uses an expert.
    batch : float
        Tokens of a step.
    ranks : int
    ratio : float
    placing : Placing

    Returns
    -------
    tuple of Placement
        One per layer.
    """
    n_experts = shares.shape[1]
    slots = -(-round(n_experts * ratio) // ranks) * ranks
    tokens = batch * shares.astype(np.float64)
    if placing == "tokens":
        held = [pack(row, slots, ranks) for row in tokens]
    else:
        held = [spread(activation_weights(row, steps=1), slots, ranks) for row in tokens]
    return tuple(Placement(row, n_experts, ranks) for row in held)


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """The replicas of one engine.

    Attributes
    ----------
    placements : tuple of Placement
        One per layer.
    balance : Balance
    """

    placements: tuple[Placement, ...]
    balance: Balance

    def fullest(self, cells: Cells) -> npt.NDArray[np.int64]:
        """Return the experts that the fullest rank activates on each layer, int64 of shape (n_layers,).

        Parameters
        ----------
        cells : ndarray of uint16, shape (batch, n_layers * top_k)
            What a step uses, see :class:`eldr_lab.synthetic.population.Population`.
        """
        layers = len(self.placements)
        first = self.placements[0].n_experts * np.arange(layers)[:, None]
        ids = cells.reshape(len(cells), layers, -1).astype(np.int64) - first
        return fullest(ids, self.placements, self.balance)


def fullest(
    expert_ids: npt.NDArray[np.integer],
    placements: Sequence[Placement],
    balance: Balance,
    *,
    own_tokens: bool = False,
) -> npt.NDArray[np.int64]:
    """Return the experts that the fullest rank activates on each layer in one step.

    Parameters
    ----------
    expert_ids : ndarray of int, shape (batch, n_layers, top_k)
    placements : sequence of Placement
        One per layer.
    balance : Balance
    own_tokens : bool
        Whether ranks have tokens of their own, as many each, and count these from 0: vLLM's hash is of that number.

    Returns
    -------
    ndarray of int64, shape (n_layers,)
    """
    layers = enumerate(placements)
    return np.array(
        [_fullest(expert_ids[:, layer], one, balance, own_tokens=own_tokens) for layer, one in layers]
    )


def _fullest(
    expert_ids: npt.NDArray[np.integer], placement: Placement, balance: Balance, *, own_tokens: bool
) -> int:
    if balance == "tokens":
        split = np.array_split(np.empty(len(expert_ids)), placement.ranks if own_tokens else 1)
        chosen = vllm_choice(expert_ids, placement, [len(part) for part in split])
        return int(rank_loads(chosen, placement).max())
    choose = greedy if balance == "greedy" else exact
    return max(choose(active_set(expert_ids, placement.n_experts), placement).load)
