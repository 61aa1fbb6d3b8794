"""Quotas and limits of the namespace: do they refuse pods? Pure."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from eldr import contract
from eldr.doctor.facts import Facts, Finding, Listed, Object, Said, Skipped, Template, Unseen
from eldr.doctor.quantities import Amounts, amount, amounts, is_extended, of_container, of_pod, shown
from eldr.doctor.templates import containers
from eldr.status.fields import inside, objects, text

_REFUSES = frozenset({"PodsRefused"})
_PLAIN = {"cpu": "requests.cpu", "memory": "requests.memory"}
"""Short names in quotas."""
_ZERO = Decimal(0)


def look(facts: Facts) -> Said:
    """Say which quotas and limits refuse pods."""
    for unseen in dict.fromkeys(one.why for one in (facts.quotas, facts.limits) if isinstance(one, Unseen)):
        yield Skipped(unseen)
    limits = () if isinstance(facts.limits, Unseen) else facts.limits
    if not isinstance(facts.quotas, Unseen):
        for quota in facts.quotas:
            yield from _quota(facts, quota, limits, knows_limits=not isinstance(facts.limits, Unseen))
    for limit in limits:
        for template in facts.templates:
            yield from _limit(limit, template)


def _quota(
    facts: Facts, quota: Object, limits: tuple[Object, ...], *, knows_limits: bool
) -> Iterator[Finding]:
    spec, about = inside(quota, "spec"), f"ResourceQuota {_name(quota)}"
    if spec.get("scopes") or spec.get("scopeSelector"):
        return  # of some pods only; whether of ours, the API server decides
    hard, used = amounts(inside(spec, "hard")), amounts(inside(quota, "status", "used"))
    for resource, most in hard.items():
        key = _PLAIN.get(resource, resource)
        if knows_limits and (without := _without(facts, key, limits)):
            problem = f"it wants {key} of every container, and {without} has none"
            remedy = (
                f"set it in resources of that role, or give it a default by a LimitRange in {facts.namespace}"
            )
            yield Finding(about, problem, remedy, _REFUSES)
        more = sum((_cost(one, key) * _missing(one, facts.pods) for one in facts.templates), _ZERO)
        left = most - used.get(resource, _ZERO)
        if more and left < more:
            problem = f"{shown(max(left, _ZERO))} of {shown(most)} {resource} are left, pods that are still missing take {shown(more)}"
            yield Finding(about, problem, "raise the quota, or lower replicas or resources", _REFUSES)


def _without(facts: Facts, key: str, limits: tuple[Object, ...]) -> str:
    """Return a container that a quota refuses because it does not say how much it takes."""
    part, dot, resource = key.partition(".")
    if not dot or part not in {"requests", "limits"} or is_extended(resource) or "storage" in resource:
        return ""
    for template in facts.templates:
        for container in containers(template.spec):
            asked = of_container(container, part)
            if resource not in asked and not _has_default(limits, part, resource):
                return f"container {container.get('name')} of {template.role}"
    return ""


def _has_default(limits: tuple[Object, ...], part: str, resource: str) -> bool:
    keys = ("defaultRequest", "default") if part == "requests" else ("default",)
    return any(
        resource in inside(item, key)
        for limit in limits
        for item in objects(inside(limit, "spec"), "limits")
        if item.get("type") == "Container"
        for key in keys
    )


def _cost(template: Template, key: str) -> Decimal:
    """Return what a quota counts of one pod."""
    if key in {"pods", "count/pods"}:
        return Decimal(1)
    part, _, resource = key.partition(".")
    return of_pod(template.spec, part).get(resource, _ZERO) if part in {"requests", "limits"} else _ZERO


def _missing(template: Template, pods: Listed) -> int:
    """Return how many pods of a role have not been made; none where nobody knows."""
    if isinstance(pods, Unseen):
        return 0
    labels = (inside(pod, "metadata", "labels") for pod in pods)
    made = [one for one in labels if one.get(contract.LABEL_ROLE) == template.role]
    return max(0, template.replicas - len(made))


def _limit(limit: Object, template: Template) -> Iterator[Finding]:
    about = f"LimitRange {_name(limit)}"
    for item in objects(inside(limit, "spec"), "limits"):
        kind = text(item, "type")
        parts: list[tuple[str, Amounts, Amounts]] = []
        if kind == "Container":
            parts = [
                (
                    f"container {one.get('name')} of {template.role}",
                    of_container(one, "requests"),
                    of_container(one, "limits"),
                )
                for one in containers(template.spec)
            ]
        elif kind == "Pod":
            spec = template.spec
            parts = [(f"a pod of {template.role}", of_pod(spec, "requests"), of_pod(spec, "limits"))]
        for who, requests, limits in parts:
            yield from _beyond(about, who, item, requests, limits)


def _beyond(about: str, who: str, item: Object, requests: Amounts, limits: Amounts) -> Iterator[Finding]:
    for resource, value in inside(item, "max").items():
        asked = max(requests.get(resource, _ZERO), limits.get(resource, _ZERO))
        if asked > amount(value):
            problem = f"{who} asks for {shown(asked)} {resource}, {value} at most are allowed"
            yield Finding(about, problem, "raise the LimitRange, or lower resources of the role", _REFUSES)
    for resource, value in inside(item, "min").items():
        asked = requests.get(resource, _ZERO)
        if resource in requests and asked < amount(value):
            problem = f"{who} asks for {shown(asked)} {resource}, at least {value} are wanted"
            yield Finding(about, problem, "lower the LimitRange, or raise resources of the role", _REFUSES)


def _name(resource: Object) -> str:
    return text(inside(resource, "metadata"), "name") or "?"
