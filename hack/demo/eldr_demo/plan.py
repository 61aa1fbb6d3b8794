"""What a demo does, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mix = Literal["first", "second"]
BASE = "JSQ"
"""The balancer that all others are compared with."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A phase that is measured.

    Attributes
    ----------
    policy : str
        Set by ``kubectl patch`` before it begins.
    mix : {"first", "second"}
        Kinds of text.
    centroids : str
        What the routers know of clusters, for the table.
    """

    policy: str
    mix: Mix
    centroids: str = "-"

    @property
    def name(self) -> str:
        """Name of the phase, unique in a plan."""
        return f"{self.policy}, {self.mix} mix, {self.centroids}"


@dataclass(frozen=True, slots=True)
class Fit:
    """Traffic is logged until the operator, by itself, has made a fit of it and its set is active.

    Attributes
    ----------
    mix : {"first", "second"}
    trigger : {"Bootstrap", "Drift"}
        Why the operator makes it.
    """

    mix: Mix
    trigger: Literal["Bootstrap", "Drift"]

    @property
    def label(self) -> str:
        """What the picture calls it."""
        return f"{self.trigger.lower()} fit"


Step = Measure | Fit

FULL: tuple[Step, ...] = (
    Measure(BASE, "first"),
    Measure("MarginalUnion", "first", "none yet"),
    Fit("first", "Bootstrap"),
    Measure("ELDR", "first", "fitted"),
    Measure("MarginalUnion", "first", "fitted"),
    Measure("MarginalUnion", "second", "stale"),
    Fit("second", "Drift"),
    Measure("MarginalUnion", "second", "refitted"),
    Measure(BASE, "second"),
)
SHORT = (FULL[0], *FULL[2:])
"""Without MarginalUnion before the first fit."""
FIRST_MIX = SHORT[:4]
"""Without the shift of the mix: drift is significant after more requests than some engines answer in an hour."""
