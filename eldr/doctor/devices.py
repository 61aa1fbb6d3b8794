"""Devices of the nodes: are those that pods ask for there, and enough of them? Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from eldr.doctor.facts import Facts, Finding, Object, Said, Skipped, Template, Unseen
from eldr.doctor.quantities import amount, is_extended, of_pod, shown
from eldr.doctor.templates import engine
from eldr.status.fields import inside, objects, text

_RDMA = re.compile(r"rdma|infiniband|roce|hca|mlnx|sriov|/ib$", re.IGNORECASE)
_CAUSES = frozenset({"InsufficientCapacity"})


def accelerators(facts: Facts) -> Said:
    """Say which devices are missing, but for those of RDMA."""
    yield from _look(facts, rdma=False)


def rdma(facts: Facts) -> Said:
    """Say what keeps engines from RDMA, where the spec asks for it."""
    asking = {one.role: _asked(one, rdma=True) for one in facts.templates}
    if not any(asking.values()):
        return
    yield from _look(facts, rdma=True)
    engines = [one for one in facts.templates if engine(one)]
    for template in engines:
        if not asking[template.role]:
            names = ", ".join(sorted({name for requested in asking.values() for name in requested}))
            problem = f"its pods ask for no RDMA device, those of the other role for {names}: KV moves by TCP"
            yield Finding(template.role, problem, f"ask for it in {template.role}.podTemplate too")
        elif not _pins(engine(template)):
            problem = "its engines may not pin memory, which RDMA needs"
            remedy = f"add IPC_LOCK to securityContext.capabilities.add of the container engine in {template.role}.podTemplate"
            yield Finding(template.role, problem, remedy)


def _look(facts: Facts, *, rdma: bool) -> Said:
    wanted = {name for one in facts.templates for name in _asked(one, rdma=rdma)}
    if not wanted:
        return
    if isinstance(facts.nodes, Unseen):
        yield Skipped(facts.nodes.why)
        return
    for resource in sorted(wanted):
        yield from _of_resource(facts, facts.nodes, resource)


def _of_resource(facts: Facts, nodes: tuple[Object, ...], resource: str) -> Iterator[Finding]:
    offering = [node for node in nodes if _offers(node, resource)]
    if not offering:
        others = sorted({name for node in nodes for name in inside(node, "status", "allocatable")})
        known = ", ".join(name for name in others if is_extended(name)) or "none"
        field = "the resource in podTemplate" if _RDMA.search(resource) else "accelerator.resourceName"
        remedy = f"install its device plug-in, or correct {field}; devices that nodes have: {known}"
        yield Finding(resource, f"none of {len(nodes)} nodes offers it", remedy, _CAUSES)
        return
    total, is_reported = Decimal(0), False
    reachable: dict[str, Decimal] = {}
    for template in facts.templates:
        each = of_pod(template.spec, "requests").get(resource, Decimal(0))
        if not each or not template.replicas:
            continue
        total += each * template.replicas
        usable = [node for node in offering if _takes(node, template)]
        reachable |= {_name(node): _offers(node, resource) for node in usable}
        if not usable:
            problem = f"{len(offering)} nodes offer it, and none of them takes pods of {template.role}"
            remedy = (
                f"correct nodeSelector and tolerations in {template.role}.podTemplate, or uncordon the nodes"
            )
            is_reported = True
            yield Finding(resource, problem, remedy, _CAUSES)
        elif (most := max(_offers(node, resource) for node in usable)) < each:
            problem = (
                f"a pod of {template.role} asks for {shown(each)}, the largest node offers {shown(most)}"
            )
            is_reported = True
            yield Finding(
                resource, problem, f"lower {template.role}.gpus, or add nodes with more devices", _CAUSES
            )
    have = sum(reachable.values(), Decimal(0))
    if reachable and have < total and not is_reported:
        problem = f"the pods ask for {shown(total)} altogether, nodes that take them offer {shown(have)}"
        yield Finding(resource, problem, "add nodes, or lower replicas or gpus", _CAUSES)


def _asked(template: Template, *, rdma: bool) -> set[str]:
    requests = of_pod(template.spec, "requests")
    return {
        name for name in requests if is_extended(name) and requests[name] and bool(_RDMA.search(name)) == rdma
    }


def _offers(node: Object, resource: str) -> Decimal:
    return amount(inside(node, "status", "allocatable").get(resource))


def _takes(node: Object, template: Template) -> bool:
    """Tell whether a node takes pods, by its labels and taints; affinities are the scheduler's to judge."""
    spec = inside(node, "spec")
    if spec.get("unschedulable") is True:
        return False
    labels = inside(node, "metadata", "labels")
    selector = inside(template.spec, "nodeSelector")
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    taints = [one for one in objects(spec, "taints") if one.get("effect") in {"NoSchedule", "NoExecute"}]
    return all(
        any(_tolerates(one, taint) for one in objects(template.spec, "tolerations")) for taint in taints
    )


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in {None, "", taint.get("effect")}:
        return False
    key, exists = toleration.get("key") or "", toleration.get("operator") == "Exists"
    if not key:
        return exists
    return key == taint.get("key") and (
        exists or (toleration.get("value") or "") == (taint.get("value") or "")
    )


def _pins(container: Object) -> bool:
    context = inside(container, "securityContext")
    added = inside(context, "capabilities").get("add") or ()
    return context.get("privileged") is True or bool({"IPC_LOCK", "CAP_IPC_LOCK", "ALL"} & set(added))


def _name(node: Object) -> str:
    return text(inside(node, "metadata"), "name") or "?"
