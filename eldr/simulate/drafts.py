"""Speculative decoding in a simulated pool: each step feeds drafts beside a request's token, and generates those that are accepted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from eldr.core.step_time import StepTime
from eldr.simulate.population import Population


@dataclass(frozen=True, slots=True)
class Drafts:
    """How engines draft.

    Attributes
    ----------
    tokens : int
        Drafted in each step for each request; 0: engines do not draft.
    accepted : float
        Share of them that are accepted.
    timed : bool
        Whether step times include them already, as those do that routers learn of engines that draft.
    """

    tokens: int = 0
    accepted: float = 0.0
    timed: bool = False

    @property
    def per_step(self) -> float:
        """Tokens that a step generates for a request, mean."""
        return 1.0 + self.tokens * self.accepted

    def fed(self, population: Population) -> Population:
        """Return requests whose steps use the experts of all tokens that are fed: as many of their own, drafts being like accepted ones."""
        if not self.tokens:
            return population
        rows, steps = 1 + self.tokens, population.steps
        if steps is not None:
            several = steps.shape[1] // rows
            steps = steps[:, : several * rows].reshape(len(steps), several, -1)
        return replace(population, logs=population.logs * np.float32(rows), steps=steps)

    def slowed(self, step_time: StepTime) -> StepTime:
        """Return the step time of engines that draft: each token fed costs as much as a request. Heads' own layers cost nothing here."""
        if self.timed:
            return step_time
        return replace(step_time, per_request=step_time.per_request * (1 + self.tokens))


NO_DRAFTS = Drafts()
