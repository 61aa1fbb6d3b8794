"""One pass over an EldrDeployment and its fits: read, decide, write. Everything follows from what is observed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import httpx

from eldr import contract
from eldr_operator import activation, cluster, fits, observe, refit, routers, signatures, validate
from eldr_operator.api import Api
from eldr_operator.apply import Applier
from eldr_operator.children import Children
from eldr_operator.clock import Clock
from eldr_operator.cluster import Snapshot
from eldr_operator.desired import _meta, routing
from eldr_operator.metrics import Metrics
from eldr_operator.models import EldrDeployment, EldrFit, parse
from eldr_operator.recorder import Recorder
from eldr_operator.router_view import RouterView
from eldr_operator.runs import Runs
from eldr_operator.status import Observed, status

Object = dict[str, Any]

WAITING_SECONDS = 0.3
"""Between two looks at routers that load a set."""
BOOTSTRAP_SECONDS = 5.0
"""Between two looks at how many samples the routers hold before the first fit."""
RETRY_SECONDS = 5.0
"""Until a child that was refused is tried again."""


class Reconciler:
    """Reconciles one deployment at a time.

    Parameters
    ----------
    api : Api
    http : httpx.AsyncClient
        For the routers' admin ports.
    metrics : Metrics
    image : str
        Image of our own programs where a resource names none.
    clock : callable
        Returns the time.
    """

    def __init__(self, api: Api, http: httpx.AsyncClient, metrics: Metrics, image: str, clock: Clock) -> None:
        self._api = api
        self._http = http
        self._metrics = metrics
        self._clock = clock
        self._windows: dict[tuple[str, str], signatures.Window] = {}
        self._applier = Applier(api, metrics)
        self._recorder = Recorder(self._applier)
        self._children = Children(api, self._applier, image)
        self._runs = Runs(api, self._applier, self._recorder, metrics, image)

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Bring a deployment one step closer to its spec.

        Returns
        -------
        float or None
            Seconds after which to look again, whatever else happens.
        """
        async with asyncio.TaskGroup() as group:
            getting = group.create_task(self._api.get(contract.KIND_DEPLOYMENT, namespace, name))
            selector = f"spec.deploymentRef.name={name}"
            listing = group.create_task(self._api.list(contract.KIND_FIT, namespace, fields=selector))
        body, bodies = getting.result(), listing.result()
        all_fits = [parse(EldrFit, fit) for fit in bodies]
        if body is None:
            await self._without_deployment(namespace, name, all_fits)
            return None
        cr = parse(EldrDeployment, body)
        if cr.metadata.deletion_timestamp is not None:
            return None  # owner references do the rest
        for fit in bodies:
            await self._children.adopt_fit(cr, fit)
        return await self._pass(cr, all_fits)

    async def _pass(self, cr: EldrDeployment, all_fits: Sequence[EldrFit]) -> float | None:
        now = self._clock()
        live = await cluster.look(self._api, cr)
        views = await routers.look(self._http, observe.ready_routers(live.pods), live.token)
        history = cr.status.get("history") or [{"epoch": 0}]
        table = live.owned("ConfigMap", contract.routing_name(cr.name), cr.metadata.uid)
        before = routing.read(table, last_epoch=int(history[-1]["epoch"]))
        decision = activation.decide(cr, all_fits, before, views, now)
        problems = validate.problems(cr)
        secret_problem = await self._children.ensure_secret(cr, live)
        published, refused = await self._children.apply(cr, decision.table, live, problems)
        if secret_problem:
            refused.append(secret_problem)
        if not published:
            decision = replace(decision, table=before)
        finished = await self._runs.advance(cr, all_fits, live.of_kind("Job"), now)
        plan = refit.plan(cr, all_fits, decision.table, sum(view.samples for view in views), now)
        await self._carry_out(cr, plan, all_fits)
        await self._children.keep_sets(cr, decision.table)
        seen = Observed(
            **_roles(cr, live),
            routers=views,
            decision=decision,
            signatures=self._judge_signatures(cr, views, now),
            refit=plan.status,
            problems=problems,
            refused=refused,
        )
        await self._recorder.deployment(cr, status(cr, seen, now), now)
        self._metrics.epoch.labels(cr.namespace, cr.name).set(decision.table.epoch)
        self._metrics.acks.labels(cr.namespace, cr.name).set(decision.acks)
        if finished or plan.create:
            return 0.0
        return _next_look(cr, decision, plan, now, is_refused=bool(refused))

    def _judge_signatures(
        self, cr: EldrDeployment, views: Sequence[RouterView], now: datetime
    ) -> activation.Verdict:
        key = (cr.namespace, cr.name)
        self._windows[key], answers = signatures.advance(self._windows.get(key), views, now)
        return signatures.verdict(cr, answers)

    async def _carry_out(self, cr: EldrDeployment, plan: refit.Plan, all_fits: Sequence[EldrFit]) -> None:
        for manifest in plan.create:
            await self._runs.create(manifest)
        uids = {fit.name: fit.metadata.uid for fit in all_fits}
        for name in plan.delete:
            metadata = {"namespace": cr.namespace, "name": name, "uid": uids[name]}
            await self._applier.delete(contract.KIND_FIT, {"metadata": metadata})

    async def _without_deployment(self, namespace: str, name: str, all_fits: Sequence[EldrFit]) -> None:
        self._applier.forget((namespace, name))
        self._metrics.forget(namespace, name)
        self._windows.pop((namespace, name), None)
        now = self._clock()
        for fit in all_fits:
            if not fit.is_finished and fit.metadata.deletion_timestamp is None:
                await self._recorder.fit(fit, fits.waiting_for_deployment(fit, now), now)


def _roles(cr: EldrDeployment, live: Snapshot) -> dict[str, observe.Role]:
    made = {}
    for role, kind, desired in (
        (contract.ROLE_PREFILL, "Deployment", cr.spec.prefill.replicas),
        (contract.ROLE_DECODE, "StatefulSet", cr.spec.decode.replicas),
        (contract.ROLE_ROUTER, "Deployment", cr.router_replicas),
    ):
        workload = live.owned(kind, _meta.child_name(cr, role), cr.metadata.uid)
        made[role] = observe.role(workload, desired, observe.of_role(live.pods, role))
    if cr.spec.router.placement == "Sidecar":
        ready = len(observe.ready_routers(live.pods))
        prefill = made[contract.ROLE_PREFILL]
        made[contract.ROLE_ROUTER] = replace(prefill, ready=min(ready, prefill.desired))
    return made


def _next_look(
    cr: EldrDeployment, decision: activation.Decision, plan: refit.Plan, now: datetime, *, is_refused: bool
) -> float | None:
    waits = []
    if decision.is_waiting:
        waits.append(WAITING_SECONDS)
    if decision.table.active is None and cr.spec.refit.suspend == "Disabled":
        waits.append(BOOTSTRAP_SECONDS)
    if is_refused:
        waits.append(RETRY_SECONDS)
    if plan.wake_at is not None:
        waits.append(max((plan.wake_at - now) / timedelta(seconds=1), WAITING_SECONDS))
    return min(waits, default=None)
