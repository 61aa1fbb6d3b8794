"""One pass over an EldrDeployment and its fits: read, decide, write. Everything follows from what is observed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

from eldr import contract
from eldr_operator.clock import Clock
from eldr_operator.fits import lifecycle
from eldr_operator.kube.api import Api, Object
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.cache import WATCHED, Cache
from eldr_operator.kube.cluster import Cluster
from eldr_operator.kube.recorder import Recorder
from eldr_operator.kube.streams import Streams
from eldr_operator.kube.tokens import Tokens
from eldr_operator.locality.outcome import Outcome
from eldr_operator.locality.ownership import is_of_another
from eldr_operator.locality.polls import Polls
from eldr_operator.locality.reconciler import Locality
from eldr_operator.metrics import Metrics
from eldr_operator.models import EldrDeployment, EldrFit, parse
from eldr_operator.status import status, unknown
from eldr_operator.validation import spec
from eldr_operator.workloads import reconciler as workloads
from eldr_operator.workloads import rollout, scaling
from eldr_operator.workloads.children import Children
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.network import Outside

DECISIVE = WATCHED.keys() - {
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceAccount",
}
"""Kinds that decisions rest on: without one of them there is no pass. The others are only written."""
WAITING_SECONDS = 1.0
"""Between two passes while routers load a set, whatever they say."""
TROUBLE_SECONDS = 5.0
"""Between two passes while a router does not answer."""
POLL_WAITING_SECONDS = 0.3
"""Between two questions to routers that load a set."""
POLL_SECONDS = 5.0
"""Between two questions to routers whose samples and traffic are used, unless resyncs come more often."""
POLL_REST_SECONDS = 60.0
"""Between two questions to routers whose policy uses neither."""
RETRY_SECONDS = 5.0
"""Until a child that could not be written is tried again."""


class Reconciler:
    """Reconciles one deployment at a time: what runs, and which centroids it uses, over one look at the cluster.

    Parameters
    ----------
    cache : Cache
        What the API server holds.
    streams : Streams
        What of that can be read.
    polls : Polls
        Ask the routers.
    tokens : Tokens
        Of the routers' admin ports.
    image : str
        Image of our own programs where a resource names none.
    outside : Outside
        Who reaches pods beside clients.
    resync_seconds : float
        Between two passes over every resource.
    """

    def __init__(
        self,
        *,
        api: Api,
        cache: Cache,
        streams: Streams,
        polls: Polls,
        metrics: Metrics,
        tokens: Tokens,
        image: str,
        outside: Outside,
        clock: Clock,
        monotonic: Callable[[], float],
        resync_seconds: float,
    ) -> None:
        self._api = api
        self._cache = cache
        self._streams = streams
        self._metrics = metrics
        self._clock = clock
        self._cluster = Cluster(api, cache, tokens, monotonic)
        self._applier = Applier(api, cache, metrics, monotonic)
        self._recorder = Recorder(self._applier)
        self._children = Children(self._applier, Images(image), tokens, outside)
        self._polls = polls
        self._poll_seconds = min(POLL_SECONDS, resync_seconds)
        self._locality = Locality(
            api=api, polls=polls, applier=self._applier, recorder=self._recorder, metrics=metrics, image=image
        )

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Bring a deployment one step closer to its spec.

        Returns
        -------
        float or None
            Seconds after which to look again, whatever else happens.
        """
        if self._streams.unlisted(namespace) & DECISIVE:
            await self._tell_unknown(namespace, name)
            return None  # each list of the streams wakes all
        body = self._cache.get(contract.KIND_DEPLOYMENT, namespace, name)
        everybody = self._cache.of(contract.KIND_FIT, namespace)
        bodies = [fit for fit in everybody if fit["spec"]["deploymentRef"]["name"] == name]
        if body is None:
            fits = await self._locality.fits(bodies, self._clock())
            await self._without_deployment(namespace, name, fits)
            return None
        cr = parse(EldrDeployment, body)
        if cr.metadata.deletion_timestamp is not None:
            await self._tell_terminating(cr, body)
            return None  # owner references do the rest
        bodies = [fit for fit in bodies if not is_of_another(fit, cr.metadata.uid)]
        for fit in bodies:
            await self._locality.adopt(cr, fit)
        taken = {fit["metadata"]["name"] for fit in everybody}
        return await self._pass(cr, await self._locality.fits(bodies, self._clock()), taken)

    async def _pass(
        self, cr: EldrDeployment, all_fits: Sequence[EldrFit], taken: Collection[str]
    ) -> float | None:
        now = self._clock()
        live = self._cluster.look(cr)
        cr = scaling.scaled(cr, live)
        look = await self._locality.look(cr, all_fits, live, now)
        if look is None:
            return None  # the routers' first answer wakes it
        if any(view.refuses_token for view in look.routers):
            await self._cluster.refused((cr.namespace, cr.name))
        problems = spec.problems(cr)
        running = await workloads.reconcile(
            self._api,
            cr,
            self._children,
            live,
            broken=spec.blocked_roles(cr, problems),
            shards=look.decision.table.shards,
            ready_routers=len(look.routers),
            unreadable=self._streams.refused(cr.namespace),
            now=now,
        )
        await self._recorder.undone(cr, self._applier.take_undone((cr.namespace, cr.name)), now)
        outcome = await self._locality.reconcile(
            cr, all_fits, live, look, taken=taken, is_readable=running.is_readable, now=now
        )
        await self._recorder.deployment(cr, status(cr, problems, running, outcome, now), now)
        self._metrics.epoch.labels(cr.namespace, cr.name).set(outcome.memory.table.epoch)
        self._metrics.acks.labels(cr.namespace, cr.name).set(outcome.decision.acks)
        self._polls.ask_every((cr.namespace, cr.name), self._poll_pause(cr, outcome))
        if outcome.is_unfinished:
            return 0.0
        is_retried = bool(running.unwritten or outcome.unwritten)
        waits = rollout.seconds_left(live.pods, now)
        waits += [
            _seconds_until(role.gap_at, now) for role in (running.prefill, running.decode) if role.gap_at
        ]
        return _next_look(outcome, now, is_retried=is_retried, waits=waits)

    def _poll_pause(self, cr: EldrDeployment, outcome: Outcome) -> float:
        if outcome.decision.is_waiting:
            return POLL_WAITING_SECONDS
        uses_samples = cr.spec.router.policy in {contract.POLICY_ELDR, contract.POLICY_MARGINAL}
        return self._poll_seconds if uses_samples else POLL_REST_SECONDS

    async def _tell_terminating(self, cr: EldrDeployment, body: Object) -> None:
        if held := body["metadata"].get("finalizers"):
            text = f"it is deleted and waits for {', '.join(held)}; what runs goes on until then, and is not looked after"
            now = self._clock()
            await self._recorder.deployment(cr, unknown(cr, "Terminating", text, now), now)

    async def _tell_unknown(self, namespace: str, name: str) -> None:
        """Tell that nothing is done for a deployment, where that is more than a moment without an answer."""
        body = self._cache.get(contract.KIND_DEPLOYMENT, namespace, name)
        why = [text for kind, text in self._streams.refused(namespace).items() if kind in DECISIVE]
        if body is not None and why:
            cr, now = parse(EldrDeployment, body), self._clock()
            text = f"{'; '.join(why)}. What runs goes on, and is not watched"
            await self._recorder.deployment(cr, unknown(cr, "ClusterUnreadable", text, now), now)

    async def _without_deployment(self, namespace: str, name: str, all_fits: Sequence[EldrFit]) -> None:
        key = (namespace, name)
        self._applier.forget(key)
        self._metrics.forget(*key)
        self._locality.forget(key)
        self._cluster.forget(key)
        now = self._clock()
        for fit in all_fits:
            if not fit.is_finished and fit.metadata.deletion_timestamp is None:
                await self._recorder.fit(fit, lifecycle.waiting_for_deployment(fit, now), now)


def _next_look(outcome: Outcome, now: datetime, *, is_retried: bool, waits: list[float]) -> float | None:
    if outcome.decision.is_waiting:
        waits.append(WAITING_SECONDS)
    if any(view.problem for view in outcome.routers):
        waits.append(TROUBLE_SECONDS)
    if is_retried:
        waits.append(RETRY_SECONDS)
    if outcome.wake_at is not None:
        waits.append(_seconds_until(outcome.wake_at, now))
    return min(waits, default=None)


def _seconds_until(moment: datetime, now: datetime) -> float:
    return max((moment - now) / timedelta(seconds=1), WAITING_SECONDS)
