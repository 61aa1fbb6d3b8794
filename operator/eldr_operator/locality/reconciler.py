"""Decides which centroid set routers use and which fits are made, and carries that out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import httpx

from eldr import contract
from eldr_operator.conditions import Condition
from eldr_operator.errors import ApiError, OwnedElsewhereError
from eldr_operator.fits import planner
from eldr_operator.fits.runs import Runs
from eldr_operator.kube.api import Api
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.cluster import Snapshot
from eldr_operator.kube.queue import Key
from eldr_operator.kube.recorder import Recorder
from eldr_operator.locality import activation, routers, routing, signatures
from eldr_operator.locality.outcome import Look, Outcome
from eldr_operator.locality.ownership import Ownership
from eldr_operator.locality.router_view import RouterView, ready_routers
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
        self._windows: dict[Key, signatures.Window] = {}

    async def look(
        self, cr: EldrDeployment, all_fits: Sequence[EldrFit], live: Snapshot, now: datetime
    ) -> Look:
        """Ask the routers, and decide which set is next."""
        views = await routers.look(self._http, ready_routers(live.pods), live.token)
        found = live.owned("ConfigMap", contract.routing_name(cr.name), cr.metadata.uid)
        history = cr.status.get("history") or [{"epoch": 0}]
        before = routing.read(found, last_epoch=int(history[-1]["epoch"]))
        return Look(views, before, activation.decide(cr, all_fits, before, views, now))

    async def reconcile(
        self,
        cr: EldrDeployment,
        all_fits: Sequence[EldrFit],
        live: Snapshot,
        look: Look,
        *,
        is_readable: bool,
        now: datetime,
    ) -> Outcome:
        """Publish the routing table, carry fits forward and plan new ones.

        Parameters
        ----------
        cr : EldrDeployment
        all_fits : sequence of EldrFit
        live : Snapshot
        look : Look
        is_readable : bool
            Whether routers may read the shards that the table names; they must not be told of others.
        now : datetime
        """
        decision, refused = look.decision, ""
        if is_readable:
            refused = await self._publish(cr, decision.table, live)
        if refused or not is_readable:
            decision = replace(decision, table=look.before)
        finished = await self._runs.advance(cr, all_fits, live.of_kind("Job"), now)
        samples = sum(view.samples for view in look.routers)
        plan = planner.plan(cr, all_fits, decision.table, samples, now)
        await self._runs.carry_out(cr, plan, all_fits)
        await self._ownership.keep_sets(cr, decision.table)
        return Outcome(
            routers=look.routers,
            decision=decision,
            signatures=self._judge_signatures(cr, look.routers, now),
            plan=plan,
            finished=finished,
            refused=refused,
        )

    async def adopt(self, cr: EldrDeployment, fit: Object) -> None:
        """Make an EldrFit that a user created go when its deployment goes."""
        await self._ownership.adopt_fit(cr, fit)

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._windows.pop(key, None)

    async def _publish(self, cr: EldrDeployment, wanted: routing.Table, live: Snapshot) -> str:
        manifest = routing.config_map(cr, wanted)
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        try:
            await self._applier.apply(
                (cr.namespace, cr.name), manifest, live.owned(kind, name, cr.metadata.uid)
            )
        except OwnedElsewhereError as error:
            return str(error)
        except ApiError as error:
            return f"{kind} {name}: {error.message or error}"
        return ""

    def _judge_signatures(self, cr: EldrDeployment, views: Sequence[RouterView], now: datetime) -> Condition:
        key = (cr.namespace, cr.name)
        self._windows[key], answers = signatures.advance(self._windows.get(key), views, now)
        return signatures.judge(cr, answers)
