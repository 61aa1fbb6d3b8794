"""From sources to engines, peers and the routing table.

Centroid sets are loaded beside the traffic.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from eldr import centroids
from eldr.addresses import Address
from eldr.centroids import CentroidsError, CentroidSet
from eldr.contract import POLICY_MARGINAL, ROLE_DECODE
from eldr_router.engines.registry import Registry
from eldr_router.engines.spec import EndpointSpec
from eldr_router.net.pool import Pool
from eldr_router.placement.affinity import PrefixAffinity
from eldr_router.placement.locality import Locality
from eldr_router.placement.table import EMPTY, RoutingDocument, SetRef, Table, make_table
from eldr_router.sources.backoff import Backoff
from eldr_router.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_MOST_RETRY_SECONDS = 5.0
_CUT_OFF_SECONDS = 30.0
_MISSING_SECONDS = 10.0
"""A set that cannot be fetched for so long is reported as refused; a fresh Role or shard takes a moment to be seen."""

Fetch = Callable[[SetRef], Awaitable[bytes]]


class MissingError(Exception):
    """A set cannot be fetched now; it is tried again."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a set is not loaded; ``since`` is set while it is tried again."""

    ref: SetRef
    reason: str
    since: float | None = None


class Routing:
    """The side of the router that sources talk to.

    Parameters
    ----------
    registry : Registry
    pool : Pool
    locality : Locality
    affinity : PrefixAffinity
        It forgets prefill engines that are gone.
    metrics : Metrics
    clock : callable
        Monotonic seconds.
    use : callable
        Takes each new routing table.

    Attributes
    ----------
    table : Table
        The one in effect.
    problem : str or None
        What a source cannot read now.
    """

    def __init__(
        self,
        registry: Registry,
        pool: Pool,
        *,
        locality: Locality,
        affinity: PrefixAffinity,
        metrics: Metrics,
        clock: Callable[[], float],
        use: Callable[[Table], None],
    ) -> None:
        self._registry, self._pool = registry, pool
        self._locality, self._affinity, self._metrics = locality, affinity, metrics
        self._clock, self._use = clock, use
        self.table = EMPTY
        self._wake = asyncio.Event()
        self._document: RoutingDocument | None = None
        self._fetch: Fetch | None = None
        self._loaded: dict[str, CentroidSet] = {}
        self._refused: dict[str, _Refusal] = {}
        self._loads: dict[str, tuple[SetRef, asyncio.Task[None]]] = {}
        self._roles: set[str] = set()
        self.problem: str | None = None
        self._refused_since: float | None = None

    def set_endpoints(self, role: str, specs: Iterable[EndpointSpec]) -> None:
        """Take the engines of a role."""
        known = {endpoint.spec for endpoint in self._registry.endpoints(role)}
        self._registry.replace(role, specs)
        kept = {endpoint.spec for endpoint in self._registry.endpoints(role)}
        before, after = {spec.name for spec in known}, {spec.name for spec in kept}
        self._roles.add(role)
        if before != after:
            log.info("%s engines: %s", role, ", ".join(sorted(after)) or "none")
        if role == ROLE_DECODE:
            self._metrics.forget(before - after)
            self._locality.retain(after)
        else:
            self._affinity.forget(spec.name for spec in known - kept)  # one that is new has nothing cached

    def set_peers(self, addresses: Iterable[Address], names: Mapping[Address, str] | None = None) -> None:
        """Take other routers' admin addresses, and their TLS names."""
        self._pool.names = names or {}
        self._registry.set_peers(addresses)

    def set_document(self, document: RoutingDocument, fetch: Fetch) -> None:
        """Take a routing document, and how its sets are fetched."""
        self._document, self._fetch = document, fetch
        self._wake.set()

    def set_problem(self, problem: str | None, *, is_refused: bool = False) -> None:
        """Record what a source cannot read; what it read last stays in effect.

        ``is_refused``: the API server refuses this router's credentials, so that retries alone change nothing.
        """
        if problem is None:
            self._refused_since = None
        elif is_refused and self._refused_since is None:
            self._refused_since = self._clock()
        if problem != self.problem:
            if problem is None:
                log.info("the source can be read again")
            else:
                log.error("%s", problem)
        self.problem = problem

    @property
    def is_cut_off(self) -> bool:
        """Whether the source is refused, and no decode engine is healthy."""
        since, registry = self._refused_since, self._registry
        if since is None or self._clock() - since < _CUT_OFF_SECONDS:
            return False
        return not any(map(registry.is_healthy, registry.endpoints(ROLE_DECODE)))

    @property
    def settled(self) -> bool:
        """Whether engines are known, and a table with its set, or why not."""
        if self._document is None or not self._roles or self.table is EMPTY:
            return False
        active = self._document.active
        return active is None or active.digest in self._loaded or active in (ref for ref, _ in self.refused)

    @property
    def staged(self) -> SetRef | None:
        """The staged set, once it is loaded."""
        staged = self._document.staged if self._document else None
        return staged if staged is not None and staged.digest in self._loaded else None

    @property
    def refused(self) -> list[tuple[SetRef, str]]:
        """Sets wanted now that cannot be loaded, and why."""
        latest = self._clock() - _MISSING_SECONDS
        return [
            (entry.ref, entry.reason)
            for entry in self._refused.values()
            if entry.since is None or entry.since <= latest
        ]

    async def run(self) -> None:
        """Bring the table to what is wanted, whenever that changes, for ever."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._reconcile()
        finally:
            for _, task in self._loads.values():
                task.cancel()
            self._loads.clear()

    def _reconcile(self) -> None:
        """Take one step; loads run beside it, so that no shard holds up a newer table, or a rollback."""
        document = self._document
        if document is None:
            return
        wanted = {ref.digest: ref for ref in (document.active, document.staged) if ref is not None}
        self._refused = {digest: e for digest, e in self._refused.items() if wanted.get(digest) == e.ref}
        for digest, (ref, task) in list(self._loads.items()):
            if wanted.get(digest) != ref:
                task.cancel()
            if wanted.get(digest) != ref or task.done():
                del self._loads[digest]
        self._activate(document)
        for digest, ref in wanted.items():
            if digest not in self._loaded and digest not in self._loads and digest not in self._refused:
                task = asyncio.create_task(self._load(ref, document.model), name=f"load {ref.fit}")
                self._loads[digest] = ref, task
        kept = {*wanted, self.table.active.digest if self.table.active else ""}
        self._loaded = {digest: item for digest, item in self._loaded.items() if digest in kept}
        self._metrics.refused_sets.set(len(self.refused))

    async def _load(self, ref: SetRef, model: str) -> None:
        """Load a set; one that is missing is tried again, ever more seldom."""
        assert self._fetch is not None  # noqa: S101 - it comes with the document
        backoff = Backoff(_RETRY_SECONDS, _MOST_RETRY_SECONDS, random.random)
        while True:
            try:
                data = await self._fetch(ref)
                self._loaded[ref.digest] = await asyncio.to_thread(_check, data, ref, model)
            except MissingError as error:
                self._missing(ref, str(error))
                self._wake.set()
                await asyncio.sleep(backoff.failed())
                continue
            except CentroidsError as error:
                log.error("centroid set %s is refused: %s", ref.fit, error)  # noqa: TRY400 - the message says it all
                self._refused[ref.digest] = _Refusal(ref, str(error))
            except Exception as error:
                log.exception("centroid set %s is refused", ref.fit)
                self._refused[ref.digest] = _Refusal(ref, f"{type(error).__name__}: {error}")
            else:
                self._refused.pop(ref.digest, None)
                log.info("centroid set %s is loaded, %d centroids", ref.fit, ref.k)
            self._wake.set()
            return

    def _missing(self, ref: SetRef, reason: str) -> None:
        known = self._refused.get(ref.digest)
        if known is None or known.reason != reason:
            log.warning("centroid set %s cannot be fetched: %s", ref.fit, reason)
        since = known.since if known and known.since is not None else self._clock()
        self._refused[ref.digest] = _Refusal(ref, reason, since)

    def _activate(self, document: RoutingDocument) -> None:
        current = self.table
        epoch, active, content = current.epoch, current.active, current.centroids
        if document.active is None:
            epoch, active, content = document.epoch, None, None
        elif document.active.digest in self._loaded:
            epoch, active, content = document.epoch, document.active, self._loaded[document.active.digest]
        if active != current.active or epoch != current.epoch:
            log.info("epoch %d: %s", epoch, active.fit if active else "no centroids")
        table = make_table(document, epoch=epoch, active=active, centroids=content)
        if table.policy_in_effect != current.policy_in_effect:
            log.info("places by %s, before by %s", table.policy_in_effect, current.policy_in_effect)
        self.table = table
        self._metrics.epoch.set(epoch)
        self._locality.follow(content, wanted=document.policy == POLICY_MARGINAL)
        self._locality.savings.follow(table.policy_in_effect, epoch)
        self._locality.traffic.follow(epoch, active.digest if active else "", active.k if active else 0)
        self._use(table)


def _check(data: bytes, ref: SetRef, model: str) -> CentroidSet:
    actual = centroids.digest(data)
    if actual != ref.digest:
        raise CentroidsError(f"digest {actual[:19]}..., the routing table says {ref.digest[:19]}...")
    loaded = centroids.load(data)
    centroids.check_fits(loaded, model=model or loaded.model, k=ref.k)
    return loaded
