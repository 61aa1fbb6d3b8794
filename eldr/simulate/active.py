"""Active experts of one engine's batch."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from eldr.core.signature import Floats
from eldr.simulate.population import Cells, Ints, Population
from eldr.simulate.replicas import Held


class Active(NamedTuple):
    """Distinct experts of a step, mean over the layers.

    Attributes
    ----------
    all : float
        Of the whole engine.
    fullest : float
        Of the rank that has most of a layer's: the others wait for it, layer by layer. With one rank the same as ``all``.
    """

    all: float
    fullest: float


_NONE = Active(0.0, 0.0)


class ActiveExperts(Protocol):
    """Who is in a batch, and what it uses."""

    @property
    def steady(self) -> bool:
        """Whether the answer stays the same until somebody joins or leaves."""

    def join(self, record: int, step: int) -> None:
        """Take a request in before an engine's step."""

    def leave(self, record: int, step: int) -> None:
        """Let go one that joined before that step."""

    def count(self, step: int) -> Active:
        """Return the distinct experts of a step."""


class ExpectedUnion:
    """The mean over all that decode steps may choose, ``E - sum_e prod_r (1 - p_re)``.

    Of several ranks the fullest one is that of the largest mean, which is less than the mean of the largest.

    Parameters
    ----------
    logs : ndarray of float32, shape (n_records, n_layers * n_experts)
        See :class:`eldr.simulate.population.Population`.
    n_layers : int
    ranks : int
        Each holds as many experts of every layer.
    order : ndarray of int, shape (n_layers * n_experts,), optional
        Cells of the first layer's first rank, of its second one, and so on; without, experts lie in their own order.
    """

    steady = True

    def __init__(self, logs: Floats, n_layers: int, ranks: int = 1, order: Ints | None = None) -> None:
        self._logs, self._order = logs, order
        self._n_layers, self._ranks = n_layers, ranks
        self._sum = np.zeros(logs.shape[1], dtype=np.float64)
        self._members = 0
        self._count: Active | None = _NONE

    def join(self, record: int, step: int) -> None:  # noqa: ARG002
        """Take a request in."""
        self._sum += self._logs[record]
        self._members += 1
        self._count = None

    def leave(self, record: int, step: int) -> None:  # noqa: ARG002
        """Let one go."""
        self._sum -= self._logs[record]
        self._members -= 1
        if not self._members:
            self._sum[:] = 0.0  # nothing of the rounding stays
        self._count = None

    def count(self, step: int) -> Active:  # noqa: ARG002
        """Return the expected distinct experts."""
        if self._count is None:
            survival = np.exp(self._sum)
            every = (survival.size - float(survival.sum())) / self._n_layers
            fullest = every
            if self._ranks > 1:
                placed = survival if self._order is None else survival[self._order]
                left = placed.reshape(self._n_layers, self._ranks, -1)
                fullest = left.shape[2] - float(left.sum(axis=2).min(axis=1).mean())
            self._count = Active(every, fullest)
        return self._count


class SampledUnion:
    """What single steps choose, one by one.

    Parameters
    ----------
    steps : ndarray of uint16, shape (n_records, n_steps, n_layers * top_k)
        See :class:`eldr.simulate.population.Population`.
    shape : (n_layers, n_experts)
    ranks : int
        Each holds as many experts of every layer.
    order : ndarray of int, shape (n_layers * n_experts,), optional
        Cells of the first layer's first rank, of its second one, and so on; without, experts lie in their own order.
    held : Held, optional
        In place of ``order``: experts that have replicas.
    """

    steady = False

    def __init__(
        self,
        steps: Cells,
        shape: tuple[int, int],
        ranks: int = 1,
        order: Ints | None = None,
        held: Held | None = None,
    ) -> None:
        self._steps, self._order, self._held = steps, order, held
        self._n_steps = steps.shape[1]
        self._n_layers, self._ranks = shape[0], ranks
        self._used = np.zeros(shape[0] * shape[1], dtype=np.bool_)
        self._members: list[tuple[int, int]] = []
        self._arrays: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]] | None = None

    def join(self, record: int, step: int) -> None:
        """Take a request in before an engine's step."""
        self._members.append((record, step))
        self._arrays = None

    def leave(self, record: int, step: int) -> None:
        """Let go one that joined before that step."""
        self._members.remove((record, step))
        self._arrays = None

    def count(self, step: int) -> Active:
        """Return the distinct experts of a step."""
        if not self._members:
            return _NONE
        if self._arrays is None:
            members = np.array(self._members, dtype=np.intp)
            self._arrays = members[:, 0], members[:, 1]
        records, joined = self._arrays
        cells = self._steps[records, (step - joined) % self._n_steps]
        self._used[:] = False
        self._used[cells] = True
        every = np.count_nonzero(self._used) / self._n_layers
        if self._held is not None:
            return Active(every, float(self._held.fullest(cells).mean()))
        if self._ranks == 1:
            return Active(every, every)
        placed = self._used if self._order is None else self._used[self._order]
        held = np.count_nonzero(placed.reshape(self._n_layers, self._ranks, -1), axis=2)
        return Active(every, float(held.max(axis=1).mean()))


def active_experts(
    population: Population,
    *,
    sampled: bool,
    ranks: int = 1,
    order: Ints | None = None,
    held: Held | None = None,
) -> ActiveExperts:
    """Return an empty batch of a population on an engine of so many ranks, which hold experts in some order, or with replicas.

    Raises
    ------
    ValueError
        If single steps are asked for and not known, or needed for replicas, or the experts cannot be divided evenly.
    """
    population.of_a_rank(ranks)
    if held is not None and not sampled:
        raise ValueError("unions: which replica computes is chosen step by step; use sampled unions")
    if not sampled:
        return ExpectedUnion(population.logs, population.n_layers, ranks, order)
    if population.steps is None:
        raise ValueError("unions: single steps of these requests are not known; use expected unions")
    return SampledUnion(population.steps, (population.n_layers, population.n_experts), ranks, order, held)
