"""Engines: which exist, which take requests, what is in flight.

Synchronous on purpose: a decision and the occupancy it leads to change in one step of the event loop, so that requests
arriving together never herd on one engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from eldr.addresses import Address
from eldr.contract import ROLE_DECODE, ROLE_PREFILL
from eldr_router.engines import pairing
from eldr_router.engines.endpoint import Endpoint
from eldr_router.engines.kv_room import Answers, KvCache, KvDemand, KvRoom
from eldr_router.engines.spec import EndpointSpec
from eldr_router.http.errors import RouterError, no_endpoint

_RECENT_SECONDS = 2.0
"""Seconds after a request during which a router counts as busy."""


@dataclass(slots=True)
class Peer:
    """Another router: its last answer, and its problem, if any."""

    answered_at: float | None = None
    problem: str | None = None


class Registry:
    """Engines of both roles.

    Parameters
    ----------
    clock : callable
        Monotonic seconds.

    Attributes
    ----------
    peers : dict of Address to Peer
        The other routers, by admin address.
    turns : dict of str to int
        The last value that :meth:`turn` returned, by role.
    on_capacity_freed : callable
        Called whenever a decode engine may have got room.
    kv_room : KvRoom
        What requests are expected to hold in KV caches.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.peers: dict[Address, Peer] = {}
        self.kv_room = KvRoom()
        self._endpoints: dict[str, dict[tuple[str, str, int], Endpoint]] = {ROLE_PREFILL: {}, ROLE_DECODE: {}}
        self._reserved = 0
        self._last_admission_at = -_RECENT_SECONDS
        self.on_capacity_freed: Callable[[], None] = lambda: None
        self.turns = {ROLE_PREFILL: 0, ROLE_DECODE: 0}
        self._keys: dict[str, set[str]] = {ROLE_PREFILL: set(), ROLE_DECODE: set()}
        self._are_mixed = False
        self._groups = 0

    def replace(self, role: str, specs: Iterable[EndpointSpec]) -> None:
        """Set the engines of a role.

        An engine that stays keeps its load and health, even if its slot changes.
        """
        old = self._endpoints[role]
        new: dict[tuple[str, str, int], Endpoint] = {}
        for spec in specs:
            key = spec.name, spec.host, spec.port
            new[key] = old.get(key) or Endpoint(spec, self._capacity_freed)
            new[key].spec = spec
        self._endpoints[role] = new
        self._keys[role] = {endpoint.spec.kv for endpoint in new.values()} - {""}
        self._are_mixed = len(set().union(*self._keys.values())) > 1
        self._capacity_freed()

    def set_peers(self, addresses: Iterable[Address]) -> None:
        """Set the admin addresses of the other routers."""
        self.peers = {address: self.peers.get(address) or Peer() for address in addresses}
        self._capacity_freed()

    def _capacity_freed(self) -> None:
        self.on_capacity_freed()

    def endpoints(self, role: str) -> list[Endpoint]:
        """All engines of a role."""
        return list(self._endpoints[role].values())

    def healthy_or_all(
        self, role: str, exclude: Collection[Endpoint] = (), broken: Collection[Endpoint] = ()
    ) -> list[Endpoint]:
        """Return the healthy engines, or all if every one is ejected.

        None of ``exclude``; of ``broken`` only where no other engine is left.
        """
        if broken and (rest := self.healthy_or_all(role, {*exclude, *broken})):
            return rest
        now = self._clock()
        known = [endpoint for endpoint in self._endpoints[role].values() if endpoint not in exclude]
        return [endpoint for endpoint in known if endpoint.health.good_from <= now] or known

    def group(
        self,
        limit: int,
        avoid: Collection[Endpoint] = (),
        broken: Collection[Endpoint] = (),
    ) -> pairing.Group | None:
        """Return the KV-compatible group for a request; None if all are alike.

        Parameters
        ----------
        limit : int
        avoid, broken : collection of Endpoint
            Engines to avoid: they took no connection, or failed this request.
        """
        if not self._are_mixed:  # nearly always
            return None
        prefill = self.healthy_or_all(ROLE_PREFILL, avoid, broken)
        decode = self.healthy_or_all(ROLE_DECODE, (), broken)
        decode = self.with_free_slots(decode, limit) or decode
        if avoid or broken:  # on a retry, prefer decode engines that some prefill engine can serve
            keys = [each.spec.kv for each in prefill]
            paired = [each for each in decode if any(pairing.alike(each.spec.kv, key) for key in keys)]
            decode = paired or decode
        self._groups += 1
        return pairing.lightest(self._loads(prefill), self._loads(decode), self._groups)

    def _loads(self, endpoints: list[Endpoint]) -> list[pairing.Load]:
        return [
            pairing.Load(each.spec.kv, total)
            for each, total in zip(endpoints, self.totals(endpoints), strict=True)
        ]

    def incompatible(self, role: str, key: str) -> frozenset[Endpoint]:
        """Return a role's engines that cannot exchange KV with those of a key."""
        if not key or self._keys[role] <= {key}:  # nearly always
            return frozenset()
        return frozenset(
            each for each in self._endpoints[role].values() if not pairing.alike(each.spec.kv, key)
        )

    def is_healthy(self, endpoint: Endpoint) -> bool:
        """Return whether an engine is not ejected at the moment."""
        return endpoint.health.is_good(self._clock())

    def turn(self, role: str) -> int:
        """Count up and return the next turn, which rotates ties."""
        self.turns[role] += 1  # per role: two engines would not alternate where a request takes two turns
        return self.turns[role]

    def totals(self, endpoints: Iterable[Endpoint]) -> list[int]:
        """Return the sequences in flight of engines, whoever sent them.

        If an engine does not report, each other router is assumed to send it as many as this one.
        """
        return [endpoint.in_flight + self._elsewhere(endpoint) for endpoint in endpoints]

    def _elsewhere(self, endpoint: Endpoint) -> int:
        return endpoint.in_flight * len(self.peers) if endpoint.load is None else endpoint.in_flight_elsewhere

    def expected_kv_tokens(self, endpoint: Endpoint) -> int:
        """Return the tokens of KV that a decode engine is expected to hold.

        Sequences of other routers count with this router's mean.
        """
        return endpoint.tokens + round(self._elsewhere(endpoint) * self.kv_room.mean_size)

    def concurrency_limit(self, endpoint: Endpoint, limit: int) -> int:
        """Return the limit of sequences in flight on an engine.

        An engine that reports its load enforces the limit. For any other, each router takes an equal share, so that all together
        stay within it.
        """
        if endpoint.load is None:
            return max(1, limit // (1 + len(self.peers)))
        return min(limit, endpoint.load.limit)

    def with_free_slots(self, endpoints: Iterable[Endpoint], limit: int) -> list[Endpoint]:
        """Return the engines that may be sent another request."""
        return [
            e
            for e in endpoints
            if not e.is_full and e.in_flight + e.in_flight_elsewhere < self.concurrency_limit(e, limit)
        ]

    def has_free_slot(self, limit: int) -> bool:
        """Return whether a decode engine may be sent a request more."""
        return bool(self.with_free_slots(self.healthy_or_all(ROLE_DECODE), limit))

    def with_kv_room(self, endpoints: list[Endpoint], demand: KvDemand) -> tuple[list[Endpoint], list[int]]:
        """Return the engines whose KV caches have room, and what each holds.

        RouterError as of :meth:`KvRoom.room`.
        """
        caches = [endpoint.cache for endpoint in endpoints]
        if caches.count(None) == len(caches):  # no cache is known: all engines may have room
            return endpoints, []
        held = list(map(self.expected_kv_tokens, endpoints))
        all_caches = [endpoint.cache for endpoint in self._endpoints[ROLE_DECODE].values()]
        room = self.kv_room.room(demand, caches, held, all_caches)
        if len(room) == len(endpoints):
            return endpoints, held
        return [endpoints[at] for at in room], [held[at] for at in room]

    def observe(self, endpoint: Endpoint, cache: KvCache | None, answers: Answers | None) -> None:
        """Observe what a decode engine reports of its KV cache and of its answers."""
        endpoint.cache = None if cache is None else cache._replace(expected=self.expected_kv_tokens(endpoint))
        self.kv_room.observe(endpoint.name, answers, endpoint.cache)

    def admit(self, limit: int, sequences: int = 1) -> Admission:
        """Reserve room on decode engines before a prefill costs anything.

        RouterError 503 if none is known, 429 if none has room.
        """
        admission = self.reserve(limit, sequences)
        if admission is not None:
            return admission
        decode = self.healthy_or_all(ROLE_DECODE)
        if not decode:
            raise no_endpoint(ROLE_DECODE)
        self.with_kv_room(decode, KvDemand(0, 0))  # raises the error of KV if caches are full
        raise self.full_error(limit)

    def reserve(self, limit: int, sequences: int = 1) -> Admission | None:
        """Reserve room on some decode engine; None where there is none.

        One free place is enough for any request; once reserved, all its sequences count.
        """
        self._last_admission_at = self._clock()
        try:
            decode, _ = self.with_kv_room(self.healthy_or_all(ROLE_DECODE), KvDemand(0, 0))
        except RouterError:
            return None
        wanted = self._reserved + 1
        for endpoint in self.with_free_slots(decode, limit):
            wanted -= (
                self.concurrency_limit(endpoint, limit) - endpoint.in_flight - endpoint.in_flight_elsewhere
            )
            if wanted <= 0:
                return Admission(self, sequences)
        return None

    def full_error(self, limit: int) -> RouterError:
        """Return the 429 for a request that finds no room."""
        blind = [e.name for e in self._endpoints[ROLE_DECODE].values() if e.load is None]
        why = f"every decode engine is full (max_in_flight={limit})"
        if blind and self.peers:
            why += f"; {', '.join(blind[:3])}: no load is reported, so that {1 + len(self.peers)} routers split the limit evenly"
        return RouterError(429, f"{why}; retry later", "overloaded", retry_after=1)

    @property
    def has_recent_traffic(self) -> bool:
        """Whether a request came lately, or is in flight."""
        if self._reserved or self._clock() - self._last_admission_at < _RECENT_SECONDS:
            return True
        return any(e.in_flight for engines in self._endpoints.values() for e in engines.values())


class Admission:
    """Sequences reserved in the pool, on no particular engine yet.

    Call ``release`` once an engine is chosen, or the request is over.
    """

    __slots__ = ("_open", "_registry", "sequences")

    def __init__(self, registry: Registry, sequences: int) -> None:
        self._registry = registry
        self.sequences = sequences
        self._open = False
        self.reopen()

    def reopen(self) -> None:
        """Count the reservation (again)."""
        if not self._open:
            self._open = True
            self._registry._reserved += self.sequences  # noqa: SLF001 - one unit with the registry

    def release(self) -> None:
        """Stop counting: the request occupies an engine, or is over."""
        if self._open:
            self._open = False
            self._registry._reserved -= self.sequences  # noqa: SLF001 - one unit with the registry
            self._registry.on_capacity_freed()
