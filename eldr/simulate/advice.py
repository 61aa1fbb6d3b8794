"""What to set so that routers do what was simulated. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from eldr import contract
from eldr.core.policies import DEFAULT_PRIOR, DEFAULT_TAU
from eldr.simulate.contenders import LEARNED, PRIOR, Contender

MAPPING = (
    f"{LEARNED} is what routers with spec.router.policy: {contract.POLICY_MARGINAL} do before the first fit, "
    f"{PRIOR} what the same ones do once centroids are active."
)
"""One name of a policy, two rows of a table."""


def to_set(contender: Contender) -> str:
    """Return the settings of an EldrDeployment that make its routers do the same.

    Examples
    --------
    >>> from eldr.simulate.contenders import parse_contender
    >>> to_set(parse_contender("ELDR:max_load=1.25"))
    'spec.router.policy: ELDR, tau: "0.1", maxLoad: "1.25"'
    """
    options = dict(contender.options)
    fields = [f"spec.router.policy: {contender.name}"]
    if contender.name == contract.POLICY_ELDR:
        fields.append(f'tau: "{_decimal(options.get("tau", DEFAULT_TAU))}"')
        if (least := int(options.get("min_candidates", 1))) > 1:
            fields.append(f"minCandidates: {least}")
    if "max_load" in options:
        fields.append(f'maxLoad: "{_decimal(options["max_load"])}"')
    if contender.name == contract.POLICY_DOMAIN:
        fields.append("and spec.router.domains")
    remarks = []
    if contender.name == contract.POLICY_MARGINAL:
        remarks.append(_on_prior(options))
    return ", ".join(fields) + (f" ({'; '.join(remarks)})" if remarks else "")


def _on_prior(options: Mapping[str, float]) -> str:
    learned, prior = options.get("learned", 0.0), options.get("prior", 0.0)
    if prior == DEFAULT_PRIOR:
        return "its prior needs no setting: it is on once a fit is active"
    if learned == DEFAULT_PRIOR:
        return f"so it is before the first fit; once one is active it is {PRIOR}"
    if not learned and not prior:
        return f"there it has a prior, {LEARNED} before the first fit; without one it is for routers with a worker file, prior: 0"
    prior = learned or prior
    return f"its prior is {DEFAULT_PRIOR:g} there; another one is for routers with a worker file, prior: {_decimal(prior)}"


def _decimal(value: float) -> str:
    """Return a number as the API takes it: no exponent."""
    return f"{value:.12f}".rstrip("0").rstrip(".")
