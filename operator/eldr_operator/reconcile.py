"""The two reconciliations of an EldrDeployment: what runs, and which centroids it uses. Everything follows from what is observed.

They share the cache, and neither waits for the other: a child that cannot be written keeps no centroid set back, and a fit no child.
Routers must not be told of a set that they may not read. So what runs asks which sets are wanted, and writes the routers' Role; the
set is published once the Role that the cluster has names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from eldr import contract
from eldr_operator import meta
from eldr_operator.clock import Clock
from eldr_operator.errors import InvalidResourceError
from eldr_operator.fits import lifecycle
from eldr_operator.fits.runs import MOST_WRITES
from eldr_operator.kube import refusals
from eldr_operator.kube.api import Api, Object
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.cache import WATCHED, Cache
from eldr_operator.kube.cluster import Cluster
from eldr_operator.kube.queue import REST_SECONDS, Key
from eldr_operator.kube.recorder import Recorder
from eldr_operator.kube.served import Served
from eldr_operator.kube.streams import Streams
from eldr_operator.locality import memory
from eldr_operator.locality.outcome import Outcome
from eldr_operator.locality.ownership import is_of_another
from eldr_operator.locality.polls import Polls
from eldr_operator.locality.reconciler import Locality
from eldr_operator.locality.router_view import ready_routers
from eldr_operator.metrics import Metrics
from eldr_operator.models import EldrDeployment, EldrFit, parse, without_spec
from eldr_operator.reporter import Reporter
from eldr_operator.status import unknown
from eldr_operator.unwritten import Unwritten, seconds_until_tried
from eldr_operator.validation import spec
from eldr_operator.workloads import rbac, rollout, scaling, secret, trouble
from eldr_operator.workloads import reconciler as workloads
from eldr_operator.workloads.children import Children
from eldr_operator.workloads.failures import Failures
from eldr_operator.workloads.secret import AdminSecrets

_WRITTEN = {
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceAccount",
}
"""Kinds that are only written. Decisions rest on the others: without one of them there is no pass."""
DECISIVE = WATCHED.keys() - _WRITTEN
CENTROID_KINDS = {
    *(contract.KIND_DEPLOYMENT, contract.KIND_FIT, contract.KIND_SCALER),
    *("ConfigMap", "Job", "Pod"),
    *("Role", "RoleBinding", "ServiceAccount"),  # by which routers may read a set
}
WRITTEN_BESIDE_CENTROIDS = {contract.KIND_DEPLOYMENT, contract.KIND_SCALER}
"""Kinds that this operator writes, and that centroids follow only where others have changed them."""
CENTROIDS_REST_SECONDS = 2.0
"""Centroids wait longer than what runs: answers of routers wake them at once, and all other changes can wait."""
WORKLOAD_KINDS = WATCHED.keys() - {"ConfigMap"}
WRITTEN_BY_WORKLOADS = WORKLOAD_KINDS - {contract.KIND_FIT, "ControllerRevision", "Job"}
"""Kinds that passes over what runs write by apply alone: the pass after such a write needs no watch, see :meth:`Applier.take_written`."""
WAITING_SECONDS = 1.0
"""Between two passes while routers load a set, whatever they say."""
TROUBLE_SECONDS = 5.0
"""Between two passes while a router does not answer, or reports a fault."""
POLL_WAITING_SECONDS = 0.3
"""Between two questions to routers that load a set."""
POLL_SECONDS = 5.0
"""Between two questions to routers whose samples and traffic are used, unless resyncs come more often."""
POLL_REST_SECONDS = 15.0
"""Between two questions to routers whose policy uses neither."""


@dataclass(frozen=True, slots=True)
class Common:
    """What both reconciliations stand on.

    Parameters
    ----------
    cache : Cache
        What the API server holds.
    streams : Streams
        What of that can be read.
    served : Served
        Which release serves a namespace.
    """

    cache: Cache
    streams: Streams
    served: Served
    cluster: Cluster
    applier: Applier
    recorder: Recorder
    reporter: Reporter
    metrics: Metrics
    clock: Clock

    def is_readable(self, namespace: str) -> bool:
        """Tell whether everything that decisions rest on can be read in a namespace."""
        return not self.streams.unlisted(namespace) & DECISIVE


class Workloads:
    """Reconciles what runs for a deployment.

    Parameters
    ----------
    wanted : callable
        Returns the ConfigMaps of centroid sets that routers are to read beside those of the published table.
    """

    def __init__(
        self, common: Common, api: Api, children: Children, wanted: Callable[[Key], Collection[str]]
    ) -> None:
        self._common = common
        self._api = api
        self._children = children
        self._wanted = wanted
        self._failures = Failures()

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Bring what runs one step closer to the spec."""
        common, key = self._common, (namespace, name)
        body = common.cache.get(contract.KIND_DEPLOYMENT, namespace, name)
        # first: what this release cannot read, the other one may
        if body is not None and (other := await common.served.other(namespace)):
            await common.recorder.managed_elsewhere(without_spec(body), other, common.clock())
            return None  # woken when the other release has left
        if not common.is_readable(namespace):
            await self._report_unreadable(namespace, body)
            return None  # each list of the streams wakes all
        if body is None:
            common.applier.forget(key)
            self._children.forget(key)
            common.cluster.forget(key)
            common.reporter.forget(key)
            self._failures.forget(key)
            return None
        try:
            cr = parse(EldrDeployment, body)
        except InvalidResourceError as error:
            await self._report_unreadable_spec(body, error)
            return None  # nothing changes until the spec does, or the operator
        if cr.metadata.deletion_timestamp is not None:
            await self._report_terminating(cr, body)
            return None  # owner references do the rest
        return await self._pass(cr)

    async def _pass(self, cr: EldrDeployment) -> float | None:
        common, key, now = self._common, (cr.namespace, cr.name), self._common.clock()
        live = common.cluster.look(cr)
        ignored = scaling.spec_replicas(cr, live)
        cr = scaling.scaled(cr, live)
        problems = spec.problems(cr)
        routing = live.owned("ConfigMap", contract.routing_name(cr.name), cr.metadata.uid)
        shards = {*memory.read(routing, cr.status).table.shards, *self._wanted(key)}
        running = await workloads.reconcile(
            self._api,
            cr,
            self._children,
            live,
            broken=spec.blocked_roles(cr, problems),
            shards=sorted(shards),
            ready_routers=len(ready_routers(live.pods)),
            unreadable=common.streams.refused(cr.namespace),
            failed=self._failures.of(key, live.pods, now),
            has_fits=bool(common.cache.of_deployment(contract.KIND_FIT, cr.namespace, cr.name)),
            now=now,
        )
        running = replace(running, spec_replicas=ignored)
        await common.recorder.undone(cr, common.applier.take_undone(key), now)
        is_written = common.applier.take_written(key)
        if not live.of_kind("ServiceAccount") and not running.unwritten:
            return REST_SECONDS  # all of it was just made: told with what becomes of it
        await common.reporter.workloads(cr, problems, running)
        waits = rollout.seconds_left(live.pods, now) + trouble.seconds_until_stuck(live.pods, now)
        waits += secret.seconds_until_tried(live)
        if is_written:
            waits.append(REST_SECONDS)
        waits += [
            _seconds_until(role.gap_at, now) for role in (running.prefill, running.decode) if role.gap_at
        ]
        waits += seconds_until_tried(running.unwritten)
        decode = live.owned("StatefulSet", meta.child_name(cr, contract.ROLE_DECODE), cr.metadata.uid)
        if left := refusals.seconds_until_asked(decode, now):
            waits.append(left)
        return min(waits, default=None)

    async def _report_terminating(self, cr: EldrDeployment, body: Object) -> None:
        if held := body["metadata"].get("finalizers"):
            text = f"it is deleted and waits for {', '.join(held)}; what runs goes on until then, unmanaged"
            now = self._common.clock()
            await self._common.recorder.deployment(cr, unknown(cr, "Terminating", text, now), now)

    async def _report_unreadable_spec(self, body: Object, error: InvalidResourceError) -> None:
        cr, now = without_spec(body), self._common.clock()
        text = (
            f"this release of the operator cannot read {error}. "
            "Upgrade the operator, or change the field. Running pods keep running, unmanaged; other conditions show the last known state"
        )
        status = unknown(cr, "SpecUnreadable", text, now) | {"observedGeneration": cr.metadata.generation}
        await self._common.recorder.deployment(cr, status, now)

    async def _report_unreadable(self, namespace: str, body: Object | None) -> None:
        """Tell that nothing is done for a deployment, where that is more than a moment without an answer."""
        refused = self._common.streams.refused(namespace)
        why = [text for kind, text in refused.items() if kind in DECISIVE]
        if body is not None and why:
            cr, now = without_spec(body), self._common.clock()
            text = f"{'; '.join(why)}. What runs goes on, unmanaged"
            await self._common.recorder.deployment(cr, unknown(cr, "ClusterUnreadable", text, now), now)


