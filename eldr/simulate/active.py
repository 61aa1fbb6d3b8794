"""Active experts of one engine's batch."""

from __future__ import annotations

import numpy as np

from eldr.core.signature import Floats


class ActiveExperts:
    """The expected experts of a step, a mean over all that its requests may choose: ``E - sum_e prod_r (1 - p_re)``.

    Parameters
    ----------
    logs : ndarray of float32, shape (n_records, n_layers * n_experts)
        See :class:`eldr.simulate.population.Population`.
    n_layers : int

    Attributes
    ----------
    steady : bool
        Whether the answer stays the same until a request joins or leaves.
    """

    steady = True

    def __init__(self, logs: Floats, n_layers: int) -> None:
        self._logs, self._n_layers = logs, n_layers
        self._sum = np.zeros(logs.shape[1], dtype=np.float64)
        self._members = 0

    def join(self, record: int, step: int) -> None:  # noqa: ARG002
        """Take a request in before an engine's step."""
        self._sum += self._logs[record]
        self._members += 1

    def leave(self, record: int, step: int) -> None:  # noqa: ARG002
        """Let go one that joined before that step."""
        self._sum -= self._logs[record]
        self._members -= 1
        if not self._members:
            self._sum[:] = 0.0  # nothing of the rounding stays

    def count(self, step: int) -> float:  # noqa: ARG002
        """Return the distinct experts of a step, mean over the layers."""
        return (self._sum.size - float(np.exp(self._sum).sum())) / self._n_layers
