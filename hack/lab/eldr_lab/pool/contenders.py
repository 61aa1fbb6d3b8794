"""Policies that only studies compare: blind ones, and centroids fitted anew while routers run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from eldr import contract
from eldr.core.policies import DEFAULT_PRIOR
from eldr.core.policy import Policy
from eldr_lab.synthetic import contenders

BLIND = f"{contract.POLICY_MARGINAL}:blind"
"""MarginalUnion that takes every request for the mean one: it knows how fast engines are, and nothing of experts."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One policy of a study.

    Attributes
    ----------
    text : str
        As it is shown.
    base : eldr_lab.synthetic.contenders.Contender
        What a router runs.
    refit : float or None
        Seconds between refits of its centroids, which look back twice as far; None: it keeps the first ones.
    blind : bool
        Whether it takes every request for the mean one.
    """

    text: str
    base: contenders.Contender
    refit: float | None = None
    blind: bool = False

    @property
    def centroids(self) -> str | None:
        """Which centroids it looks at, or None."""
        return self.base.centroids

    @property
    def unions(self) -> bool:
        """Whether it looks at expected unions."""
        return self.base.unions

    @property
    def learns(self) -> bool:
        """Whether routers learn its prior while they place."""
        return self.base.learns

    def policy(self, groups: Mapping[str, frozenset[int]]) -> Policy:
        """Return the policy, as the product's contenders do."""
        return self.base.policy(groups)


def parse_contender(text: str) -> Contender:
    """Return a contender from ``NAME[:option=value]...``; ``refit`` is in seconds.

    Raises
    ------
    ValueError
        If the name or an option is unknown, or a value out of range.

    Examples
    --------
    >>> parse_contender("ELDR:refit=2.5").refit
    2.5
    """
    if text == BLIND:
        return Contender(text, contenders.parse_contender(contract.POLICY_MARGINAL), blind=True)
    parts = text.split(":")
    base = contenders.parse_contender(":".join(part for part in parts if not part.startswith("refit=")))
    refits = [float(part.removeprefix("refit=")) for part in parts if part.startswith("refit=")]
    if not refits:
        return Contender(text, base)
    if not (math.isfinite(refits[0]) and refits[0] > 0):
        raise ValueError(f"{text!r}: refit: expected seconds, more than 0, got {refits[0]:g}")
    if base.centroids is None:
        raise ValueError(
            f"{text!r}: refit: there are no centroids to refit; give prior={DEFAULT_PRIOR:g}, too"
        )
    return Contender(text, base, refits[0])
