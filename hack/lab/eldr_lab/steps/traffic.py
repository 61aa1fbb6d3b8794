"""Requests of real text, recorded one by one on a real engine: what its prompt chose, what its decode steps chose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.core.placement_sim import inclusion_probabilities
from eldr.fit.samples import Samples
from eldr_lab.steps.engines import Engine, Recorded
from eldr_lab.steps.machine import BLOCK, LONGEST, N_EXPERTS, SHORTEST, TOP_K
from eldr_lab.synthetic.population import Population
from eldr_tiny_moe import corpus

PROMPT = 2 * BLOCK + 1
"""Two blocks of KV, which stay on the engine, and the token that every decode engine computes again."""
_STEPS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Requests to fit centroids on, and others to serve.

    Attributes
    ----------
    calibration : Samples
    population : Population
    prompts : list of list of int
        Tokens of the population's prompts.
    kinds : tuple of str
    """

    calibration: Samples
    population: Population
    prompts: list[list[int]]
    kinds: tuple[str, ...]


def make_traffic(
    engine: Engine, calibration: int, requests: int, seed: int, progress: Callable[[int], None]
) -> Traffic:
    """Draw prompts of all kinds of text in equal parts and record them; the engine keeps their KV."""
    texts = corpus.load()
    kinds = tuple(texts)
    prompts = corpus.Prompts(texts, seed=seed)
    rng = np.random.default_rng(seed)

    def draw(n: int) -> tuple[list[list[int]], npt.NDArray[np.int64], list[Recorded]]:
        labels = rng.permutation(np.arange(n) % len(kinds))
        drawn = [prompts.tokens(kinds[label], PROMPT, engine.encode) for label in labels.tolist()]
        recorded = []
        for at, prompt in enumerate(drawn):
            recorded.append(engine.record(prompt, 1 + _STEPS, at))
            progress(1)
        return drawn, labels, recorded

    _, _, calibrated = draw(calibration)
    drawn, labels, served = draw(requests)
    lengths = rng.integers(SHORTEST, LONGEST, requests, endpoint=True)
    return Traffic(_samples(calibrated), _population(served, labels, kinds, lengths), drawn, kinds)


def _counts(recorded: Sequence[Recorded]) -> npt.NDArray[np.int64]:
    """Return how often decode steps chose each expert, shape (n, n_layers, n_experts)."""
    return np.stack([np.sum(one.decode[..., None] == np.arange(N_EXPERTS), axis=(0, 2)) for one in recorded])


def _samples(recorded: Sequence[Recorded]) -> Samples:
    n = len(recorded)
    return Samples(
        prefill=np.stack([one.prefill for one in recorded]).astype(np.uint32),
        decode=_counts(recorded).astype(np.uint32),
        decode_tokens=np.full(n, _STEPS),
        in_flight=np.full(n, 12),
        top_k=TOP_K,
        skipped={},
    )


def _population(
    recorded: Sequence[Recorded],
    labels: npt.NDArray[np.int64],
    kinds: tuple[str, ...],
    lengths: npt.NDArray[np.int64],
) -> Population:
    n = len(recorded)
    prefill = np.stack([one.prefill for one in recorded]).astype(np.uint32)
    layers = prefill.shape[1]
    inclusion = inclusion_probabilities(_counts(recorded), np.full(n, _STEPS))
    cells = np.stack([one.decode for one in recorded]) + (np.arange(layers) * N_EXPERTS)[:, None]
    return Population(
        prefill=prefill,
        prompt_tokens=np.full(n, PROMPT),
        logs=np.log1p(-inclusion).reshape(n, -1),
        steps=cells.reshape(n, _STEPS, -1).astype(np.uint16),
        label=labels,
        labels=kinds,
        shares=tuple(1 / len(kinds) for _ in kinds),
        output_tokens=lengths,
        top_k=TOP_K,
    )
