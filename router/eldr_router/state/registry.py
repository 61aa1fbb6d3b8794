"""Which engines exist, which take requests, and how many sequences each one has in flight.

Synchronous on purpose: a decision and the lease it leads to happen in one step of the event loop, so that requests
arriving together never herd on one engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

from eldr.contract import ROLE_DECODE, ROLE_PREFILL
from eldr_router.http.errors import RouterError, no_endpoint
from eldr_router.plan import loads, pairing
from eldr_router.plan.contexts import Context, Contexts
from eldr_router.plan.members import Address
from eldr_router.plan.shares import Shares
from eldr_router.plan.spec import EndpointSpec
from eldr_router.plan.split import Report
from eldr_router.state.endpoint import Endpoint

_LACK_SECONDS = 2.0
"""So long a refused request counts as demand, when routers give each other room."""
_TOKENS_SECONDS = 30.0
"""So long the tokens of a router that fell silent count: it may be gone, and what engines hold is heard from them."""


class Registry:
    """Engines of both roles.

    Parameters
    ----------
    clock : callable
        Monotonic seconds.
    shares : Shares, optional
        What this router may have of each engine; without it, everything.

    Attributes
    ----------
    queued : int
        Sequences of requests that wait to be admitted.
    on_room : callable
        Called where decode engines may have room that they had not.
    contexts : Contexts
        What requests are expected to hold of KV caches.
    """

    def __init__(self, clock: Callable[[], float], shares: Shares | None = None) -> None:
        self._clock = clock
        if shares is None:
            shares = Shares("")
            shares.set_addresses(())
        self.shares = shares
        self.contexts = Contexts()
        self._endpoints: dict[str, dict[tuple[str, str, int], Endpoint]] = {ROLE_PREFILL: {}, ROLE_DECODE: {}}
        self._lacked: tuple[float, int] = (0.0, 0)
        self._draining: list[Endpoint] = []
        self._undecided = self.queued = 0
        self.on_room: Callable[[], None] = lambda: None
        self._turns = {ROLE_PREFILL: 0, ROLE_DECODE: 0}
        self._keys: dict[str, set[str]] = {ROLE_PREFILL: set(), ROLE_DECODE: set()}
        self._are_mixed = False
        self._groups = 0

    def __repr__(self) -> str:
        loads = {role: {e.name: e.in_flight for e in self.endpoints(role)} for role in self._endpoints}
        return f"<Registry {loads} undecided={self._undecided}>"

    def replace(self, role: str, specs: Iterable[EndpointSpec]) -> None:
        """Set the engines of a role; those that stay keep their load and health, whatever slot they have now."""
        old = self._endpoints[role]
        new: dict[tuple[str, str, int], Endpoint] = {}
        for spec in specs:
            key = spec.name, spec.host, spec.port
            new[key] = old.get(key) or Endpoint(spec, self._room)
            new[key].spec = spec
        self._draining += [endpoint for key, endpoint in old.items() if key not in new]
        self._draining = [endpoint for endpoint in self._draining if endpoint.in_flight]
        self._endpoints[role] = new
        self._keys[role] = {endpoint.spec.kv for endpoint in new.values()} - {""}
        self._are_mixed = len(set().union(*self._keys.values())) > 1
        self._room()

    def _room(self) -> None:
        self.on_room()

    def endpoints(self, role: str) -> list[Endpoint]:
        """All engines of a role."""
        return list(self._endpoints[role].values())

    def usable(self, role: str, exclude: Collection[Endpoint] = ()) -> list[Endpoint]:
        """Engines that may be sent a request: the healthy ones, or all if every one is ejected."""
        now = self._clock()
        known: Collection[Endpoint] = self._endpoints[role].values()
        if exclude:
            known = [endpoint for endpoint in known if endpoint not in exclude]
        return [endpoint for endpoint in known if endpoint.health.good_from <= now] or list(known)

    def group(
        self,
        limit: int,
        refused: frozenset[Endpoint] = frozenset(),
        broken: frozenset[Endpoint] = frozenset(),
    ) -> pairing.Group | None:
        """Return whose engines a request is to go to, while some may not exchange KV with others; None if all may.

        Parameters
        ----------
        refused, broken : frozenset of Endpoint
            Engines that took no connection, and that failed the request: others are preferred.
        """
        if not self._are_mixed:  # nearly always
            return None
        prefill = self.usable(ROLE_PREFILL, refused | broken) or self.usable(ROLE_PREFILL, refused)
        decode = self.usable(ROLE_DECODE, broken) or self.usable(ROLE_DECODE)
        decode = self.with_room(decode, limit) or decode
        if refused or broken:  # rather a result from elsewhere than a decode engine that does it all
            keys = [each.spec.kv for each in prefill]
            paired = [each for each in decode if any(pairing.alike(each.spec.kv, key) for key in keys)]
            decode = paired or decode
        self._groups += 1
        return pairing.lightest(self._loads(prefill), self._loads(decode), self._groups)

    def _loads(self, endpoints: list[Endpoint]) -> list[pairing.Load]:
        totals = self.totals(endpoints)
        return [pairing.Load(each.spec.kv, total) for each, total in zip(endpoints, totals, strict=True)]

    def unlike(self, role: str, key: str) -> frozenset[Endpoint]:
        """Return the engines of a role that may not exchange KV with those of a key."""
        if not key or self._keys[role] <= {key}:  # nearly always
            return frozenset()
        return frozenset(
            each for each in self._endpoints[role].values() if not pairing.alike(each.spec.kv, key)
        )

    def is_healthy(self, endpoint: Endpoint) -> bool:
        """Tell whether an engine is not ejected at the moment."""
        return endpoint.health.is_good(self._clock())

    def turn(self, role: str) -> int:
        """Return a number that grows by one with every choice of a role; it rotates ties."""
        self._turns[role] += 1  # per role: with one for both, two engines would never take turns
        return self._turns[role]

    def turns(self, role: str) -> int:
        """Return the last number of :meth:`turn`."""
        return self._turns[role]

    def totals(self, endpoints: Sequence[Endpoint]) -> list[int]:
        """Return the sequences in flight per engine of one role, over all routers, to rank them by.

        Those of a router that fell silent count everywhere alike, see :func:`eldr_router.plan.loads.totals`.
        """
        own = [endpoint.in_flight for endpoint in endpoints]
        if not self.shares.peers or not endpoints:
            return own
        is_prefill = endpoints[0].spec.role == ROLE_PREFILL
        return self._over_all(
            own, endpoints, lambda report: report.prefill if is_prefill else report.in_flight
        )

    def held(self, endpoints: Sequence[Endpoint]) -> list[int]:
        """Return the tokens of KV that sequences are expected to hold on decode engines, over all routers, as :meth:`totals`."""
        own = [endpoint.tokens for endpoint in endpoints]
        if not self.shares.peers or not endpoints:
            return own
        return self._over_all(own, endpoints, lambda report: report.tokens, within=_TOKENS_SECONDS)

    def known(self, endpoint: Endpoint) -> int:
        """Return the tokens of KV that are expected on an engine by those that know: this router, and those heard lately."""
        fresh, _ = self.shares.told(self._clock())
        return endpoint.tokens + sum(report.tokens.get(endpoint.name, 0) for report in fresh)

    def _over_all(
        self,
        own: list[int],
        endpoints: Sequence[Endpoint],
        counts: Callable[[Report], loads.Counts],
        *,
        within: float = math.inf,
    ) -> list[int]:
        role = endpoints[0].spec.role
        told = self.shares.told(self._clock(), within=within)
        fresh, silent = ([counts(report) for report in reports] for reports in told)
        pool = [endpoint.name for endpoint in self._endpoints[role].values()] if silent else []
        return loads.totals(own, [endpoint.name for endpoint in endpoints], fresh, silent, pool)

    def bound(self, endpoint: Endpoint, limit: int) -> int:
        """Return how many sequences this router may have on an engine, of a limit over all routers."""
        if self.shares.alone:
            return limit
        self.shares.awake(self._clock())
        return min(limit, self.shares.bound(endpoint.name))

    def with_room(self, endpoints: Iterable[Endpoint], limit: int) -> list[Endpoint]:
        """Return the engines on which this router may have a request more, however many sequences it runs."""
        if self.shares.alone:  # nearly always; each engine's bound is the limit then
            return [endpoint for endpoint in endpoints if endpoint.in_flight < limit]
        return [e for e in endpoints if e.in_flight < self.bound(e, limit)]

    def fitting(self, endpoints: list[Endpoint], context: Context) -> tuple[list[Endpoint], list[int]]:
        """Return the engines whose KV caches have room for a request, and what each of them holds; RouterError as of :meth:`Contexts.room`."""
        caches = [endpoint.cache for endpoint in endpoints]
        if caches.count(None) == len(caches):  # nobody tells: all may have it
            return endpoints, []
        held = self.held(endpoints)
        if self.contexts.all_have_room(context, caches, held):
            return endpoints, held
        names = [endpoint.name for endpoint in endpoints]
        loads = self.totals(endpoints)
        others = [endpoint.cache for endpoint in self._endpoints[ROLE_DECODE].values()]
        room = self.contexts.room(context, names, caches, held, loads, now=self._clock(), others=others)
        return [endpoints[at] for at in room], [held[at] for at in room]

    def has_share(self, limit: int, *, everywhere: bool) -> bool:
        """Tell whether this router may serve: it has a place on some decode engine, or on each one.

        With fewer places than routers, some have none on some engine, and that is enough.
        """
        if not self.shares.begun:
            return False
        bounds = [self.bound(endpoint, limit) for endpoint in self._endpoints[ROLE_DECODE].values()]
        enough = all if everywhere and limit >= len(self.shares.view.members) else any
        return not bounds or enough(bound > 0 for bound in bounds)

    def pass_time(self) -> None:
        """Let routers that fell silent lapse, where that is safe."""
        told = {endpoint.keeps_deadlines for endpoint in self._endpoints[ROLE_DECODE].values()}
        deadlines = False if False in told else True if told == {True} else None
        self.shares.pass_time(self._clock(), deadlines=deadlines)

    def peer_ages(self) -> dict[Address, float]:
        """Return the seconds since each other router was heard, of those that ever were."""
        now = self._clock()
        return {
            address: now - peer.heard for address, peer in self.shares.peers.items() if peer.heard is not None
        }

    def counts(self, role: str = ROLE_DECODE) -> dict[str, int]:
        """Own sequences in flight by engine name, engines that are going included."""
        counts: dict[str, int] = {}
        self._draining = [endpoint for endpoint in self._draining if endpoint.in_flight]
        for endpoint in (*self._endpoints[role].values(), *self._draining):
            if endpoint.spec.role == role:
                counts[endpoint.name] = counts.get(endpoint.name, 0) + endpoint.in_flight
        return counts

    def tokens(self) -> dict[str, int]:
        """Tokens of KV by engine name that own sequences are expected to hold; of engines with any."""
        return {e.name: e.tokens for e in self._endpoints[ROLE_DECODE].values() if e.tokens}

    def admit(self, limit: int, sequences: int = 1) -> Admission:
        """Reserve room on decode engines before a prefill costs anything; RouterError 503 if none is known, 429 if this router has no room."""
        admission = self.reserve(limit, sequences)
        if admission is not None:
            return admission
        decode = self.usable(ROLE_DECODE)
        if not decode:
            raise no_endpoint(ROLE_DECODE)
        self.fitting(decode, Context(0, 0))  # it says if KV caches are what lacks
        raise self.full(limit, sequences)

    def reserve(self, limit: int, sequences: int = 1) -> Admission | None:
        """Reserve a place on some decode engine, None where there is none; a request of several sequences counts all of them."""
        try:
            decode, _ = self.fitting(self.usable(ROLE_DECODE), Context(0, 0))
        except RouterError:
            return None
        wanted = self._undecided + 1
        for endpoint in decode:
            wanted -= max(0, self.bound(endpoint, limit) - endpoint.in_flight)
            if wanted <= 0:
                return Admission(self, sequences)
        return None

    def expects_room(self, limit: int) -> bool:
        """Tell whether routers are about to give this one room that it lacks: they split the limit anew, or others have more than they use."""
        now, is_alone = self._clock(), len(self.shares.view.members) == 1
        if self.shares.is_stuck(now) or (is_alone and not self.shares.awaited):
            return False
        try:
            decode, _ = self.fitting(self.usable(ROLE_DECODE), Context(0, 0))
        except RouterError:
            return False  # what lacks is KV, which no router can give
        fresh, silent = self.shares.told(now)
        promised = self._undecided + self.queued + sum(report.waiting for report in fresh)
        most = limit - len(fresh)  # nobody gives its last place
        kept = [self.shares.kept(endpoint.name, silent) for endpoint in decode]
        totals = self.totals(decode)
        room = [max(0, most - total - lost) for total, lost in zip(totals, kept, strict=True)]
        return sum(room) > promised

    def full(self, limit: int, sequences: int, *, keep: bool = True) -> RouterError:
        """Return the 429 for a request that finds no room, and with ``keep`` remember the demand."""
        now = self._clock()
        since, lacked = self._lacked
        fresh = now - since < _LACK_SECONDS
        if keep:
            self._lacked = (since, lacked + sequences) if fresh else (now, sequences)
        routers, awaited = len(self.shares.view.members), self.shares.awaited
        if awaited:
            why = f"this router waits for {', '.join(awaited)} to confirm its share of max_in_flight={limit}"
        elif routers > 1:
            why = f"this router has used its share of max_in_flight={limit}, which {routers} routers split"
        else:
            why = f"every decode engine has {limit} sequences in flight (max_in_flight)"
        return RouterError(429, f"{why}; retry later", "overloaded", retry_after=1)

    @property
    def waiting(self) -> int:
        """Sequences of this router without an engine: those admitted, those that wait to be, and those refused lately."""
        since, lacked = self._lacked
        return self._undecided + self.queued + (lacked if self._clock() - since < _LACK_SECONDS else 0)

    @property
    def is_busy(self) -> bool:
        """Whether this router or another one has decode sequences, or waits for some."""
        if self.waiting or any(self.counts().values()):
            return True
        fresh, _ = self.shares.told(self._clock())
        return any(report.waiting or any(report.in_flight.values()) for report in fresh)

    def report(self, asker: str) -> Report:
        """Return what another router should know of this one."""
        return self.shares.report(asker, self.counts(), self.waiting)._replace(
            prefill=self.counts(ROLE_PREFILL), tokens=self.tokens()
        )

    def give(self, *, leaving: bool = False) -> None:
        """Give room that is spare here to routers that lack it; all of it where this router takes no requests any more."""
        waiting = self._undecided if leaving else self.waiting
        self.shares.give(self.counts(), waiting, admitted=self._undecided, leaving=leaving)


class Admission:
    """A place reserved on some decode engine; ``settle`` when one is chosen, or none is wanted any longer."""

    __slots__ = ("_open", "_registry", "sequences")

    def __init__(self, registry: Registry, sequences: int) -> None:
        self._registry = registry
        self.sequences = sequences
        self._open = False
        self.reopen()

    def reopen(self) -> None:
        """Wait for a decode engine (again)."""
        if not self._open:
            self._open = True
            self._registry._undecided += self.sequences  # noqa: SLF001 - one unit with the registry

    def settle(self) -> None:
        """Stop waiting: a lease counts the request from now on, or it is over."""
        if self._open:
            self._open = False
            self._registry._undecided -= self.sequences  # noqa: SLF001 - one unit with the registry
            self._registry.on_room()
