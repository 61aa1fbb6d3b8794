"""Prefix caches of prefill engines: what they spare, and what routers then know of a prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from eldr.simulate.population import Ints
from eldr_lab.synthetic.population import Population

BLOCK = 16
"""Tokens of a KV block: prefixes are found by whole blocks."""


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """A share of every prompt is found in the cache.

    Attributes
    ----------
    share : float
        Of a prompt's tokens, rounded down to whole blocks; the last token is always computed.
    counted : bool
        Whether the experts of cached tokens are known, as engines with the plug-in keep them beside each KV block. Otherwise
        routers see the computed tokens only.
    """

    share: float
    counted: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"share: expected 0..1, got {self.share!r}")

    def found(self, tokens: Ints) -> Ints:
        """Return how many tokens of prompts of these lengths are found."""
        whole = np.minimum(np.floor(self.share * tokens), tokens - 1)
        blocks: Ints = whole.astype(np.int64) // BLOCK * BLOCK
        return blocks

    def seen(self, population: Population, seed: int) -> Population:
        """Return requests as routers see them.

        Parameters
        ----------
        population : Population
        seed : int
            Of which tokens are the computed ones.

        Notes
        -----
        Of each expert's tokens so many are drawn without replacement as a prompt computes, expert by expert: tokens of the
        cached prefix use the same experts as the others do. Systems that put one text before every prompt cache what tells least.
        """
        if self.counted:
            return population
        found = self.found(population.prompt_tokens)
        tokens = population.prompt_tokens - found
        counts = population.prefill.astype(np.int64)
        others = np.maximum(0, population.prompt_tokens[:, None, None] - counts)
        draws = np.broadcast_to(tokens[:, None, None], counts.shape)
        rng = np.random.default_rng([seed, 7])
        drawn = rng.hypergeometric(counts, others, np.minimum(draws, counts + others))
        return replace(population, prefill=drawn.astype(population.prefill.dtype), prompt_tokens=tokens)
