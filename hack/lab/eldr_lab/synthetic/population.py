"""Requests of several kinds, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from eldr.core.signature import Floats
from eldr.fit.samples import Samples
from eldr.simulate import population
from eldr.simulate.population import Ints

Cells = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Population(population.Population):
    """Requests of several kinds, whose single steps may be known.

    Attributes
    ----------
    steps : ndarray of uint16, shape (n, n_steps, n_layers * top_k), optional
        Cells ``layer * n_experts + expert`` that each decode step uses, repeated after the last one.
    label : ndarray of int, shape (n,)
        Kind of request, an index into ``labels``; requests of each label exist.
    shares : tuple of float
        Of the traffic, how much each label makes; they sum to 1.
    output_tokens : ndarray of int, shape (n,), optional
        Length of each answer where it is known.
    """

    steps: Cells | None
    label: Ints
    labels: tuple[str, ...]
    shares: tuple[float, ...]
    output_tokens: Ints | None  # type: ignore[assignment]  # a log's are known

    @property
    def chances(self) -> npt.NDArray[np.float64]:
        """How likely each request is the next one of the traffic, shape (n,): labels by their shares, requests of one alike."""
        weights = np.array(self.shares)[self.label] / np.bincount(self.label)[self.label]
        probabilities: npt.NDArray[np.float64] = weights / weights.sum()
        return probabilities

    def active(self, batch: float, rng: np.random.Generator, draws: int = 64) -> float:
        """Return the expected distinct experts per layer of a batch of randomly placed requests.

        Parameters
        ----------
        batch : float
            Requests, rounded, at least 1.
        draws : int
            Batches that the mean is taken over.
        """
        chosen = rng.choice(len(self), (draws, max(1, round(batch))), p=self.chances)
        survival = (np.exp(self.logs[some].sum(axis=0)) for some in chosen)
        left = [float(one.reshape(self.n_layers, -1).sum(axis=1).sum()) for one in survival]
        return self.n_experts - float(np.mean(left)) / self.n_layers


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Requests to fit centroids on, and others to simulate.

    Attributes
    ----------
    requests : Population
        None of them is in ``calibration``.
    """

    calibration: Samples
    requests: Population


class Source(Protocol):
    """Where traffic comes from."""

    def traffic(self, seed: int) -> Traffic:
        """Return the traffic of one seed."""


def draw_steps(logs: Floats, shape: tuple[int, int, int], n_steps: int, rng: np.random.Generator) -> Cells:
    """Draw the experts of decode steps: ``top_k`` of each layer without replacement.

    Parameters
    ----------
    logs : ndarray of float32, shape (n, n_layers * n_experts)
        As in a :class:`Population`; ``-log(1 - p)`` is an expert's weight in successive sampling.
    shape : (n_layers, n_experts, top_k)

    Returns
    -------
    ndarray of uint16, shape (n, n_steps, n_layers * top_k)
    """
    layers, experts, top_k = shape
    first = (np.arange(layers) * experts)[:, None]
    steps = np.empty((len(logs), n_steps, layers * top_k), dtype=np.uint16)
    for request, row in enumerate(logs):
        weight = np.maximum(-row.reshape(layers, experts), np.float32(1e-12))
        # the smallest of exponential clocks with these rates, one clock per expert: Gumbel's top k without logarithms
        clocks = rng.standard_exponential((n_steps, layers, experts), dtype=np.float32) / weight
        chosen = np.argpartition(clocks, top_k - 1, axis=-1)[..., :top_k]
        steps[request] = (chosen + first).reshape(n_steps, -1)
    return steps
