"""What one run measured, with what only studies ask."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from eldr.simulate import measures
from eldr.simulate.engine import Ran
from eldr.simulate.workload import Times, Window, Workload
from eldr_lab.synthetic.active import Active


@dataclass(frozen=True, slots=True)
class Measures(measures.Measures):
    """One policy under one workload.

    Attributes
    ----------
    tpot_p95 : float
        Time per output token after the first, over the requests, seconds.
    ttft_p50, ttft_p99 : float
        From a request's arrival to the end of its first decode step, seconds.
    active_per_step : float
        As ``active_per_token`` with all steps alike; a policy that leaves some engines nearly empty lowers it without serving anybody faster.
    fullest_per_token : float
        As ``active_per_token``, of the rank that has most of a layer's.
    imbalance : float
        Largest number in flight at one engine, times engines, over all in flight; mean over placements.
    """

    tpot_p95: float
    ttft_p50: float
    ttft_p99: float
    active_per_step: float
    fullest_per_token: float
    imbalance: float


class Tally(measures.Tally):
    """Sums over the steps and placements that fall into the window."""

    def __init__(self, window: Window) -> None:
        super().__init__(window)
        self._every = self._every_tokens = self._imbalance = 0.0

    def steps(self, number: float, ran: Ran) -> None:
        """Count so many equal steps."""
        super().steps(number, ran)
        every = ran.active.all if isinstance(ran.active, Active) else ran.active
        self._every += number * every
        self._every_tokens += number * ran.batch * every

    def placed(self, in_flight: list[int], *, waits: bool) -> None:
        """Count a placement, after it."""
        super().placed(in_flight, waits=waits)
        self._imbalance += max(in_flight) * len(in_flight) / sum(in_flight)

    def measures(self, workload: Workload, first: Times, end: Times) -> Measures:
        """Return the measures of a run that is over; ValueError as of the product's."""
        plain = super().measures(workload, first, end)
        known = {field.name: getattr(plain, field.name) for field in fields(plain)}
        several = workload.measured & (workload.tokens > 1)
        tpot = (end[several] - first[several]) / (workload.tokens[several] - 1) / workload.per_step
        p50, p99 = np.percentile((first - workload.arrival)[workload.measured], (50, 99)).tolist()
        return Measures(
            **known | {"active_per_token": self._every_tokens / self._tokens},
            tpot_p95=float(np.percentile(tpot, 95)),
            ttft_p50=p50,
            ttft_p99=p99,
            active_per_step=self._every / self._steps,
            fullest_per_token=plain.active_per_token,
            imbalance=self._imbalance / self._placements,
        )
