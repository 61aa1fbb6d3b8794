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
    """Traffic is logged until a fit has enough of it, and the fit's set is active.

    Attributes
    ----------
    mix : {"first", "second"}
    manual : bool
        A person creates the EldrFit; else it is the bootstrap fit.
    """

    mix: Mix
    manual: bool

    @property
    def label(self) -> str:
        """What the picture calls it."""
        return "manual fit" if self.manual else "bootstrap fit"


Step = Measure | Fit

FULL: tuple[Step, ...] = (
    Measure(BASE, "first"),
    Measure("MarginalUnion", "first", "none yet"),
    Fit("first", manual=False),
    Measure("ELDR", "first", "fitted"),
    Measure("MarginalUnion", "first", "fitted"),
    Measure(BASE, "second"),
    Measure("ELDR", "second", "stale"),
    Measure("MarginalUnion", "second", "stale"),
    Fit("second", manual=True),
    Measure("MarginalUnion", "second", "fitted"),
)
SHORT: tuple[Step, ...] = (
    Measure(BASE, "first"),
    Fit("first", manual=False),
    Measure("ELDR", "first", "fitted"),
    Measure("MarginalUnion", "first", "fitted"),
    Measure(BASE, "second"),
    Measure("MarginalUnion", "second", "stale"),
    Fit("second", manual=True),
    Measure("ELDR", "second", "fitted"),
)
