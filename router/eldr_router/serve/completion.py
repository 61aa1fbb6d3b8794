"""A request's way: prefill, placement, decode; and what happens when a step fails.

The rule that everything here serves: **a prefill result is used once.** A second decode engine may get the same result
only if the first one refused the connection. After anything else the prefill engine may have freed the blocks, and a
second pull would return wrong tokens without an error, so the prompt is prefilled again.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field

from eldr.contract import ROLE_PREFILL, base_id, is_sampled, request_id
from eldr_router.http.errors import RouterError, failed
from eldr_router.http.framing import CloseBody
from eldr_router.http.head import Headers
from eldr_router.http.requests import Request
from eldr_router.net.connection import BrokenError, ConnectError
from eldr_router.net.inbound import Client
from eldr_router.net.pool import Exchange
from eldr_router.ops.joiner import Observation
from eldr_router.plan import affinity, bodies, headers
from eldr_router.plan.health import pull_failed, pulled
from eldr_router.plan.placement import WHOLE, Placement, Signature
from eldr_router.plan.table import Table
from eldr_router.serve.legs import AnsweredError, Prefilled, RetryError, first_bytes, read_prefilled
from eldr_router.serve.services import Services
from eldr_router.state.registry import Admission, Endpoint, Lease

_MAX_ANSWER = 256 << 20


@dataclass(slots=True)
class Flow:
    """One completion request on its way."""

    services: Services
    request: Request
    client: Client
    started: float
    table: Table
    sequence: int
    body: bodies.Body = field(init=False)
    headers: Headers = field(init=False)
    sequences: int = 1
    dispatches: int = 0
    failures: int = 0
    prefill_seconds: float = 0.0
    first_byte_seconds: float = 0.0
    broken: set[Endpoint] = field(default_factory=set)
    outcome: str = "disconnected"

    @classmethod
    async def run(cls, services: Services, request: Request, client: Client) -> None:
        """Serve one request."""
        services.sequence += 1
        flow = cls(services, request, client, services.clock(), services.table, services.sequence)
        try:
            await flow._serve()
        except RouterError as error:
            flow.outcome = error.code
            client.respond_error(error, [flow._request_id()])
        except Exception:
            flow.outcome = "internal"
            raise
        finally:
            services.metrics.requests.labels(flow.outcome).inc()

    async def _serve(self) -> None:
        services = self.services
        self.body = bodies.parse(self.request.body)
        self.headers = headers.to_engine(self.request)
        limit = self.table.max_in_flight
        whole = bodies.unsplittable(self.body, self.request.path)
        if whole is not None:
            # one that wants more than an engine may have gets an engine of its own; it has no KV to lose while it waits there
            self.sequences = min(bodies.sequences(self.body, self.request.path), limit)
        if whole is None and not services.registry.endpoints(ROLE_PREFILL):
            whole = "no_prefill"
        with services.registry.admit(limit, self.sequences) as admission:
            while True:
                try:
                    await self._attempt(whole, admission)
                except RetryError as error:
                    if error.cause == "expired":
                        services.metrics.expired.inc()
                    self._spend(error)
                    admission.reopen()
                except AnsweredError as answer:
                    self._pass_on(answer)
                    return
                else:
                    return

    async def _attempt(self, whole: str | None, admission: Admission) -> None:
        prefilled = None if whole else await self._prefill()
        if prefilled is None or prefilled.kv is None:
            self.services.metrics.whole.labels(whole or ("no_kv" if prefilled else "prefill_refused")).inc()
        await self._decode(prefilled, admission)

    def _spend(self, error: RetryError) -> None:
        self.failures += 1
        if self.failures >= self.services.settings.attempts:
            raise failed(f"gave up after {self.failures} attempts; the last one: {error}") from None

    # the first leg

    async def _prefill(self) -> Prefilled | None:
        """Return a result, or None if no prefill engine accepts connections."""
        registry, metrics = self.services.registry, self.services.metrics
        body = bodies.prefill_body(self.body, self.request.path)
        prefix = bodies.prefix(self.body, self.request.path)
        refused: set[Endpoint] = set()
        while True:
            usable = registry.usable(ROLE_PREFILL, refused | self.broken) or registry.usable(
                ROLE_PREFILL, refused
            )
            if not usable:
                return None
            loads = [endpoint.in_flight for endpoint in usable]
            seeds = [endpoint.seed for endpoint in usable]
            at = affinity.choose(prefix, seeds, loads, registry.turn(ROLE_PREFILL))
            endpoint = usable[at]
            with Lease(endpoint):
                try:
                    return await self._prefill_on(endpoint, body)
                except ConnectError:
                    self._refused(endpoint, "prefill")
                    refused.add(endpoint)
                except RetryError as error:
                    metrics.retries.labels("prefill", error.cause).inc()
                    if error.unavailable:
                        # as if it had refused the connection: nothing was tried, nothing is spent
                        endpoint.health.eject(self.services.clock())
                        refused.add(endpoint)
                        continue
                    if error.cause == "status":
                        endpoint.health.failed(self.services.clock())
                    self._spend(error)
                    self.broken.add(endpoint)

    async def _prefill_on(self, endpoint: Endpoint, body: bytes) -> Prefilled:
        services = self.services
        try:
            with await services.pool.open(endpoint.spec.host, endpoint.spec.port) as exchange:
                head = await exchange.send(self._wire(endpoint, body), services.settings.prefill_timeout)
                answer = await exchange.collect(head.body, _MAX_ANSWER)
        except BrokenError as error:
            raise RetryError(error.cause, f"prefill engine {endpoint.name}: {error}") from None
        prefilled = read_prefilled(endpoint, head, answer, services.clock())
        endpoint.health.answered()
        self.prefill_seconds = prefilled.at - self.started
        services.metrics.prefill.observe(self.prefill_seconds)
        services.metrics.signatures.labels(prefilled.signature.quality).inc()
        return prefilled

    # the second leg

    async def _decode(self, prefilled: Prefilled | None, admission: Admission) -> None:
        services = self.services
        body = bodies.decode_body(self.body, prefilled.kv if prefilled else None)
        signature = prefilled.signature if prefilled else WHOLE
        refused: set[Endpoint] = set()
        while True:
            placement = self._place(signature, refused)
            with placement.lease:
                admission.settle()
                endpoint = placement.endpoint
                try:
                    exchange = await services.pool.open(endpoint.spec.host, endpoint.spec.port)
                except ConnectError as error:
                    self._refused(endpoint, "decode")
                    refused.add(endpoint)
                    if not services.registry.usable(endpoint.spec.role, refused):
                        raise failed(f"no decode engine accepts connections; the last one: {error}") from None
                    continue
                with exchange:
                    await self._stream(exchange, placement, body, prefilled)
                self._observe(placement, signature)
                return

    def _place(self, signature: Signature, refused: set[Endpoint]) -> Placement:
        """Place the request, away from engines that failed it before if others have room."""
        place = functools.partial(self.services.placer.place, sequences=self.sequences)
        if self.broken:
            with contextlib.suppress(RouterError):
                return place(self.table, signature, refused | self.broken)
        return place(self.table, signature, refused)

    def _usable(self, prefilled: Prefilled | None) -> float | None:
        """Return the seconds that are left of a prefill result's lease, None if there is none to be pulled."""
        if prefilled is None or prefilled.kv is None:
            return None
        age = self.services.clock() - prefilled.at
        if age > self.table.usable_seconds:
            raise RetryError("expired", f"a prefill result was {age:.1f} s old, its lease is nearly over")
        return self.table.usable_seconds - age

    async def _stream(
        self, exchange: Exchange, placement: Placement, body: bytes, prefilled: Prefilled | None
    ) -> None:
        services, endpoint = self.services, placement.endpoint
        usable = self._usable(prefilled)
        try:
            head, relay = await first_bytes(
                exchange,
                self._wire(endpoint, body),
                services.settings.decode_idle_timeout,
                dechunk=self.request.http10,
                usable=usable,
            )
        except (BrokenError, RetryError) as error:
            services.metrics.retries.labels("decode", error.cause).inc()
            self._blame(endpoint, prefilled, error)
            raise RetryError(error.cause, f"decode engine {endpoint.name}: {error}") from None
        self._praise(endpoint, prefilled, head.status)
        self._count(placement)
        client = self.client
        client.on_pause, client.on_resume = exchange.pause, exchange.resume
        if not client.can_write.is_set():
            exchange.pause()
        self.first_byte_seconds = services.clock() - self.started
        services.metrics.first_byte.observe(self.first_byte_seconds)
        write = client.begin(close=isinstance(head.body, CloseBody))
        chunked = head.body.splittable and not self.request.http10
        returned = headers.to_client(head, whole=False, chunked=chunked, endpoint=endpoint.name)
        relay.start(write, client.head(head.status, [*returned, self._request_id()]))
        broken = await relay.waiter
        services.metrics.total.observe(services.clock() - self.started)
        if broken is None:
            self.outcome = "ok" if head.status < 400 else "engine_error"
            client.end()
            return
        self.outcome = "broken_stream"
        services.metrics.broken_streams.inc()
        epitaph = relay.epitaph(f"the decode engine failed: {broken}") if head.is_event_stream else None
        if epitaph is None:
            client.abort()
            return
        write(epitaph)
        client.end()
        client.close()

    def _praise(self, decode: Endpoint, prefilled: Prefilled | None, status: int) -> None:
        if status == 200 and prefilled is not None and prefilled.kv is not None:
            pulled(decode.health, prefilled.source.health)
        else:
            decode.health.answered()

    def _blame(self, decode: Endpoint, prefilled: Prefilled | None, error: BrokenError | RetryError) -> None:
        """Remember who may have been at fault: for the next attempt, and where it is plain for other requests."""
        self.broken.add(decode)
        now = self.services.clock()
        if isinstance(error, RetryError) and error.unavailable:
            decode.health.eject(now)
        elif error.cause in ("status", "error_event"):
            if prefilled is None or prefilled.kv is None:
                decode.health.failed(now)
            else:
                pull_failed(decode.health, prefilled.source.health, now)
                self.broken.add(prefilled.source)

    # small things

    def _wire(self, endpoint: Endpoint, body: bytes) -> bytes:
        self.dispatches += 1
        return headers.post(self.request.path, endpoint.spec, self._upstream_id(), self.headers, body)

    def _upstream_id(self) -> str:
        return request_id(self.services.router, self.sequence, self.dispatches)

    def _request_id(self) -> tuple[bytes, bytes]:
        return headers.returned_id(self.request, base_id(self._upstream_id()))

    def _pass_on(self, answer: AnsweredError) -> None:
        self.outcome = "engine_error"
        returned = headers.to_client(answer.head, whole=True, chunked=False)
        self.client.respond(answer.head.status, [*returned, self._request_id()], answer.body)

    def _refused(self, endpoint: Endpoint, leg: str) -> None:
        endpoint.health.eject(self.services.clock())
        self.services.metrics.retries.labels(leg, "refused").inc()

    def _count(self, placement: Placement) -> None:
        metrics = self.services.metrics
        metrics.placements.labels(placement.policy, placement.reason).inc()
        metrics.placed.labels(placement.endpoint.name).inc()
        metrics.band.observe(placement.candidates)
        if placement.similarity is not None:
            metrics.similarity.observe(placement.similarity)

    def _observe(self, placement: Placement, signature: Signature) -> None:
        if signature.counts is None or self.outcome != "ok" or not headers.is_logged(self.request):
            return
        if placement.endpoint in self.broken:
            return  # it may keep a record of the attempt that failed as well, and both have this request's id
        base = base_id(self._upstream_id())
        if not is_sampled(base, self.table.intent.sample_rate):
            return
        self.services.joiner.observe(
            Observation(
                request_id=base,
                model=self.table.intent.model,
                counts=signature.counts,
                placement=placement,
                prefill_seconds=self.prefill_seconds,
                first_byte_seconds=self.first_byte_seconds,
                total_seconds=self.services.clock() - self.started,
            )
        )
