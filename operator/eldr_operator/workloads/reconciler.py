"""Brings everything that runs for an EldrDeployment to its desired state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from eldr import contract
from eldr_operator import meta
from eldr_operator.conditions import NOT_REFUSED, Refusal
from eldr_operator.kube import refusals
from eldr_operator.kube.api import Api
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment
from eldr_operator.workloads import downloads, kv, roles, scaling
from eldr_operator.workloads.children import Children
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
    """
    model = downloads.state(
        cr, live, await refusals.of_job(api, live.owned("Job", downloads.name(cr), cr.metadata.uid))
    )
    waits = model is not None and model.status != "True"
    applied = await children.apply(
        cr,
        live,
        shards=shards,
        broken=broken,
        unreadable=unreadable,
        now=now,
        waits=waits,
        has_fits=has_fits,
    )
    unwritten = applied.unwritten

    def workload(kind: str, role: str) -> Mapping[str, Any] | None:
        return live.owned(kind, meta.child_name(cr, role), cr.metadata.uid)

    def summed(kind: str, role: str, wanted: Wanted, refusal: Refusal = NOT_REFUSED) -> Role:
        choice = applied.revisions.get(role)
        if choice is not None and choice.revision is not None:
            wanted = wanted._replace(revision=choice.revision.name)
        return roles.role(wanted, workload(kind, role), roles.of_role(live.pods, role), now, refusal)

    wanted = Wanted("PrefillReady", cr.spec.prefill.replicas, cr.spec.prefill.rollout)
    prefill = summed("Deployment", contract.ROLE_PREFILL, wanted)
    paced = cr.spec.decode.rollout
    wanted = Wanted("DecodeReady", cr.spec.decode.replicas, paced, paced.partition)
    refusal = await refusals.of_stateful_set(api, workload("StatefulSet", contract.ROLE_DECODE), now)
    decode = summed("StatefulSet", contract.ROLE_DECODE, wanted, refusal)
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
