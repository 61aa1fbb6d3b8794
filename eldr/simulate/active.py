"""Active experts of one engine's batch."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from eldr.core.signature import Floats
from eldr.simulate.population import Cells, Population


class Active(NamedTuple):
    """Distinct experts of a step, mean over the layers.

    Attributes
    ----------
    all : float
        Of the engine, over all its ranks.
    fullest : float
        What the step waits for. An engine of one rank waits for all of them.
    """

    all: float
    fullest: float


_NONE = Active(0.0, 0.0)


class ActiveExperts(Protocol):
    """Who is in a batch, and what it uses."""

    @property
    def steady(self) -> bool:
        """Whether the answer stays the same until a request joins or leaves."""

    def join(self, record: int, step: int) -> None:
        """Take a request in before an engine's step."""

    def leave(self, record: int, step: int) -> None:
        """Let go one that joined before that step."""

    def count(self, step: int) -> Active:
        """Return the distinct experts of a step."""


class ExpectedUnion:
    """The mean over all that decode steps may choose, ``E - sum_e prod_r (1 - p_re)``.

    Parameters
    ----------
    logs : ndarray of float32, shape (n_records, n_layers * n_experts)
        See :class:`eldr.simulate.population.Population`.
    """

    steady = True

    def __init__(self, logs: Floats, n_layers: int) -> None:
        self._logs, self._n_layers = logs, n_layers
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
            self._count = Active(every, self._fullest(survival, every))
        return self._count

    def _fullest(self, survival: npt.NDArray[np.float64], every: float) -> float:  # noqa: ARG002 - one rank
        return every


class SampledUnion:
    """What single steps choose, one by one.

    Parameters
    ----------
    steps : ndarray of uint16, shape (n_records, n_steps, n_layers * top_k)
        See :class:`eldr.simulate.population.Population`.
    shape : (n_layers, n_experts)
    """

    steady = False

    def __init__(self, steps: Cells, shape: tuple[int, int]) -> None:
        self._steps = steps
        self._n_steps, self._n_layers = steps.shape[1], shape[0]
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
        return Active(every, self._fullest(cells, self._used, every))

    def _fullest(self, cells: Cells, used: npt.NDArray[np.bool_], every: float) -> float:  # noqa: ARG002 - one rank
        return every


def active_experts(population: Population, *, sampled: bool) -> ActiveExperts:
    """Return an empty batch of a population; ValueError if single steps are asked for and not known."""
    if not sampled:
        return ExpectedUnion(population.logs, population.n_layers)
    if population.steps is None:
        raise ValueError("unions: single steps of these requests are not known; use expected unions")
    return SampledUnion(population.steps, (population.n_layers, population.n_experts))
