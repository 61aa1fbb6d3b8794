"""Placement policies by name."""

from __future__ import annotations

import math
from collections.abc import Mapping

from eldr.core.balancers import JSQ, Domain, PowerOfTwo, Random, RoundRobin
from eldr.core.band import BandJSQ
from eldr.core.marginal import MAX_LOAD, MarginalUnion
from eldr.core.policy import Policy

DEFAULT_TAU = 0.1
"""Width of the band of :class:`~eldr.core.band.BandJSQ`: the paper's."""
DEFAULT_PRIOR = 0.23
"""Of :class:`~eldr.core.marginal.MarginalUnion`: 30 of 128 experts for a cosine of 1, see ``docs/how-it-works.md``."""


def make_policy(
    name: str,
    *,
    tau: float = DEFAULT_TAU,
    min_candidates: int = 1,
    max_load: float = math.inf,
    prior: float = DEFAULT_PRIOR,
    groups: Mapping[str, frozenset[int]] | None = None,
) -> Policy:
    """Return a policy by its name.

    Raises
    ------
    ValueError
        If the name is unknown (the message lists the known ones) or a parameter is out of range.
    """
    match name:
        case "ELDR":
            return BandJSQ(tau=tau, min_candidates=min_candidates, max_load=max_load)
        case "MarginalUnion":
            return MarginalUnion(prior=prior, max_load=MAX_LOAD if max_load == math.inf else max_load)
        case "JSQ":
            return JSQ()
        case "RoundRobin":
            return RoundRobin()
        case "PowerOfTwo":
            return PowerOfTwo()
        case "Random":
            return Random()
        case "Domain":
            return Domain(groups=groups or {})
        case _:
            raise ValueError(
                f"policy: unknown name {name!r}; known are ELDR, MarginalUnion, JSQ, RoundRobin, PowerOfTwo, Random, Domain"
            )
