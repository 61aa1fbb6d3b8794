"""Policies that only studies compare: unbalanced clusters, and centroids that routers refit while they run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from eldr import contract
from eldr.core.policies import DEFAULT_PRIOR
from eldr.core.policy import Policy
from eldr_lab.synthetic import contenders

VANILLA = "ELDR-vanilla"
"""ELDR with centroids of a K-means that does not balance its clusters: a baseline of the paper."""
UNBALANCED = "vanilla"
BLIND = f"{contract.POLICY_MARGINAL}:blind"
"""MarginalUnion that takes every request for the mean one: it knows how fast engines are, and nothing of experts."""
_REFIT = ("refit", "window")


@dataclass(frozen=True, slots=True)
class Contender:
    """One policy of a study.

    Attributes
    ----------
    text : str
        As it is shown.
    base : eldr_lab.synthetic.contenders.Contender
        What a router runs.
    centroids : str or None
        Which ones it looks at: balanced ones, those of :data:`UNBALANCED` clusters, or none.
    refit : (float, float) or None
        Seconds between refits of its centroids, and of prompts that they look back on; None: it keeps the first ones.
    blind : bool
        Whether it takes every request for the mean one.
    """

    text: str
    base: contenders.Contender
    centroids: str | None
    refit: tuple[float, float] | None = None
    blind: bool = False

    @property
    def unions(self) -> bool:
        """Whether it looks at expected unions."""
        return self.base.unions

    @property
    def learns(self) -> bool:
        """Whether routers learn its prior while they place."""
        return self.base.learns

    def policy(self, groups: Mapping[str, frozenset[int]]) -> Policy:
        """Return the policy, as :meth:`eldr_lab.synthetic.contenders.Contender.policy` does."""
        return self.base.policy(groups)


def parse_contender(text: str) -> Contender:
    """Return a contender from ``NAME[:option=value]...``; ``refit`` and ``window`` are in seconds.

    Raises
    ------
    ValueError
        If the name or an option is unknown, or a value out of range.

    Examples
    --------
    >>> parse_contender("ELDR:refit=2.5").refit
    (2.5, 5.0)
    """
    if text == BLIND:
        return Contender(text, contenders.parse_contender(contract.POLICY_MARGINAL), None, blind=True)
    name, *rest = text.split(":")
    own = dict(part.split("=", 1) for part in rest if part.split("=")[0] in _REFIT)
    options = [part for part in rest if part.split("=")[0] not in _REFIT]
    base = contenders.parse_contender(":".join((contract.POLICY_ELDR if name == VANILLA else name, *options)))
    centroids = UNBALANCED if name == VANILLA else base.centroids
    return Contender(text, base, centroids, _refit(text, own, centroids) if own else None)


def _refit(text: str, own: Mapping[str, str], centroids: str | None) -> tuple[float, float]:
    seconds = {option: float(value) for option, value in own.items()}
    for option, value in seconds.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{text!r}: {option}: expected seconds, more than 0, got {value:g}")
    if "refit" not in seconds:
        raise ValueError(f"{text!r}: window: says how far refits look back; give refit=SECONDS, too")
    if centroids is None:
        raise ValueError(
            f"{text!r}: refit: there are no centroids to refit; give prior={DEFAULT_PRIOR:g}, too"
        )
    return seconds["refit"], seconds.get("window", 2.0 * seconds["refit"])
