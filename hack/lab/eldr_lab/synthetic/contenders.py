"""The policies of a comparison, by name and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from eldr import contract
from eldr.core.policies import DEFAULT_PRIOR, DEFAULT_TAU, make_policy
from eldr.core.policy import Policy

BALANCED = "balanced"
"""Centroids as ``eldr fit`` makes them."""
_OPTIONS = {
    contract.POLICY_ELDR: ("tau", "min_candidates", "max_load"),
    contract.POLICY_MARGINAL: ("prior", "learned", "max_load"),
}
PRIOR = f"{contract.POLICY_MARGINAL}:prior={DEFAULT_PRIOR:g}"
"""``MarginalUnion`` as routers run it once there are centroids."""
LEARNED = f"{contract.POLICY_MARGINAL}:learned={DEFAULT_PRIOR:g}"
"""The same as they run it without: they learn the prior while they place."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One policy of a comparison.

    Attributes
    ----------
    text : str
        As it is shown: ``NAME`` or ``NAME:option=value:...``.
    options : tuple of (str, float)
    """

    text: str
    name: str
    options: tuple[tuple[str, float], ...] = ()

    @property
    def centroids(self) -> str | None:
        """Which centroids it looks at, if any."""
        prior = dict(self.options).get("prior", 0.0)
        return BALANCED if self.name == contract.POLICY_ELDR or prior > 0 else None

    @property
    def learns(self) -> bool:
        """Whether routers learn its prior while they place."""
        return dict(self.options).get("learned", 0.0) > 0

    @property
    def unions(self) -> bool:
        """Whether it looks at expected unions."""
        return self.name == contract.POLICY_MARGINAL

    def policy(self, groups: Mapping[str, frozenset[int]]) -> Policy:
        """Return the policy.

        Parameters
        ----------
        groups : mapping of str to frozenset of int
            Engines of each label, for ``Domain``.

        Raises
        ------
        ValueError
            If the name is unknown or an option out of range.
        """
        options = dict(self.options)
        return make_policy(
            self.name,
            tau=options.get("tau", DEFAULT_TAU),
            min_candidates=int(options.get("min_candidates", 1)),
            max_load=options.get("max_load", math.inf),
            prior=options.get("learned", options.get("prior", 0.0)),
            groups=groups,
        )


def parse_contender(text: str) -> Contender:
    """Return a contender from ``NAME[:option=value]...``.

    Raises
    ------
    ValueError
        If the name or an option is unknown, or a value out of range; the message lists what is known.

    Examples
    --------
    >>> parse_contender("ELDR:max_load=1.25").options
    (('max_load', 1.25),)
    """
    name, *rest = text.split(":")
    known = _OPTIONS.get(name, ())
    options: list[tuple[str, float]] = []
    for part in rest:
        option, _, value = part.partition("=")
        if option not in known:
            raise ValueError(
                f"{text!r}: {name} has no option {option!r}; it has {', '.join(known) or 'none'}"
            )
        if option in dict(options):
            raise ValueError(f"{text!r}: {option} is given twice")
        try:
            options.append((option, float(value)))
        except ValueError:
            raise ValueError(f"{text!r}: expected a number for {option}, got {value!r}") from None
        if option == "min_candidates" and not options[-1][1].is_integer():
            raise ValueError(f"{text!r}: expected a whole number for {option}, got {value!r}")
    if {"prior", "learned"} <= dict(options).keys():
        raise ValueError(f"{text!r}: a prior is fitted or learned: give prior or learned, not both")
    contender = Contender(text, name, tuple(options))
    try:
        contender.policy({})
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r}: {error}") from None
    return contender
