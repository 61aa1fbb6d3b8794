"""What is in effect in a deployment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from eldr import contract
from eldr.core.step_time import StepTime
from eldr.simulate.policies import DEFAULTS, NAMES, USUAL, Settings
from eldr.simulate.step_times import make_step_time


class Learned(NamedTuple):
    """The step time that a router has learned, and how many times as long each engine takes."""

    step_time: StepTime
    speeds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InEffect:
    """A deployment's own settings; the defaults are those of a log without one.

    Attributes
    ----------
    model : str or None
        Served name.
    policies : tuple of str
        To compare.
    learned : Learned or None
        None while routers have not learned it.
    share : float or None
        Of the requests that are logged, above 0; None where it is unknown.
    words : str
        All that, for people.
    notes : tuple of str
        Caveats of the figures.
    """

    model: str | None = None
    engines: int = 16
    policies: tuple[str, ...] = USUAL
    settings: Settings = DEFAULTS
    learned: Learned | None = None
    share: float | None = None
    words: str = ""
    notes: tuple[str, ...] = ()


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
    router, decode = spec.get("router", {}), spec.get("decode", {})
    # as the operator reports it: it reads what an autoscaler has set
    desired = resource.get("status", {}).get("decode", {}).get("desired")
    engines = int(desired or decode.get("replicas", 2))
    percent = int(spec.get("signatures", {}).get("samplePercent", 10))
    policy = router.get("policy", contract.POLICY_DEFAULT)
    settings = Settings(
        float(router.get("tau", DEFAULTS.tau)),
        int(router.get("minCandidates", DEFAULTS.min_candidates)),
        float(router.get("maxLoad") or DEFAULTS.max_load),
    )
    learned = _learned(states)
    notes = []
    if policy not in NAMES:
        notes.append(
            f"the policy in effect, {policy}, goes by a header that the log does not hold: it is not simulated"
        )
    if decode.get("parallelism", {}).get("expert") == "Enabled":
        notes.append(
            "expert parallelism is not simulated: steps go by all experts of an engine, as routers learn them"
        )
    if learned is None:
        notes.append("its routers have not learned how fast its engines are: all are simulated alike")
    return InEffect(
        model=spec.get("model", {}).get("name") or name,
        engines=engines,
        policies=USUAL if policy not in NAMES else (policy, *USUAL),
        settings=settings,
        learned=learned,
        share=percent / 100 if percent else None,
        words=f"Deployment {name}: {engines} decode engines, policy {policy}, tau {settings.tau:g}, {percent} % of the requests are logged. ",
        notes=tuple(notes),
    )


def _learned(states: Sequence[Mapping[str, Any]]) -> Learned | None:
    """Return what the router knows that learned from most windows; None if none has, or it is of another version."""
    try:
        known = [state["step_time"] for state in states if state.get("step_time")]
        most = max(known, key=lambda one: one["windows"])
        pool = _step_time(most)
        engines = [_step_time(one) for one in most.get("engines", {}).values()] or [pool]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return Learned(pool, tuple(one.seconds(1, 1) / pool.seconds(1, 1) for one in engines))


def _step_time(value: Mapping[str, float]) -> StepTime:
    return make_step_time(value["fixed"], value["per_expert"], value["per_request"], 1)
