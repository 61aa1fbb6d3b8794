"""What single runs of a study found, and whether their pool keeps up."""

from __future__ import annotations

import math
from typing import NamedTuple

from eldr.simulate.measures import Measures

MOST_WAITED = 0.01
"""Share of requests that may find their engine without room where a pool keeps up."""
BUSIEST = 0.95
"""Share of the time that its prefill engines may compute."""


class Done(NamedTuple):
    """What one run met and measured.

    Attributes
    ----------
    rate : float
        Requests per second.
    measures : Measures
    prefill_rate : float
        So many its prefill engines can compute; infinity if prompts take no time.
    """

    rate: float
    measures: Measures
    prefill_rate: float


class Outcome(NamedTuple):
    """One run's place in the study, what it met and what it measured, as in :class:`Done`."""

    setting: int
    contender: int
    seed: int
    rate: float
    measures: Measures
    prefill_rate: float = math.inf

    @property
    def keeps_up(self) -> bool:
        """Whether the pool serves the rate for good, rather than only while its queues grow."""
        return self.measures.waited <= MOST_WAITED and not self.prefill_busy

    @property
    def prefill_busy(self) -> bool:
        """Whether prefill engines have nearly no time left, or none at all."""
        return self.rate >= BUSIEST * self.prefill_rate
