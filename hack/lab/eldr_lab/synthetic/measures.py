"""What one run measured, with what only studies ask."""

from __future__ import annotations

from dataclasses import dataclass, fields

from eldr.simulate import measures
from eldr.simulate.engine import Ran
from eldr.simulate.workload import Times, Window, Workload


@dataclass(frozen=True, slots=True)
class Measures(measures.Measures):
    """One policy under one workload.

    Attributes
    ----------
    active_per_step : float
        As ``active_per_token`` with all steps alike; a policy that leaves some engines nearly empty lowers it without serving anybody faster.
    imbalance : float
        Largest number in flight at one engine, times engines, over all in flight; mean over placements.
    """

    active_per_step: float
    imbalance: float


class Tally(measures.Tally):
    """Sums over the steps and placements that fall into the window."""

    def __init__(self, window: Window) -> None:
        super().__init__(window)
        self._active_steps = self._imbalance = 0.0

    def steps(self, number: float, ran: Ran) -> None:
        """Count so many equal steps."""
        super().steps(number, ran)
        self._active_steps += number * ran.active

    def placed(self, in_flight: list[int], *, waits: bool) -> None:
        """Count a placement, after it."""
        super().placed(in_flight, waits=waits)
        self._imbalance += max(in_flight) * len(in_flight) / sum(in_flight)

    def measures(self, workload: Workload, first: Times, end: Times) -> Measures:
        """Return the measures of a run that is over; ValueError as of the product's."""
        plain = super().measures(workload, first, end)
        known = {field.name: getattr(plain, field.name) for field in fields(plain)}
        return Measures(
            **known,
            active_per_step=self._active_steps / self._steps,
            imbalance=self._imbalance / self._placements,
        )
