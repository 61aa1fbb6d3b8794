"""The requests that a simulated pool may be sent: activations of their prompts and of their decode steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from eldr.core.signature import Floats
from eldr.fit.samples import Samples

Ints = npt.NDArray[np.int64]
Cells = npt.NDArray[np.uint16]

_SPAN = 16  # requests, in the mean


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """When the requests of a log came.

    Attributes
    ----------
    gaps : ndarray of float64, shape (n,)
        Seconds from each request to the next one; after the last one, the mean.
    rate : float
        Requests per second that routers saw, those that are not simulated included.
    """

    gaps: npt.NDArray[np.float64]
    rate: float

    @property
    def burstiness(self) -> float:
        """Variance of the number of requests in equal spans over its mean: about 1 where they come at random."""
        counts, _ = np.histogram(np.cumsum(self.gaps), max(2, len(self.gaps) // _SPAN))
        return float(counts.var() / counts.mean())


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """Requests to draw from.

    Attributes
    ----------
    prefill : ndarray of unsigned int, shape (n, n_layers, n_experts)
        Tokens of the prompt that chose each expert: what a router sees.
    prompt_tokens : ndarray of int, shape (n,)
    logs : ndarray of float32, shape (n, n_layers * n_experts)
        Logarithm of the probability that a decode step leaves an expert alone: what engines do.
    steps : ndarray of uint16, shape (n, n_steps, n_layers * top_k), optional
        Cells ``layer * n_experts + expert`` that each decode step uses, repeated after the last one.
    label : ndarray of int, shape (n,)
        Kind of request, an index into ``labels``; requests of each label exist.
    shares : tuple of float
        Of the traffic, how much each label makes; they sum to 1.
    output_tokens : ndarray of int, shape (n,), optional
        Length of each answer where it is known.
    arrivals : Arrivals, optional
        When they came, in the order in which they stand here; None where it is unknown.
    """

    prefill: npt.NDArray[np.unsignedinteger[Any]]
    prompt_tokens: Ints
    logs: Floats
    steps: Cells | None
    label: Ints
    labels: tuple[str, ...]
    shares: tuple[float, ...]
    output_tokens: Ints | None
    top_k: int
    arrivals: Arrivals | None = None

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
        survival = self.survival(batch, rng, draws)
        left = [float(one.reshape(self.n_layers, -1).sum(axis=1).sum()) for one in survival]
        return self.n_experts - float(np.mean(left)) / self.n_layers

    def survival(self, batch: float, rng: np.random.Generator, draws: int) -> list[Floats]:
        """Return how likely each expert is left alone by batches of randomly placed requests, as in :meth:`active`.

        Returns
        -------
        list of ndarray of float32, shape (n_layers * n_experts,)
            One for each draw.
        """
        size = max(1, round(batch))
        chosen = rng.choice(len(self), (draws, size), p=self.chances)
        return [np.exp(self.logs[some].sum(axis=0)) for some in chosen]


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
