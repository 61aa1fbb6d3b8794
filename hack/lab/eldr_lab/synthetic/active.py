"""Active experts of one engine's batch: expected ones, and those of single steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from eldr.simulate.active import ActiveExperts
from eldr_lab.synthetic.population import Cells, Population


class SampledUnion(ActiveExperts):
    """What single steps choose, one by one.

    Parameters
    ----------
    steps : ndarray of uint16, shape (n_records, n_steps, n_layers * top_k)
        See :class:`eldr_lab.synthetic.population.Population`.
    shape : (n_layers, n_experts)
    """

    steady = False

    def __init__(self, steps: Cells, shape: tuple[int, int]) -> None:
        super().__init__(np.zeros((0, shape[0] * shape[1]), dtype=np.float32), shape[0])
        self._steps = steps
        self._n_steps = steps.shape[1]
        self._used = np.zeros(shape[0] * shape[1], dtype=np.bool_)
        self._joined: list[tuple[int, int]] = []
        self._arrays: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]] | None = None

    def join(self, record: int, step: int) -> None:
        """Take a request in before an engine's step."""
        self._joined.append((record, step))
        self._arrays = None

    def leave(self, record: int, step: int) -> None:
        """Let go one that joined before that step."""
        self._joined.remove((record, step))
        self._arrays = None

    def count(self, step: int) -> float:
        """Return the distinct experts of a step, mean over the layers."""
        if not self._joined:
            return 0.0
        if self._arrays is None:
            members = np.array(self._joined, dtype=np.intp)
            self._arrays = members[:, 0], members[:, 1]
        records, joined = self._arrays
        self._used[:] = False
        self._used[self._steps[records, (step - joined) % self._n_steps]] = True
        return np.count_nonzero(self._used) / self._n_layers


def active_experts(population: Population, *, sampled: bool) -> ActiveExperts:
    """Return an empty batch of a population; ValueError if single steps are asked for and not known."""
    if not sampled:
        return ActiveExperts(population.logs, population.n_layers)
    if population.steps is None:
        raise ValueError("unions: single steps of these requests are not known; use expected unions")
    return SampledUnion(population.steps, (population.n_layers, population.n_experts))
