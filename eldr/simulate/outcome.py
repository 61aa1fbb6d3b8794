"""What single runs of a study found, and whether their pool keeps up."""

from __future__ import annotations

from typing import NamedTuple

from eldr.simulate.measures import Measures

MOST_WAITED = 0.01
"""Share of requests that may find their engine without room where a pool keeps up."""


class Outcome(NamedTuple):
    """One run's place in the study, its rate in requests per second, and what it measured."""

    setting: int
    contender: int
    seed: int
    rate: float
    measures: Measures

    @property
    def keeps_up(self) -> bool:
        """Whether the pool serves the rate for good, rather than only while its queues grow."""
        return self.measures.waited <= MOST_WAITED
