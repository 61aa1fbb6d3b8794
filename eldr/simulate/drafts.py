"""Speculative decoding in a simulated pool: each step feeds drafts beside a request's token, and generates those that are accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from eldr.core.step_time import StepTime
from eldr.simulate.population import Ints, Population

Requests = TypeVar("Requests", bound=Population)


class Drafts(NamedTuple):
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

    def steps(self, requests: Population) -> Ints:
        """Return the decode steps of each request."""
        return np.ceil(requests.output_tokens / self.per_step).astype(np.int64)

    def fed(self, requests: Requests) -> Requests:
        """Return requests whose steps use the experts of all tokens that are fed: as many of their own, drafts being like accepted ones."""
        return (
            replace(requests, logs=requests.logs * np.float32(1 + self.tokens)) if self.tokens else requests
        )

    def slowed(self, step_time: StepTime) -> StepTime:
        """Return the step time of engines that draft: each token fed costs as much as a request. Heads' own layers cost nothing here."""
        fed = 1 if self.timed else 1 + self.tokens
        return replace(step_time, per_request=step_time.per_request * fed)


NO_DRAFTS = Drafts()
