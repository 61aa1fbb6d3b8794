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
    tpot_mean, tpot_p50, tpot_p95, tpot_p99 : float
        Time per output token after the first, over the requests, seconds.
    ttft_mean, ttft_p50, ttft_p99 : float
        From a request's arrival to the end of its first decode step, seconds.
    waited : float
        Share of the requests that came to an engine without room for them.
    active_per_token : float
        Distinct experts per layer in the steps that a generated token sees: each step counts as often as it has requests.
    active_per_step : float
        The same with all steps alike; a policy that leaves some engines nearly empty lowers it without serving anybody faster.
    fullest_per_token : float
        As ``active_per_token``, of the rank that has most of a layer's.
    batch : float
        Requests per step.
    imbalance : float
        Largest number in flight at one engine, times engines, over all in flight; mean over placements.
    candidates : float
        Engines among which load decided, mean over placements.
    """

    requests: int
    tpot_mean: float
    tpot_p50: float
    tpot_p95: float
    tpot_p99: float
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    waited: float
    active_per_token: float
    active_per_step: float
    fullest_per_token: float
    batch: float
    imbalance: float
    candidates: float


class Tally:
    """Sums over the steps and placements that fall into the window."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._steps = self._tokens = self._active = self._active_tokens = self._fullest_tokens = 0.0
        self._placements = self._candidates = self._waited = 0
        self._imbalance = 0.0

    def steps(self, ran: Ran) -> None:
        """Count steps, by the part of their time that lies in the window."""
        begin = max(ran.begin, self._window.warmup)
        end = min(ran.begin + ran.steps * ran.seconds, self._window.end)
        if end <= begin:
            return
        steps = (end - begin) / ran.seconds
        self._steps += steps
        self._tokens += steps * ran.batch
        self._active += steps * ran.active.all
        self._active_tokens += steps * ran.batch * ran.active.all
        self._fullest_tokens += steps * ran.batch * ran.active.fullest

    def placed(self, in_flight: list[int], candidates: int, *, waits: bool) -> None:
        """Count a placement, after it."""
        self._placements += 1
        self._candidates += candidates
        self._waited += waits
        self._imbalance += max(in_flight) * len(in_flight) / sum(in_flight)

    def measures(self, workload: Workload, first: Times, end: Times) -> Measures:
        """Return the measures of a run that is over.

        Parameters
        ----------
        first, end : ndarray of float, shape (n,)
            When each request's first and last token came, seconds.

        Raises
        ------
        ValueError
            If no measured request generated two tokens, or no step ran while they came.
        """
        several = workload.measured & (workload.tokens > 1)
        if not several.any():
            raise ValueError(
                "no request of two tokens or more arrived in the measured time; simulate longer or at a higher rate"
            )
        if not self._tokens:
            raise ValueError(
                "no decode step ran in the measured time: prompts were still being computed; simulate longer"
            )
        tpot = (end[several] - first[several]) / (workload.tokens[several] - 1) / workload.per_step
        ttft = (first - workload.arrival)[workload.measured]
        p50, p95, p99 = np.percentile(tpot, (50, 95, 99)).tolist()
        ttft_p50, ttft_p99 = np.percentile(ttft, (50, 99)).tolist()
        placements = max(1, self._placements)
        return Measures(
            requests=int(workload.measured.sum()),
            tpot_mean=float(tpot.mean()),
            tpot_p50=p50,
            tpot_p95=p95,
            tpot_p99=p99,
            ttft_mean=float(ttft.mean()),
            ttft_p50=ttft_p50,
            ttft_p99=ttft_p99,
            waited=self._waited / placements,
            active_per_token=self._active_tokens / max(self._tokens, 1e-9),
            active_per_step=self._active / max(self._steps, 1e-9),
            fullest_per_token=self._fullest_tokens / max(self._tokens, 1e-9),
            batch=self._tokens / max(self._steps, 1e-9),
            imbalance=self._imbalance / placements,
            candidates=self._candidates / placements,
        )
