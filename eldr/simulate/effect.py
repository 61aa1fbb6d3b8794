"""What is in effect in a deployment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from eldr import contract
from eldr.core.step_time import StepTime
from eldr.simulate.policies import DEFAULTS, NAMES, USUAL, Settings
from eldr.simulate.step_times import make_step_time


class InEffect(NamedTuple):
    """A deployment's own settings; the defaults are those of a log without one.

    Attributes
    ----------
    model : str or None
        Served name.
    policies : tuple of str
        To compare.
    step_time : StepTime or None
        None while routers have not learned it.
    speeds : sequence of float
        How many times as long each engine takes.
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
    step_time: StepTime | None = None
    speeds: Sequence[float] = (1.0,)
    share: float | None = None
    words: str = ""
    notes: tuple[str, ...] = ()


def in_effect(resource: Mapping[str, Any], states: Sequence[Any]) -> InEffect:
    """Read a deployment.

    Parameters
    ----------
    resource : mapping
        The EldrDeployment, with the API server's defaults.
    states : sequence
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
    step_time, speeds = _learned(states)
    caveats = {
        f"the policy in effect, {policy}, goes by a header that the log does not hold: it is not simulated": policy
        not in NAMES,
        "expert parallelism is not simulated: steps go by all experts of an engine": decode.get(
            "parallelism", {}
        ).get("expert")
        == "Enabled",
        "its routers have not learned how fast its engines are: all are simulated alike": step_time is None,
    }
    return InEffect(
        model=spec.get("model", {}).get("name") or name,
        engines=engines,
        policies=(*((policy,) if policy in NAMES else ()), *USUAL),
        settings=settings,
        step_time=step_time,
        speeds=speeds,
        share=percent / 100 or None,
        words=f"Deployment {name}: {engines} decode engines, policy {policy}, tau {settings.tau:g}, {percent} % of the requests are logged. ",
        notes=tuple(note for note, holds in caveats.items() if holds),
    )


def _learned(states: Sequence[Any]) -> tuple[StepTime | None, Sequence[float]]:
    """Return the step time and speeds that the router knows that learned from most windows, if any of this version has."""
    try:
        known = [state["step_time"] for state in states if isinstance(state, dict) and state.get("step_time")]
        most = max(known, key=lambda one: one["windows"])
        pool, *engines = (
            make_step_time(one["fixed"], one["per_expert"], one["per_request"], 1)
            for one in (most, *most.get("engines", {}).values())
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None, (1.0,)
    return pool, [one.seconds(1, 1) / pool.seconds(1, 1) for one in engines] or (1.0,)
