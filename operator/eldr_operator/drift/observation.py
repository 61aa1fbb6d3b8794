"""What a decision about drift looks at. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from eldr.contract import POLICY_ELDR, POLICY_MARGINAL
from eldr_operator.drift.counts import Baseline, Saving
from eldr_operator.drift.windows import Window


class DriftFit(NamedTuple):
    """An EldrFit that drift has caused: ``NAME-drift-NUMBER``."""

    number: int
    created: datetime
    finished: datetime | None = None


class SetReport(NamedTuple):
    """What a fit said of the active set: whether it does significantly worse than JSQ on recent records."""

    fit: str
    harms: bool
    finished: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look at a deployment, of which ``digest`` and ``baseline`` are of the active set.

    Parameters
    ----------
    previous : str or None
        Digest of the set before, if it could serve again.
    pinned : bool
        Whether ``spec.centroids.pin`` is set, whatever it names: nothing is fitted, activated or rolled back by itself.
    chosen : bool
        Whether ``spec.centroids.pin`` names the active set, which then serves though it harms.
    window : Window or None
        The last full one; the same one may be shown again.
    report : SetReport or None
        The last one since the set became active.
    busy : str or None
        The fit, of whatever cause, that runs or whose set is not active yet.
    samples, min_samples : int
        Log records that routers hold, and that a fit needs.
    sample_rate : float
        Share of requests that are logged.
    """

    digest: str | None
    activated: datetime | None = None
    previous: str | None = None
    pinned: bool = False
    chosen: bool = False
    policy: str = POLICY_MARGINAL
    baseline: Baseline | None = None
    window: Window | None = None
    saving: Saving | None = None
    report: SetReport | None = None
    fits: tuple[DriftFit, ...] = ()
    suspended: bool = False
    busy: str | None = None
    samples: int = 0
    min_samples: int = 1000
    sample_rate: float = 0.1

    @property
    def places(self) -> bool:
        """Whether the policy uses the set."""
        return self.policy in (POLICY_ELDR, POLICY_MARGINAL)
