"""What one simulated run measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eldr.simulate.engine import Ran
from eldr.simulate.workload import Times, Window, Workload


@dataclass(frozen=True, slots=True)
class Measures:
    """One policy under one workload.

    Attributes
    ----------
    requests : int
        Measured ones.
    tpot_mean, tpot_p50, tpot_p99 : float
        Time per output token after the first, over the requests, seconds.
    waited : float
        Share of the requests that came to an engine without room for them.
    active_per_token : float
        Distinct experts per layer in the steps that a generated token sees: each step counts as often as it has requests.
    batch : float
        Requests per step.
    """

    requests: int
    tpot_mean: float
    tpot_p50: float
    tpot_p99: float
    waited: float
    active_per_token: float
    batch: float


class Tally:
    """Sums over the steps and placements that fall into the window."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._steps = self._tokens = self._active = 0.0
        self._placements = self._waited = 0

    def ran(self, ran: Ran) -> None:
        """Count steps, by the part of their time that lies in the window."""
        begin = max(ran.begin, self._window.warmup)
        end = min(ran.begin + ran.steps * ran.seconds, self._window.end)
        if end > begin:
            self.steps((end - begin) / ran.seconds, ran)

    def steps(self, number: float, ran: Ran) -> None:
        """Count so many equal steps."""
        self._steps += number
        self._tokens += number * ran.batch
        self._active += number * ran.batch * ran.active

    def placed(self, in_flight: list[int], *, waits: bool) -> None:  # noqa: ARG002
        """Count a placement, after it."""
        self._placements += 1
        self._waited += waits

    def measures(self, workload: Workload, first: Times, end: Times) -> Measures:
        """Return the measures of a run that is over.

        Parameters
        ----------
        workload : Workload
        first, end : ndarray of float, shape (n,)
            When each request's first and last token came, seconds.

        Raises
        ------
        ValueError
            If no measured request generated two tokens, or no step ran while they came.
        """
        several = workload.measured & (workload.tokens > 1)
        if not several.any() or not self._tokens:
            raise ValueError(
                "no request of two tokens or more decoded in the measured time; simulate longer or at a higher rate"
            )
        tpot = (end[several] - first[several]) / (workload.tokens[several] - 1) / workload.per_step
        p50, p99 = np.percentile(tpot, (50, 99)).tolist()
        return Measures(
            requests=int(workload.measured.sum()),
            tpot_mean=float(tpot.mean()),
            tpot_p50=p50,
            tpot_p99=p99,
            waited=self._waited / self._placements,
            active_per_token=self._active / self._tokens,
            batch=self._tokens / self._steps,
        )