class Centroids:
    """Reconciles which centroid set routers use, and fits.

    Parameters
    ----------
    polls : Polls
        Ask the routers.
    wake_workloads : callable
        Is told whose routers are to read other sets than before.
    poll_seconds : float
        Between two questions to routers whose answers are used.
    secrets : AdminSecrets
        Learns whose routers refuse the operator's token.
    """

    def __init__(
        self,
        common: Common,
        locality: Locality,
        polls: Polls,
        wake_workloads: Callable[[Key], None],
        *,
        poll_seconds: float,
        secrets: AdminSecrets,
    ) -> None:
        self._common = common
        self._locality = locality
        self._polls = polls
        self._wake_workloads = wake_workloads
        self._poll_seconds = poll_seconds
        self._secrets = secrets
        self._wanted: dict[Key, frozenset[str]] = {}

    def wanted(self, key: Key) -> frozenset[str]:
        """Return the ConfigMaps of the centroid sets that routers are to read."""
        return self._wanted.get(key, frozenset())

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Bring centroids and fits one step closer to the spec."""
        common, key = self._common, (namespace, name)
        if not common.is_readable(namespace):
            return None
        body = common.cache.get(contract.KIND_DEPLOYMENT, namespace, name)
        bodies = common.cache.of_deployment(contract.KIND_FIT, namespace, name)
        if body is None:
            common.metrics.forget(*key)
            self._locality.forget(key)
            self._secrets.forget(key)
            self._wanted.pop(key, None)
            await self._report_waiting(await self._locality.fits(bodies, common.clock()))
            return None
        try:
            cr = parse(EldrDeployment, body)
        except InvalidResourceError:
            return None  # the other reconciliation reports it
        if cr.metadata.deletion_timestamp is not None or await common.served.other(namespace):
            return None
        bodies = [fit for fit in bodies if not is_of_another(fit, cr.metadata.uid)]
        unadopted = await self._locality.adopt(cr, bodies)
        taken = common.cache.names(contract.KIND_FIT, namespace)
        return await self._pass(cr, await self._locality.fits(bodies, common.clock()), taken, unadopted)

    async def _pass(
        self,
        cr: EldrDeployment,
        all_fits: Sequence[EldrFit],
        taken: Collection[str],
        unadopted: Sequence[Unwritten],
    ) -> float | None:
        common, key, now = self._common, (cr.namespace, cr.name), self._common.clock()
        live = common.cluster.look(cr)
        cr = scaling.scaled(cr, live)
        look = await self._locality.look(cr, all_fits, live, now)
        if look is None:
            return None  # the routers' first answer wakes it
        if any(view.refuses_token for view in look.routers):
            await common.cluster.refused(key)
            self._secrets.refused(key)
            self._wake_workloads(key)
        wanted = frozenset(look.decision.table.shards)
        if wanted != self.wanted(key):
            self._wanted[key] = wanted
            self._wake_workloads(key)
        is_readable = wanted <= rbac.readable(cr, live)
        outcome = await self._locality.reconcile(
            cr, all_fits, live, look, taken=taken, is_readable=is_readable, unadopted=unadopted, now=now
        )
        if outcome.memory.table.shards != look.before.table.shards:
            self._wake_workloads(key)
        await common.reporter.locality(cr, outcome)
        common.metrics.epoch.labels(*key).set(outcome.memory.table.epoch)
        common.metrics.acks.labels(*key).set(outcome.look.decision.acks)
        drift = outcome.memory.drift.shown
        common.metrics.drift.labels(*key).set(math.nan if drift is None else drift.value)
        self._polls.ask_every(key, self._poll_pause(cr, outcome))
        return 0.0 if outcome.is_unfinished else _next_look(outcome, now)

    def _poll_pause(self, cr: EldrDeployment, outcome: Outcome) -> float:
        if outcome.look.decision.is_waiting:
            return POLL_WAITING_SECONDS
        if outcome.look.unauthorized or not all(view.serves for view in outcome.look.routers):
            return self._poll_seconds  # the condition follows the next answer
        in_effect = {view.policy for view in outcome.look.routers} - {""}
        return poll_seconds(cr.spec.router.policy, in_effect, self._poll_seconds)

    async def _report_waiting(self, all_fits: Sequence[EldrFit]) -> None:
        now = self._common.clock()
        waiting = [fit for fit in all_fits if not fit.is_finished and fit.metadata.deletion_timestamp is None]
        # those whose status says so need no write
        unmarked = [fit for fit in waiting if fit.state[1] != lifecycle.NO_DEPLOYMENT]
        for fit in unmarked[:MOST_WRITES]:
            await self._common.recorder.fit(fit, lifecycle.waiting_for_deployment(fit, now), now)


def poll_seconds(policy: str, in_effect: Collection[str], often: float) -> float:
    """Return the pause between two questions to routers: short where samples are used, or some have not read the policy yet."""
    uses_samples = policy in {contract.POLICY_ELDR, contract.POLICY_MARGINAL}
    return often if uses_samples or any(each != policy for each in in_effect) else POLL_REST_SECONDS


def _next_look(outcome: Outcome, now: datetime) -> float | None:
    waits = seconds_until_tried(outcome.unwritten)
    if outcome.look.decision.is_waiting:
        waits.append(WAITING_SECONDS)
    if any(view.problem or view.complaint or not view.serves for view in outcome.look.routers):
        waits.append(TROUBLE_SECONDS)
    if outcome.wake_at is not None:
        waits.append(_seconds_until(outcome.wake_at, now))
    return min(waits, default=None)


def _seconds_until(moment: datetime, now: datetime) -> float:
    return max((moment - now) / timedelta(seconds=1), WAITING_SECONDS)
