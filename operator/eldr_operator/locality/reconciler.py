"""Decides which centroid set routers use and which fits are made, and carries that out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from eldr import contract
from eldr_operator import backoff, meta
from eldr_operator.conditions import Condition
from eldr_operator.drift import windows
from eldr_operator.drift.decide import block, decide
from eldr_operator.drift.protection import gives_way
from eldr_operator.fits import marks, planner
from eldr_operator.fits.runs import MOST_WRITES, Runs
from eldr_operator.kube.api import Api
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.owners import owner_uids
from eldr_operator.kube.queue import Key
from eldr_operator.kube.recorder import Recorder
from eldr_operator.kube.repeats import Repeats
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.locality import activation, drift_history, memory, observer, signatures
from eldr_operator.locality.memory import Memory
from eldr_operator.locality.outcome import Look, Outcome
from eldr_operator.locality.ownership import Ownership
from eldr_operator.locality.polls import NOT_YET, Polls
from eldr_operator.locality.router_view import RouterView, ready_routers, unready_routers
from eldr_operator.locality.routing import Table
from eldr_operator.metrics import Metrics
from eldr_operator.models import EldrDeployment, EldrFit
from eldr_operator.unwritten import Unwritten, Writes
from eldr_operator.workloads import rbac

Object = dict[str, Any]

logger = logging.getLogger(__name__)


_CUT_OFF_SECONDS = 5.0
"""Engines may all be ejected for a moment; routers that reach none for so long serve no request."""
_REFUSED_SECONDS = 30.0
"""The API server may refuse a router for a moment, as while its token is replaced; after so long its ``/ready`` fails too."""


@dataclass(slots=True)
class _Seen:
    """What is known of a deployment's routers only while this process lives.

    Parameters
    ----------
    unreached : datetime or None
        Since when none has answered.
    cut_off : datetime or None
        Since when none has reached a decode engine.
    refused : dict of str to datetime
        Since when the API server has refused each router, by the names of their pods.
    """

    traffic: windows.Gathering | None = None
    signatures: signatures.Window | None = None
    unreached: datetime | None = None
    cut_off: datetime | None = None
    refused: dict[str, datetime] = field(default_factory=dict)


class Locality:
    """Reconciles centroid sets and fits.

    Parameters
    ----------
    image : str
        Image of fits where a resource names none.
    """

    def __init__(
        self,
        *,
        api: Api,
        polls: Polls,
        applier: Applier,
        recorder: Recorder,
        metrics: Metrics,
        image: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._refusals = backoff.Backoff(monotonic, backoff.REFUSED)
        self._polls = polls
        self._applier = applier
        self._recorder = recorder
        self._ownership = Ownership(api, applier)
        self._runs = Runs(api, applier, recorder, metrics, image)
        self._seen: dict[Key, _Seen] = {}
        self._warned = Repeats()

    async def look(
        self, cr: EldrDeployment, all_fits: Sequence[EldrFit], live: Snapshot, now: datetime
    ) -> Look | None:
        """Decide which set is next by what the routers said last; None before they have been asked."""
        tls = cr.spec.router.admin_tls
        authority = tls.authority_config_map if tls else ""
        ready, unready = ready_routers(live.pods), unready_routers(live.pods, now)
        polled = self._polls.latest((cr.namespace, cr.name), [*ready, *unready], live.token, authority)
        if polled is None:
            return None
        views = [view for view in polled.views if view.pod in ready]
        for view in views:
            if view.odd:
                text = f"router {view.pod.name} tells {', '.join(view.odd)} that cannot be, taken as unknown; do its version and this operator's match?"
                self._warn(cr, text, now)
        config_map = live.owned("ConfigMap", contract.routing_name(cr.name), cr.metadata.uid)
        before = memory.read(config_map, cr.status)
        if lost := memory.lost(config_map, before):
            text = f"ConfigMap {contract.routing_name(cr.name)} is damaged: what cannot be read of {', '.join(lost)} is forgotten"
            self._warn(cr, text, now)
        before = await self._with_baselines(cr, before.not_after(now))
        before = before.but(drift=marks.recalled(all_fits, before.drift)).with_replicas(
            cr.spec.decode.replicas, now
        )
        known = self._seen.setdefault((cr.namespace, cr.name), _Seen())
        if (active := before.table.active) is not None:
            traffic = filter(None, (view.traffic for view in views))
            at, spec = min(polled.at, now), cr.spec.refit.drift
            known.traffic = windows.advance(known.traffic, active.digest, active.k, traffic, at, spec=spec)
        seen = observer.look(cr, all_fits, before, views, known.traffic.window if known.traffic else None)
        drift, verdict = decide(before.drift, cr.spec.refit.drift, seen, now)
        is_silent = views and all(view.problem and view.problem != NOT_YET for view in views)
        known.unreached = min(known.unreached or now, now) if is_silent else None
        decision = activation.decide(
            cr,
            all_fits,
            before.table,
            views,
            now,
            blocked=drift.blocked,
            unreached_since=known.unreached,
        )
        for digest in decision.refused:
            drift = block(drift, digest)
        known.refused = {
            view.pod.name: min(known.refused.get(view.pod.name, now), now)
            for view in polled.views
            if view.is_unauthorized
        }
        refused = [
            view
            for view in polled.views
            if view.is_unauthorized
            and (now - known.refused[view.pod.name]).total_seconds() >= _REFUSED_SECONDS
        ]
        is_cut_off = views and not any(view.serves for view in views)
        known.cut_off = min(known.cut_off or now, now) if is_cut_off else None
        can_serve = known.cut_off is None or (now - known.cut_off).total_seconds() < _CUT_OFF_SECONDS
        return Look(views, before, decision, seen, drift, verdict, refused, can_serve=can_serve)

    async def reconcile(
        self,
        cr: EldrDeployment,
        all_fits: Sequence[EldrFit],
        live: Snapshot,
        look: Look,
        *,
        taken: Collection[str],
        is_readable: bool,
        unadopted: Sequence[Unwritten],
        now: datetime,
    ) -> Outcome:
        """Plan fits and carry them forward, and publish the routing table with what is to be remembered.

        Fits are created before the memory is written: one that was made and not remembered is found by its name, one
        that was remembered and not made would be lost.

        Parameters
        ----------
        taken : collection of str
            Names of all EldrFits of the namespace.
        is_readable : bool
            Whether routers may read the shards that the table names; they must not be told of others.
        unadopted : sequence of Unwritten
            EldrFits that could not be made to go with the deployment.

        Raises
        ------
        ConflictError
            If another pass has written the memory since it was read.
        """
        before, decision = look.before, look.decision
        may_start = rbac.fits_may_run(cr, live)
        finished = await self._runs.advance(cr, all_fits, live.of_kind("Job"), now, may_start=may_start)
        # Told before it is remembered: what is on the fits outlives the memory.
        for fit, status in marks.marks(all_fits, look.drift, decision.refused, now):
            await self._recorder.fit(fit, status, now)
        plan = planner.plan(cr, planner.Situation(all_fits, taken, look), now)
        writes = self._writes(cr)
        created, unwritten = await self._runs.carry_out(cr, plan, all_fits, writes)
        after = before.but(
            refit=before.refit if unwritten else plan.refit,
            drift=look.drift,
            day=drift_history.advance(before.day, before.drift, look.drift),
        ).with_protection(look.verdict.protective, now)
        if is_readable:
            after = self._activated(cr, after.with_table(decision.table), before.table)
        if fault := await self._publish(writes, cr, after, live):
            unwritten.append(fault)
            after = before
        unwritten += unadopted
        if fault := await writes.tried("ConfigMap", "", self._ownership.keep_sets(cr, after.table)):
            unwritten.append(fault)
        return Outcome(
            look=look,
            memory=after,
            signatures=self._judge_signatures(cr, look.routers, now),
            wake_at=min(filter(None, (plan.wake_at, look.verdict.wake_at)), default=None),
            is_unfinished=finished or created,
            unwritten=unwritten,
        )

    @staticmethod
    def _activated(cr: EldrDeployment, after: Memory, before: Table) -> Memory:
        """Let a set that was just activated serve or not: what it does was judged of the one before."""
        active = after.table.active
        if active is None or (before.active is not None and active.digest == before.active.digest):
            return after
        # While there is a pin, no other set is activated than the one that it names.
        chosen = bool(cr.spec.centroids.pin)
        replaced = gives_way(cr.spec.refit.drift, cr.spec.router.policy, chosen=chosen)
        return after.but(protective=replaced and active.digest in after.drift.harmful)

    async def fits(self, bodies: Sequence[Object], now: datetime) -> list[EldrFit]:
        """Return the EldrFits that can be read; one that cannot be holds nobody up."""
        return await self._runs.readable(bodies, now)

    async def adopt(self, cr: EldrDeployment, fits: Sequence[Object]) -> list[Unwritten]:
        """Make EldrFits that users created go when their deployment goes; return those that cannot be written."""
        writes = self._writes(cr)
        unowned = [fit for fit in fits if cr.metadata.uid not in owner_uids(fit)]
        tries = [
            await writes.tried(contract.KIND_FIT, fit["metadata"]["name"], self._ownership.adopt_fit(cr, fit))
            for fit in unowned[:MOST_WRITES]
        ]
        return [fault for fault in tries if fault]

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._polls.forget(key)
        self._seen.pop(key, None)
        self._ownership.forget(key)
        self._refusals.forget(key)

    def _warn(self, cr: EldrDeployment, text: str, now: datetime) -> None:
        if self._warned.count((cr.metadata.uid, text), now):
            logger.warning("EldrDeployment %s/%s: %s", cr.namespace, cr.name, text)

    async def _with_baselines(self, cr: EldrDeployment, before: memory.Memory) -> memory.Memory:
        """Keep the baselines of the sets in use, and read those that are not known from the reports of their fits."""
        known = before.baselines
        baselines = {
            each.digest: known[each.digest] if each.digest in known else await self._runs.baseline(cr, each)
            for each in before.table.sets
        }
        return before if baselines == known else before.but(baselines=baselines)

    def _writes(self, cr: EldrDeployment) -> Writes:
        return Writes((cr.namespace, cr.name), self._refusals, asyncio.get_running_loop().time)

    async def _publish(
        self, writes: Writes, cr: EldrDeployment, after: memory.Memory, live: Snapshot
    ) -> Unwritten | None:
        manifest = memory.config_map(cr, after)
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        config_map = live.owned(kind, name, cr.metadata.uid)
        write = self._applier.apply((cr.namespace, cr.name), manifest, config_map, is_memory=True)
        return await writes.tried(kind, name, write, meta.fingerprint(manifest))

    def _judge_signatures(self, cr: EldrDeployment, views: Sequence[RouterView], now: datetime) -> Condition:
        seen = self._seen[cr.namespace, cr.name]
        seen.signatures, answers = signatures.advance(seen.signatures, views, now)
        return signatures.warned(signatures.judge(cr, answers), views, cr)
