"""The requests that a simulated pool is sent: activations of their prompts and of their decode steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.core.signature import Floats

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Population:
    """Requests to draw from.

    Attributes
    ----------
    prefill : ndarray of unsigned int, shape (n, n_layers, n_experts)
        Tokens of the prompt that chose each expert: what a router sees.
    prompt_tokens : ndarray of int, shape (n,)
    logs : ndarray of float32, shape (n, n_layers * n_experts)
        Logarithm of the probability that a decode step leaves an expert alone: what engines do.
    output_tokens : ndarray of int, shape (n,)
        Length of each answer.
    """

    prefill: npt.NDArray[np.unsignedinteger[Any]]
    prompt_tokens: Ints
    logs: Floats
    output_tokens: Ints
    top_k: int

    def __len__(self) -> int:
        return len(self.prefill)

    @property
    def n_layers(self) -> int:
        """Mixture-of-experts layers."""
        return int(self.prefill.shape[1])

    @property
    def n_experts(self) -> int:
        """Experts per layer."""
        return int(self.prefill.shape[2])

    def active(self, batch: float, rng: np.random.Generator, draws: int = 8) -> float:
        """Return the expected distinct experts per layer of a batch of randomly placed requests.

        Parameters
        ----------
        batch : float
            Requests, rounded, at least 1.
        rng : numpy.random.Generator
        draws : int
            Batches that the mean is taken over.
        """
        chosen = rng.integers(len(self), size=(draws, max(1, round(batch))))
        left = np.mean([np.exp(self.logs[some].sum(axis=0)).sum() for some in chosen])
        return self.n_experts - float(left) / self.n_layers
