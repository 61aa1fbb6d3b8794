"""The policies of a comparison, as a deployment's routers run them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from eldr import contract
from eldr.core.policies import DEFAULT_TAU

NAMES = tuple(name for name in contract.POLICIES if name != contract.POLICY_DOMAIN)
"""Those that can be simulated: ``Domain`` places by a header that no log holds."""
BASELINE = "JSQ"
USUAL = BASELINE, contract.POLICY_ELDR, contract.POLICY_MARGINAL


class Settings(NamedTuple):
    """Settings of the policies in ``spec.router``, with the API's defaults."""

    tau: float = DEFAULT_TAU
    min_candidates: int = 1
    max_load: float = math.inf


DEFAULTS = Settings()


class Contender(NamedTuple):
    """One row of the comparison.

    Attributes
    ----------
    text : str
        As it is shown.
    name : str
        As in ``spec.router.policy``.
    centroids, unions : bool
        Whether it places by centroids, and by expected active experts.
    """

    text: str
    name: str
    centroids: bool
    unions: bool


def contenders(names: Iterable[str]) -> list[Contender]:
    """Return the rows: the baseline first, and ``MarginalUnion`` both before the first fit and after it."""
    rows = []
    for name in dict.fromkeys((BASELINE, *names)):
        unions = name == contract.POLICY_MARGINAL
        if unions:
            rows.append(Contender(f"{name}, no centroids", name, centroids=False, unions=True))
        rows.append(Contender(name, name, unions or name == contract.POLICY_ELDR, unions))
    return rows
