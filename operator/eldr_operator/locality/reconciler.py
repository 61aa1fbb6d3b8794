"""Decides which centroid set routers use and which fits are made, and carries that out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import httpx

from eldr import contract
from eldr_operator.conditions import Condition
from eldr_operator.drift.decide import decide
from eldr_operator.drift.state import State
from eldr_operator.errors import ApiError, OwnedElsewhereError
from eldr_operator.fits import planner
from eldr_operator.fits.runs import Runs
from eldr_operator.kube.api import Api
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.cluster import Snapshot
from eldr_operator.kube.queue import Key
from eldr_operator.kube.recorder import Recorder
from eldr_operator.locality import activation, drift_day, memory, routers, signatures
from eldr_operator.locality.lookout import Lookout
from eldr_operator.locality.outcome import Look, Outcome
from eldr_operator.locality.ownership import Ownership
from eldr_operator.locality.router_view import RouterView, ready_routers
from eldr_operator.locality.routing import Table
from eldr_operator.metrics import Metrics
from eldr_operator.models import EldrDeployment, EldrFit

Object = dict[str, Any]


class Locality:
    """Reconciles centroid sets and fits.

    Parameters
    ----------
    api : Api
    http : httpx.AsyncClient
        For the routers' admin ports.
    applier : Applier
    recorder : Recorder
        Writes status and Events of fits.
    metrics : Metrics
    image : str
        Image of fits where a resource names none.
    """

    def __init__(
        self,
        *,
        api: Api,
        http: httpx.AsyncClient,
        applier: Applier,
        recorder: Recorder,
        metrics: Metrics,
        image: str,
    ) -> None:
        self._http = http
        self._applier = applier
        self._ownership = Ownership(api, applier)
        self._runs = Runs(api, applier, recorder, metrics, image)
        self._lookout = Lookout()
        self._windows: dict[Key, signatures.Window] = {}
        self._unreached: dict[Key, datetime] = {}

    async def look(
        self, cr: EldrDeployment, all_fits: Sequence[EldrFit], live: Snapshot, now: datetime
    ) -> Look:
        """Ask the routers, and decide which set is next."""
        views = await routers.look(self._http, ready_routers(live.pods), live.token)
        found = live.owned("ConfigMap", contract.routing_name(cr.name), cr.metadata.uid)
        before = await self._with_baselines(cr, memory.read(found, cr.status))
        seen = self._lookout.look(cr, all_fits, before, views, now)
        drift, verdict = decide(before.drift, cr.spec.refit.drift, seen, now)
        decision = activation.decide(
            cr,
            all_fits,
            before.table,
            views,
            now,
            barred=drift.barred,
            unreached_since=self._unreached_since((cr.namespace, cr.name), views, now),
        )
        return Look(views, before, decision, seen, drift, verdict)

    async def reconcile(
        self,
        cr: EldrDeployment,
        all_fits: Sequence[EldrFit],
        live: Snapshot,
        look: Look,
        *,
        taken: Collection[str],
        is_readable: bool,
        now: datetime,
    ) -> Outcome:
        """Plan fits and carry them forward, and publish the routing table with what is to be remembered.

        Fits are created before the memory is written: one that was made and not remembered is found by its name, one
        that was remembered and not made would be lost.

        Parameters
        ----------
        cr : EldrDeployment
        all_fits : sequence of EldrFit
        live : Snapshot
        look : Look
        taken : collection of str
            Names of all EldrFits of the namespace.
        is_readable : bool
            Whether routers may read the shards that the table names; they must not be told of others.
        now : datetime

        Raises
        ------
        ConflictError
            If another pass has written the memory since it was read.
        """
        before, decision = look.before, look.decision
        finished = await self._runs.advance(cr, all_fits, live.of_kind("Job"), now)
        active = before.table.active
        situation = planner.Situation(
            fits=all_fits,
            taken=taken,
            table=before.table,
            barred=look.drift.barred,
            order=look.verdict.fit,
            regime_since=_regime_since(all_fits, before.table, look.drift),
            before=before.refit,
            samples=sum(view.samples for view in look.routers),
            is_refused=active is not None and any(view.refusal(active) for view in look.routers),
        )
        plan = planner.plan(cr, situation, now)
        created = await self._runs.carry_out(cr, plan, all_fits)
        after = replace(
            before,
            refit=plan.refit,
            drift=look.drift,
            day=drift_day.advance(before.day, before.drift, look.drift),
            protective=look.verdict.protective,
        )
        if is_readable:
            after = after.with_table(decision.table)
        refused = await self._publish(cr, after, live)
        if refused:
            after = before
        await self._ownership.keep_sets(cr, after.table)
        return Outcome(
            routers=look.routers,
            memory=after,
            decision=decision,
            seen=look.seen,
            verdict=look.verdict,
            signatures=self._judge_signatures(cr, look.routers, now),
            wake_at=min(filter(None, (plan.wake_at, look.verdict.wake_at)), default=None),
            is_unfinished=finished or created,
            refused=refused,
        )

    async def adopt(self, cr: EldrDeployment, fit: Object) -> None:
        """Make an EldrFit that a user created go when its deployment goes."""
        await self._ownership.adopt_fit(cr, fit)

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._windows.pop(key, None)
        self._unreached.pop(key, None)
        self._lookout.forget(key)
        self._ownership.forget(key)

    def _unreached_since(self, key: Key, views: Sequence[RouterView], now: datetime) -> datetime | None:
        if not views or not all(view.problem for view in views):
            self._unreached.pop(key, None)
            return None
        return self._unreached.setdefault(key, now)

    async def _with_baselines(self, cr: EldrDeployment, before: memory.Memory) -> memory.Memory:
        """Keep the baselines of the sets in use, and read those that are not known from the reports of their fits."""
        known = {found.digest: before.baselines.get(found.digest) for found in before.table.sets}
        for pointer in before.table.sets:
            if known[pointer.digest] is None:
                known[pointer.digest] = await self._runs.baseline(cr, pointer)
        return before if known == before.baselines else replace(before, baselines=known)

    async def _publish(self, cr: EldrDeployment, after: memory.Memory, live: Snapshot) -> str:
        manifest = memory.config_map(cr, after)
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        found = live.owned(kind, name, cr.metadata.uid)
        try:
            await self._applier.apply((cr.namespace, cr.name), manifest, found, is_memory=True)
        except OwnedElsewhereError as error:
            return str(error)
        except ApiError as error:
            return f"{kind} {name}: {error.message or error}"
        return ""

    def _judge_signatures(self, cr: EldrDeployment, views: Sequence[RouterView], now: datetime) -> Condition:
        key = (cr.namespace, cr.name)
        self._windows[key], answers = signatures.advance(self._windows.get(key), views, now)
        return signatures.judge(cr, answers)


def _regime_since(fits: Sequence[EldrFit], table: Table, drift: State) -> datetime | None:
    """Return since when traffic is as it is: the change that was detected, or that the active set was fitted after."""
    if drift.drift.phase == "Detected":
        return drift.drift.changed
    active = table.active
    return next((fit.spec.since for fit in fits if active is not None and fit.name == active.fit), None)
