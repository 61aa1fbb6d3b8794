"""Results of single runs of a study."""

from __future__ import annotations

from typing import NamedTuple

from eldr.simulate.measures import Measures

MOST_WAITED = 0.01
"""Share of requests that may meet a full engine where a pool keeps up."""


class Outcome(NamedTuple):
    """One run's place in the study, its rate in requests per second, and what it measured."""

    setting: int
    contender: int
    seed: int
    rate: float
    measures: Measures
