"""What prompts tell about decode steps: statistics of captured activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.core.signature import Counts

ROUNDS = 400
"""Batches drawn for one size."""


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """Activations of requests.

    Attributes
    ----------
    prefill : ndarray of int, shape (n_requests, n_layers, n_experts)
        Expert counts of the prompts.
    decode : ndarray of int, shape (n_requests, n_steps, n_layers, top_k)
        Experts of each decode step.
    kind : ndarray of str, shape (n_requests,)
        What kind of text the prompt was.
    prompt_tokens : ndarray of int, shape (n_requests,)
    probability, logit : ndarray of float32, shape (n_requests, n_layers, n_experts)
        What the gate said of each expert, summed over the prompt's tokens: softmax over all of them, and logits above the lowest one.
    """

    prefill: npt.NDArray[np.uint32]
    decode: npt.NDArray[np.uint16]
    kind: npt.NDArray[np.str_]
    prompt_tokens: npt.NDArray[np.int64]
    probability: npt.NDArray[np.float32]
    logit: npt.NDArray[np.float32]

    @property
    def activations(self) -> npt.NDArray[np.int64]:
        """Expert counts of the decode steps, of the same shape as ``prefill``."""
        n, _, layers, _ = self.decode.shape
        experts = self.prefill.shape[2]
        row = np.arange(n * layers).reshape(n, 1, layers, 1) * experts
        flat = np.bincount((row + self.decode).ravel(), minlength=n * layers * experts)
        return flat.reshape(n, layers, experts)

    def kinds(self) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
        """Yield each kind and its requests."""
        for kind in np.unique(self.kind):
            yield str(kind), np.flatnonzero(self.kind == kind)


def pearson(x: Counts, y: Counts) -> float:
    """Return the correlation of two arrays of counts, cell by cell; 0 where one is constant."""
    a, b = (v.ravel().astype(np.float64) - v.mean() for v in (x, y))
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else 0.0


def request_correlations(capture: Capture) -> npt.NDArray[np.float64]:
    """Return, for each request, how its prompt's expert counts correlate with those of its decode steps."""
    pairs = zip(capture.prefill, capture.activations, strict=True)
    return np.array([pearson(prompt, steps) for prompt, steps in pairs])


def kind_correlations(capture: Capture) -> dict[str, float]:
    """Return the correlation of the counts that all requests of a kind have together, by kind."""
    activations = capture.activations
    return {
        kind: pearson(capture.prefill[members].sum(axis=0), activations[members].sum(axis=0))
        for kind, members in capture.kinds()
    }


def stranger_correlations(capture: Capture, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return the same for prompts and decode steps of requests of different kinds: what any two requests share."""
    activations = capture.activations
    first, second = rng.integers(0, len(capture.kind), (2, 8 * len(capture.kind)))
    apart = capture.kind[first] != capture.kind[second]
    return np.array(
        [
            pearson(capture.prefill[i], activations[j])
            for i, j in zip(first[apart], second[apart], strict=True)
        ]
    )


def union(experts: npt.NDArray[np.uint16], n_experts: int) -> float:
    """Return how many experts a batch uses in one step, mean over layers.

    Parameters
    ----------
    experts : ndarray of int, shape (batch, n_layers, top_k)
    n_experts : int
    """
    layers = experts.shape[1]
    used = np.zeros((layers, n_experts), dtype=np.bool_)
    used[np.arange(layers)[None, :, None], experts] = True
    return float(used.sum() / layers)


@dataclass(frozen=True, slots=True)
class Unions:
    """Active experts of one step for batches of one size.

    Attributes
    ----------
    same, mixed : float
        Mean over batches whose requests are of one kind, and over batches of requests drawn from all.
    change : float
        ``same / mixed - 1``.
    error : float
        Standard error of ``change``, from the spread of the batches.
    """

    same: float
    mixed: float
    change: float
    error: float


def unions(capture: Capture, batch: int, rng: np.random.Generator) -> Unions:
    """Compare batches of one kind with mixed ones; each request of a batch stands at a step of its own.

    Raises
    ------
    ValueError
        If a kind has fewer requests than the batch.
    """
    members = [indices for _, indices in capture.kinds()]
    if min(map(len, members)) < batch:
        raise ValueError(
            f"batch: a kind has {min(map(len, members))} requests, fewer than {batch}; capture more"
        )
    everybody = np.arange(len(capture.kind))

    def draw(pool: npt.NDArray[np.intp]) -> float:
        chosen = rng.choice(pool, batch, replace=False)
        steps = rng.integers(0, capture.decode.shape[1], batch)
        return union(capture.decode[chosen, steps], capture.prefill.shape[2])

    same = np.array([draw(members[i % len(members)]) for i in range(ROUNDS)])
    mixed = np.array([draw(everybody) for _ in range(ROUNDS)])
    ratio = float(same.mean() / mixed.mean())
    relative = (same.std() / same.mean()) ** 2 + (mixed.std() / mixed.mean()) ** 2
    return Unions(
        float(same.mean()), float(mixed.mean()), ratio - 1, ratio * float(np.sqrt(relative / ROUNDS))
    )
