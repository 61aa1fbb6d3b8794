"""The admin port: state, unions, signature log, metrics.

All but metrics need the bearer token.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import orjson

from eldr.addresses import authority
from eldr.contract import (
    HEADER_ADMIN_TOKEN,
    PATH_EXPLAIN,
    PATH_HEALTH,
    PATH_METRICS,
    PATH_SIGLOG,
    PATH_STATE,
    PATH_UNIONS,
    ROLE_DECODE,
    ROLE_PREFILL,
    STATE_VERSION,
)
from eldr_router.admin.explain import explain
from eldr_router.admin.locality import saving_state, step_time_state, unions_state
from eldr_router.engines.registry import Registry
from eldr_router.http.errors import RouterError, check_method
from eldr_router.http.head import JSON
from eldr_router.http.requests import Request
from eldr_router.net.inbound import ClientConnection
from eldr_router.placement import exchange
from eldr_router.placement.placer import Placer
from eldr_router.placement.table import SetRef
from eldr_router.sources.routing import Routing
from eldr_router.telemetry.metrics import CONTENT_TYPE
from eldr_router.telemetry.request import Telemetry

_TOKEN = HEADER_ADMIN_TOKEN.encode()


class Admin:
    """Answers the operator, the fit and the other routers.

    Parameters
    ----------
    registry : Registry
    placer : Placer
    telemetry : Telemetry
    routing : Routing
    is_ready, is_draining : callable
        The process's state.
    token : callable
        Returns the bearer token. Empty: none is asked for (the port is then bound to loopback).
    """

    def __init__(
        self,
        registry: Registry,
        placer: Placer,
        telemetry: Telemetry,
        routing: Routing,
        *,
        is_ready: Callable[[], bool],
        is_draining: Callable[[], bool],
        token: Callable[[], str],
    ) -> None:
        self._registry, self._placer, self._telemetry = registry, placer, telemetry
        self._routing = routing
        self._is_ready = is_ready
        self._is_draining = is_draining
        self._token = token

    def handle(self, request: Request, client: ClientConnection) -> None:
        """Answer one request."""
        wanted = "POST" if request.path == PATH_EXPLAIN else "GET"
        check_method(request.method, wanted, request.path)
        if request.path == PATH_METRICS:
            metrics = self._telemetry.metrics
            metrics.ready.set(float(self._is_ready()))
            client.respond(200, [(b"content-type", CONTENT_TYPE)], metrics.exposition())
            return
        if request.path == PATH_HEALTH:
            client.respond(200, [JSON], b'{"status":"ok"}')
            return
        self._authorize(request)
        if request.path == PATH_STATE:
            client.respond(200, [JSON], orjson.dumps(self.state()))
        elif request.path == PATH_UNIONS:
            client.respond(200, [JSON], orjson.dumps(self._unions(request.query)))
        elif request.path == PATH_EXPLAIN:
            answer = explain(self._registry, self._placer, self._routing.table, request.body)
            client.respond(200, [JSON], orjson.dumps(answer))
        elif request.path == PATH_SIGLOG:
            client.run(self._siglog(request, client))
        else:
            raise RouterError(404, f"{request.path} is not an admin path", "not_found")

    def _authorize(self, request: Request) -> None:
        token = self._token().encode()
        if not token:
            return
        bearer = hmac.compare_digest(request.get(b"authorization") or b"", b"Bearer " + token)
        # both are compared, whatever the first comparison gave: the time reveals nothing
        alone = hmac.compare_digest(request.get(_TOKEN) or b"", token)
        if not bearer and not alone:
            raise RouterError(401, "the admin port needs 'authorization: Bearer <token>'", "unauthorized")

    def _unions(self, query: str) -> dict[str, Any]:
        of, since = exchange.read_question(query)
        locality = self._placer.locality
        name = f"{self._telemetry.router}.{locality.generation}"
        return exchange.write_answer(name, locality.unions, since if of == name else 0, locality.profiles)

    def state(self) -> dict[str, Any]:
        """Return the state object; see :data:`eldr.contract.STATE_VERSION`."""
        registry, telemetry, routing = self._registry, self._telemetry, self._routing
        now, table, locality = telemetry.clock(), routing.table, self._placer.locality
        prefill, decode = registry.endpoints(ROLE_PREFILL), registry.endpoints(ROLE_DECODE)
        return {
            "v": STATE_VERSION,
            "router": telemetry.router,
            "epoch": table.epoch,
            "policy": table.policy_in_effect,
            "ready": self._is_ready(),
            "draining": self._is_draining(),
            "problem": routing.problem,
            "active": _ref(table.active),
            "staged": _ref(routing.staged),
            "refused": [
                {"fit": ref.fit, "digest": ref.digest, "reason": reason} for ref, reason in routing.refused
            ],
            "samples": telemetry.joiner.samples,
            "prefill": [
                {
                    "name": e.name,
                    "url": f"http://{e.spec.authority}",
                    "healthy": registry.is_healthy(e),
                    "in_flight": e.in_flight,
                }
                for e in prefill
            ],
            "decode": [
                {
                    "name": e.name,
                    "url": f"http://{e.spec.authority}",
                    "slot": e.spec.slot,
                    "healthy": registry.is_healthy(e),
                    "in_flight": e.in_flight,
                    "total": total,
                    "bound": registry.concurrency_limit(e, table.max_in_flight),
                    "reports": e.load is not None,
                    "untested": e.untested or None,
                    "counting": e.counting,
                    "kv_tokens": None if e.cache is None else e.cache.tokens,
                    "kv_held": registry.expected_kv_tokens(e),
                }
                for e, total in zip(decode, registry.totals(decode), strict=True)
            ],
            "locality": unions_state(locality, registry),
            "traffic": locality.traffic.state(),
            "saving": saving_state(locality),
            "step_time": step_time_state(locality, registry),
            "peers": [
                {
                    "url": f"http://{authority(*address)}",
                    "age": None if peer.answered_at is None else now - peer.answered_at,
                    "problem": peer.problem,
                }
                for address, peer in registry.peers.items()
            ],
            "counters": telemetry.metrics.totals(),
        }

    async def _siglog(self, request: Request, client: ClientConnection) -> None:
        headers = [(b"content-type", b"application/octet-stream")]
        if not request.http10:
            headers.append((b"transfer-encoding", b"chunked"))
        client.begin(200, headers, close=request.http10)
        if request.method != "HEAD":
            async for data in self._telemetry.joiner.read():
                await client.writable()
                client.write(data if request.http10 else b"%x\r\n%b\r\n" % (len(data), data))
            if not request.http10:
                client.write(b"0\r\n\r\n")
        client.end()


def _ref(ref: SetRef | None) -> dict[str, str] | None:
    return None if ref is None else {"fit": ref.fit, "digest": ref.digest}
