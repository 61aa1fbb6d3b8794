"""Observations -> status of an EldrDeployment. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eldr_operator import clock, locality, signatures
from eldr_operator.activation import Decision, Verdict
from eldr_operator.conditions import Condition, merged
from eldr_operator.desired import _meta
from eldr_operator.errors import Problem
from eldr_operator.models import CentroidSet, EldrDeployment
from eldr_operator.observe import Role
from eldr_operator.router_view import RouterView

Object = dict[str, Any]

HISTORY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything that a status is made from.

    Parameters
    ----------
    prefill, decode, router : Role
    routers : sequence of RouterView
        Ready routers.
    decision : Decision
        The activation's last step, as it was written.
    signatures : Verdict
        Of the condition SignaturesReported.
    refit : dict
        ``status.refit``.
    problems : sequence of Problem
        Of the spec.
    refused : sequence of str
        Children that could not be written, and why.
    """

    prefill: Role
    decode: Role
    router: Role
    routers: Sequence[RouterView]
    decision: Decision
    signatures: Verdict
    refit: Object
    problems: Sequence[Problem]
    refused: Sequence[str]


def status(cr: EldrDeployment, seen: Observed, now: datetime) -> Object:
    """Return the status; equal observations give an equal status."""
    table = seen.decision.table
    router: Object = {
        "desired": seen.router.desired,
        "ready": seen.router.ready,
        "epoch": table.epoch,
        "acks": f"{seen.decision.acks}/{len(seen.routers)}",
    }
    if policies := {view.policy for view in seen.routers if view.policy}:
        router["policyInEffect"] = ",".join(sorted(policies))
    generation = cr.metadata.generation
    made: Object = {
        "observedGeneration": generation,
        "conditions": merged(cr.status.get("conditions", ()), _conditions(seen), generation, now),
        "model": cr.served_model,
        "url": f"http://{cr.name}.{cr.namespace}.svc",
        "prefill": _role(seen.prefill),
        "decode": _role(seen.decode)
        | {
            "replicas": seen.decode.existing,
            "selector": ",".join(
                f"{key}={value}" for key, value in _meta.role_selector(cr, "decode").items()
            ),
        },
        "router": router,
        "centroids": _centroids(seen.decision),
        "locality": locality.status(cr, seen.routers),
        "refit": seen.refit,
        "history": _history(cr, seen.decision),
    }
    return made


def _role(role: Role) -> Object:
    return {"desired": role.desired, "ready": role.ready, "summary": f"{role.ready}/{role.desired}"}


def _conditions(seen: Observed) -> list[Condition]:
    roles = [
        _role_condition("Prefill", seen.prefill),
        _role_condition("Decode", seen.decode),
        _role_condition("Router", seen.router),
    ]
    config, available = _config(seen), _available(seen)
    summary = next(
        (condition for condition in (config, available, *roles) if condition.status != "True"),
        Condition("Ready", "True", "AllReady", _all_ready(seen)),
    )
    return [
        summary._replace(type="Ready"),
        available,
        *roles,
        config,
        _judged("CentroidsActive", seen.decision.verdict),
        _judged(signatures.CONDITION, seen.signatures),
    ]


def _judged(type_: str, verdict: Verdict) -> Condition:
    return Condition(type_, verdict.status, verdict.reason, verdict.message)


def _all_ready(seen: Observed) -> str:
    return f"{seen.prefill.ready} prefill, {seen.decode.ready} decode, {seen.router.ready} routers ready"


def _role_condition(name: str, role: Role) -> Condition:
    kind, text = f"{name}Ready", f"{role.ready} of {role.desired} pods ready"
    if role.is_ready:
        return Condition(kind, "True", "AllReady", text)
    if role.trouble is not None:
        return Condition(kind, "False", role.trouble.reason, f"{text}; {role.trouble.message}")
    if role.ready >= role.desired:
        return Condition(kind, "False", "RolloutInProgress", f"{text}, not all with the newest template")
    return Condition(kind, "False", "PodsNotReady", text)


def _available(seen: Observed) -> Condition:
    # Any ready router serves, also one that a change of placement is about to replace.
    counts = {
        "prefill engine": seen.prefill.ready,
        "decode engine": seen.decode.ready,
        "router": len(seen.routers),
    }
    for name, ready in counts.items():
        if ready == 0:
            reason = "No" + "".join(word.capitalize() for word in name.split())
            return Condition("Available", "False", reason, f"no {name} is ready: requests cannot be served")
    return Condition("Available", "True", "MinimumReplicasAvailable", "requests can be served")


def _config(seen: Observed) -> Condition:
    if seen.problems:
        text = "; ".join(map(str, seen.problems))
        return Condition("ConfigValid", "False", seen.problems[0].reason, f"{text}. What ran before goes on")
    if seen.refused:
        return Condition("ConfigValid", "False", "ChildRefused", "; ".join(seen.refused))
    return Condition("ConfigValid", "True", "Valid", "every field can be used")


def _centroids(decision: Decision) -> Object:
    table = decision.table
    made: Object = {}
    if table.active is not None:
        made["active"] = _set(table.active)
        if table.activated_at is not None:
            made["active"]["activatedAt"] = clock.stamp(table.activated_at)
    if table.previous is not None:
        made["previous"] = _set(table.previous)
    if table.staged is not None:
        made["staged"] = _set(table.staged)
        if table.staged_at is not None:
            made["staged"]["since"] = clock.stamp(table.staged_at)
    return made


def _set(pointer: CentroidSet) -> Object:
    return {"fit": pointer.fit, "digest": pointer.digest, "k": pointer.k}


def _history(cr: EldrDeployment, decision: Decision) -> list[Object]:
    table = decision.table
    history: list[Object] = list(cr.status.get("history", ()))
    if table.active is None or table.activated_at is None:
        return history
    if history and history[-1]["epoch"] >= table.epoch:
        return history
    entry = {
        "time": clock.stamp(table.activated_at),
        "fit": table.active.fit,
        "epoch": table.epoch,
        "reason": table.reason,
    }
    return [*history, entry][-HISTORY:]
