"""The client port: which path goes which way."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from eldr.contract import PATH_HEALTH, PATH_READY, ROLE_DECODE, ROLE_PREFILL
from eldr_router.http.errors import RouterError, failed, no_endpoint
from eldr_router.http.head import end_to_end
from eldr_router.http.requests import Request
from eldr_router.net.connection import BrokenError, ConnectError
from eldr_router.net.inbound import JSON, Client
from eldr_router.plan import bodies
from eldr_router.serve.completion import Flow
from eldr_router.serve.services import Services

_FROM_ANY_ENGINE = {"/v1/models": "GET", "/version": "GET", "/tokenize": "POST", "/detokenize": "POST"}
_PATIENCE = 30.0
_MAX_ANSWER = 64 << 20
_DROP = frozenset((b"host", b"content-length", b"expect", b"accept-encoding"))


class Surface:
    """Answers clients.

    Parameters
    ----------
    services : Services
    is_ready : callable
        Whether new requests should come here.
    """

    def __init__(self, services: Services, is_ready: Callable[[], bool]) -> None:
        self._services = services
        self._is_ready = is_ready

    async def handle(self, request: Request, client: Client) -> None:
        """Answer one request."""
        path = request.path
        if path in (bodies.COMPLETIONS, bodies.CHAT):
            self._allow(request, "POST")
            await Flow.run(self._services, request, client)
        elif path == PATH_HEALTH:
            self._allow(request, "GET")
            client.respond(200, [JSON], b'{"status":"ok"}')
        elif path == PATH_READY:
            self._allow(request, "GET")
            ready = self._is_ready()
            client.respond(200 if ready else 503, [JSON], b'{"ready":%b}' % str(ready).lower().encode())
        elif path in _FROM_ANY_ENGINE:
            self._allow(request, _FROM_ANY_ENGINE[path])
            await self._from_any_engine(request, client)
        else:
            raise RouterError(404, f"{request.method} {path} is not served here", "not_found")

    @staticmethod
    def _allow(request: Request, method: str) -> None:
        if request.method != method and (method != "GET" or request.method != "HEAD"):
            raise RouterError(
                HTTPStatus.METHOD_NOT_ALLOWED, f"{request.path} takes {method}", "method_not_allowed"
            )

    async def _from_any_engine(self, request: Request, client: Client) -> None:
        registry, pool = self._services.registry, self._services.pool
        usable = registry.usable(ROLE_PREFILL) + registry.usable(ROLE_DECODE)
        if not usable:
            raise no_endpoint(ROLE_DECODE)
        headers = b"".join(b"%b: %b\r\n" % header for header in end_to_end(request.headers, _DROP))
        method = _FROM_ANY_ENGINE[request.path]
        problem: Exception | None = None
        for endpoint in usable[: self._services.settings.attempts]:
            spec = endpoint.spec
            host = f"{spec.host}:{spec.port}"
            start = (
                f"{method} {request.path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(request.body)}\r\n"
            )
            try:
                with await pool.open(spec.host, spec.port) as exchange:
                    head = await exchange.send(start.encode() + headers + b"\r\n" + request.body, _PATIENCE)
                    body = await exchange.collect(head.body, _MAX_ANSWER)
            except ConnectError as error:
                endpoint.health.eject(self._services.clock())
                problem = error
                continue
            except BrokenError as error:
                problem = error
                continue
            if head.status < 500:
                endpoint.health.answered()
            client.respond(head.status, end_to_end(head.headers, frozenset((b"content-length",))), body)
            return
        raise failed(f"no engine answered {request.path}: {problem}")
