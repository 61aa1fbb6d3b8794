"""What worlds measured, and how one differs from another. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr_demo.compare import STATISTICS, Change
from eldr_lab.steps.world import Ran, Served

Floats = npt.NDArray[np.float64]

BLOCKS = 4
"""Of a trace, each about as long as a request stays or longer."""
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a world's measured time; requests that run together share a fate.

    Attributes
    ----------
    tpot : ndarray of float, shape (n_requests,)
        Seconds per token after the first.
    steps : int
    tokens : int
    active : float
        Sum over the tokens of the experts of their steps, mean over the layers.
    seconds : float
        Of the world's clock.
    """

    tpot: Floats
    steps: int
    tokens: int
    active: float
    seconds: float


def blocks(
    served: Mapping[int, Served],
    tokens: Sequence[int],
    steps: Sequence[Ran],
    numbers: Sequence[int],
    window: tuple[float, float],
) -> list[Block]:
    """Divide what was measured into :data:`BLOCKS` parts.

    Parameters
    ----------
    served : mapping of int to Served
        By the request's number.
    tokens : sequence of int
        Length of each request's answer, at least 2.
    steps : sequence of Ran
    numbers : sequence of int
        The requests that count, in order.
    window : (float, float)
        Steps that begin in it count, seconds.
    """
    begin, end = window
    edges = np.linspace(begin, end, BLOCKS + 1)
    part = np.digitize([step.begin for step in steps], edges) - 1
    found = []
    for at, mine in enumerate(np.array_split(np.array(numbers), BLOCKS)):
        run = [steps[i] for i in np.flatnonzero(part == at).tolist()]
        times = [(served[n].last - served[n].first) / (tokens[n] - 1) for n in mine.tolist()]
        found.append(
            Block(
                np.array(times),
                len(run),
                sum(step.batch for step in run),
                sum(step.batch * step.active for step in run),
                (end - begin) / BLOCKS,
            )
        )
    return found


def _tpot(statistic: Callable[[Floats], Floats]) -> Callable[[Sequence[Block]], float]:
    return lambda blocks: float(statistic(np.concatenate([block.tpot for block in blocks])))


MEASURES: Mapping[str, Callable[[Sequence[Block]], float]] = {
    **{f"TPOT {name}": _tpot(statistic) for name, statistic in STATISTICS.items()},
    "active experts": lambda blocks: sum(b.active for b in blocks) / sum(b.tokens for b in blocks),
    "batch": lambda blocks: sum(b.tokens for b in blocks) / sum(b.steps for b in blocks),
    "tokens/s": lambda blocks: sum(b.tokens for b in blocks) / sum(b.seconds for b in blocks),
}
"""Of a world; times in seconds, experts and batch as a generated token and a step see them."""


def change(base: Sequence[Block], other: Sequence[Block], measure: str, seed: int = 0) -> Change:
    """Return how a measure differs, with a 95 % interval by bootstrap over pairs of blocks."""
    value = MEASURES[measure]
    rng = np.random.default_rng(seed)
    drawn = [
        value([other[at] for at in some]) / value([base[at] for at in some]) - 1.0
        for some in rng.integers(0, len(base), (_RESAMPLES, len(base))).tolist()
    ]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Change(value(other) / value(base) - 1.0, float(low), float(high))
