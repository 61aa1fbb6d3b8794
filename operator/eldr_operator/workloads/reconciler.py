"""Brings everything that runs for an EldrDeployment to its desired state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from eldr import contract
from eldr_operator import clock, meta
from eldr_operator.conditions import NOT_REFUSED, Condition, Refusal
from eldr_operator.kube import refusals
from eldr_operator.kube.api import Api
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment
from eldr_operator.workloads import downloads, kv, revisions, roles, rollout, scaling
from eldr_operator.workloads.children import Children
from eldr_operator.workloads.revisions import begun_of
from eldr_operator.workloads.roles import Role, Wanted, Workloads


async def reconcile(
    api: Api,
    cr: EldrDeployment,
    children: Children,
    live: Snapshot,
    *,
    broken: Collection[str],
    shards: Collection[str],
    ready_routers: int,
    unreadable: Mapping[str, str],
    has_fits: bool,
    failed: Mapping[str, str],
    now: datetime,
) -> Workloads:
    """Write the children, and tell how those that were there are doing.

    Parameters
    ----------
    broken : collection of str
        Roles whose pods stay as they are, because a field that they are made from cannot be used.
    shards : collection of str
        ConfigMaps that routers must be allowed to read.
    unreadable : mapping
        Kinds that cannot be listed, and why: their children are left as they are.
    has_fits : bool
        Whether there are EldrFits.
    failed : mapping
        Role to its pods that Kubernetes failed lately.
    """
    model = downloads.state(
        cr, live, await refusals.of_job(api, live.owned("Job", downloads.name(cr), cr.metadata.uid))
    )
    waits = model is not None and model.status != "True"

    def workload(kind: str, role: str) -> Mapping[str, Any] | None:
        return live.owned(kind, meta.child_name(cr, role), cr.metadata.uid)

    def in_rollout(live_workload: Mapping[str, Any] | None, role: str, refusal: Refusal) -> Refusal:
        begun = clock.read(begun_of(live_workload)) if live_workload else None
        return rollout.of_rollout(refusal, begun, roles.of_role(live.pods, role))

    deployment = workload("Deployment", contract.ROLE_PREFILL)
    stateful_set = workload("StatefulSet", contract.ROLE_DECODE)
    decode_refusal = await refusals.of_stateful_set(api, stateful_set, now)
    refused = {
        contract.ROLE_PREFILL: in_rollout(deployment, contract.ROLE_PREFILL, rollout.refusal_of(deployment)),
        contract.ROLE_DECODE: in_rollout(stateful_set, contract.ROLE_DECODE, decode_refusal),
    }
    applied = await children.apply(
        cr,
        live,
        shards=shards,
        broken=broken,
        unreadable=unreadable,
        now=now,
        waits=waits,
        has_fits=has_fits,
        refused=refused,
    )
    unwritten = applied.unwritten

    def cause(role: str) -> Condition | None:
        for reason, known in (("ContainerConfig", unmounted), ("PodsFailed", failed)):
            if text := known.get(role):
                return Condition("", "False", reason, text)
        return None

    unmounted = {
        role: await refusals.of_mounts(api, roles.of_role(live.pods, role), now)
        for role in revisions.WORKLOADS
    }

    def summed(kind: str, role: str, wanted: Wanted) -> Role:
        choice = applied.revisions.get(role)
        if choice is not None and choice.revision is not None:
            wanted = wanted._replace(revision=choice.revision.name)
        pods, refusal = roles.of_role(live.pods, role), refused.get(role, NOT_REFUSED)
        return roles.role(wanted, workload(kind, role), pods, now, refusal, cause=cause(role))

    wanted = Wanted("PrefillReady", cr.spec.prefill.replicas, cr.spec.prefill.rollout)
    prefill = summed("Deployment", contract.ROLE_PREFILL, wanted)
    paced = cr.spec.decode.rollout
    wanted = Wanted("DecodeReady", cr.spec.decode.replicas, paced, paced.partition)
    decode = summed("StatefulSet", contract.ROLE_DECODE, wanted)
    if cr.spec.router.placement == "Sidecar":
        router = replace(
            prefill,
            type="RouterReady",
            ready=min(ready_routers, prefill.desired),
            has_gaps=False,
            gap_at=None,
            late="",
        )
    else:
        router = summed("Deployment", contract.ROLE_ROUTER, Wanted("RouterReady", cr.router_replicas))
    return Workloads(
        prefill=prefill,
        decode=decode,
        router=router,
        unwritten=unwritten,
        revisions=applied.revisions,
        plan=applied.plan,
        unpaired=kv.unpaired(live.pods),
        mixed_images=kv.mixed_images(live.pods),
        scaled_by=scaling.set_by(cr, live),
        model=model,
    )
