"""What is in effect in a deployment, as options of a simulation. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eldr import contract
from eldr.core.policies import DEFAULT_TAU
from eldr.simulate.contenders import PRIOR, band, usual

_CONSTANTS = ("fixed", "per_expert", "per_request")


@dataclass(frozen=True, slots=True)
class InEffect:
    """A deployment's own settings.

    Attributes
    ----------
    model : str
        Served name.
    policies : str
        The one in effect, and others at the same width of the band, as ``--policies`` takes them.
    step_time : str or None
        As ``--step-time`` takes it; None while routers have not learned it.
    speeds : tuple of float or None
        Of its decode engines, times as long as the step-time model; None while routers have not learned them.
    share : float
        Of the requests that are logged, above 0.
    words : str
        All that, for people.
    notes : tuple of str
        Caveats of the figures.
    """

    model: str
    engines: int
    policies: str
    step_time: str | None
    speeds: tuple[float, ...] | None
    share: float
    words: str
    notes: tuple[str, ...]


def in_effect(resource: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> InEffect:
    """Read a deployment.

    Parameters
    ----------
    resource : mapping
        The EldrDeployment, with the API server's defaults.
    states : sequence of mapping
        Of its routers, see :data:`eldr.contract.STATE_VERSION`.
    """
    name, spec = resource["metadata"]["name"], resource["spec"]
    router: Mapping[str, Any] = spec.get("router", {})
    model = spec.get("model", {}).get("name") or name
    decode: Mapping[str, Any] = spec.get("decode", {})
    # as the operator reports it: it reads what an autoscaler has set
    desired = resource.get("status", {}).get("decode", {}).get("desired")
    engines = int(desired or decode.get("replicas", 2))
    percent = int(spec.get("signatures", {}).get("samplePercent", 10))
    policy, tau = str(router.get("policy", contract.POLICY_DEFAULT)), float(router.get("tau", DEFAULT_TAU))
    notes: tuple[str, ...] = ()
    if policy == contract.POLICY_DOMAIN:
        notes = (
            "the policy in effect, Domain, goes by a header that the log does not hold: it is not simulated",
        )
    parallelism: Mapping[str, Any] = decode.get("parallelism", {})
    notes += _on_ranks(_ranks(parallelism, int(decode.get("gpus", 1)))) + _on_copies(parallelism)
    learned = _learned(states)
    return InEffect(
        model=model,
        engines=engines,
        policies=",".join(_policies(policy, router, tau)),
        step_time=None if learned is None else _step_time(learned),
        speeds=None if learned is None else _speeds(learned),
        share=percent / 100 if percent else 1.0,
        words=f"Deployment {name}: {engines} decode engines, policy {policy}, tau {tau:g}, {percent} % of the requests are logged.",
        notes=notes,
    )


def _ranks(parallelism: Mapping[str, Any], gpus: int) -> int:
    if parallelism.get("expert") != "Enabled":
        return 1
    data = int(parallelism.get("data", 1))
    return data * int(parallelism.get("tensor") or max(1, gpus // data))


def _on_ranks(ranks: int) -> tuple[str, ...]:
    if ranks == 1:
        return ()
    text = (
        f"its engines spread their experts over {ranks} ranks, which is not simulated: steps go by all experts of an engine, as "
        "the step time that routers learn"
    )
    return (text,)


def _on_copies(parallelism: Mapping[str, Any]) -> tuple[str, ...]:
    unset = {"redundantExperts": 0, "balance": contract.BALANCE_TOKENS}
    own = {name: parallelism.get(name, value) for name, value in unset.items()}
    named = [f"{name} {value}" for name, value in own.items() if value != unset[name]]
    if not named:
        return ()
    return (f"{' and '.join(named)} of its engines is not simulated",)


def _policies(policy: str, router: Mapping[str, Any], tau: float) -> list[str]:
    others = usual(tau)
    bound = f":max_load={float(router['maxLoad']):g}" if router.get("maxLoad") is not None else ""
    if policy == contract.POLICY_ELDR:
        least = int(router.get("minCandidates", 1))
        own = band(tau) + (f":min_candidates={least}" if least > 1 else "") + bound
    elif policy == contract.POLICY_MARGINAL:
        own = PRIOR + bound
    elif policy == contract.POLICY_DOMAIN:
        return list(others)
    else:
        own = policy
    return list(dict.fromkeys([own, *others]))


def _learned(states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the step time of the router that learned from most windows."""
    known = [state["step_time"] for state in states if _is_step_time(state.get("step_time"))]
    return max(known, key=lambda one: float(one.get("windows", 0)), default=None)


def _is_step_time(value: Any) -> bool:
    """Return whether a router's step time, perhaps of another version, is usable."""
    if not isinstance(value, Mapping):
        return False
    constants = [value.get(name) for name in _CONSTANTS]
    return (
        all(isinstance(one, int | float) and math.isfinite(one) and one >= 0 for one in constants)
        and _seconds(value) > 0
    )


def _seconds(step_time: Mapping[str, Any]) -> float:
    """Return any one time of a step-time model: those of an engine and of its pool have the same proportions."""
    return sum(float(step_time[name]) for name in _CONSTANTS)


def _step_time(step_time: Mapping[str, Any]) -> str:
    return f"{step_time['fixed'] * 1e3:.6g},{step_time['per_expert'] * 1e6:.6g},{step_time['per_request'] * 1e6:.6g}"


def _speeds(step_time: Mapping[str, Any]) -> tuple[float, ...] | None:
    engines = step_time.get("engines")
    if not isinstance(engines, Mapping) or not engines or not all(map(_is_step_time, engines.values())):
        return None
    return tuple(float(f"{_seconds(one) / _seconds(step_time):.3g}") for one in engines.values())
