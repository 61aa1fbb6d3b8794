"""The client port: which path goes which way."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from eldr.contract import PATH_HEALTH, PATH_READY, ROLE_DECODE, ROLE_PREFILL
from eldr_router.api.headers import foreign
from eldr_router.api.paths import ANY_ENGINE, APIS
from eldr_router.engines.health import Failure
from eldr_router.flow.completion import Completion
from eldr_router.flow.services import Services
from eldr_router.http.errors import RouterError, check_method, failed, no_endpoint
from eldr_router.http.head import JSON
from eldr_router.http.requests import Request
from eldr_router.net.fetch import Answer, fetch
from eldr_router.net.inbound import ClientConnection
from eldr_router.net.outbound import BrokenError, ConnectError

_MAX_ANSWER = 64 << 20
_DROP = frozenset((b"host", b"content-length", b"expect", b"accept-encoding"))
_LENGTH = frozenset((b"content-length",))


class ClientPort:
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
        self._turn = 0

    def handle(self, request: Request, client: ClientConnection) -> None:
        """Answer one request."""
        path = request.path
        encoding = request.get(b"content-encoding") or b"identity"
        if encoding.lower() != b"identity" and (path in APIS or path in ANY_ENGINE):
            raise RouterError(
                415, f"Content-Encoding: {encoding.decode('latin-1'):.40} is not supported; send the body uncompressed",
                "unsupported_encoding",
            )  # fmt: skip
        if path in APIS:
            check_method(request.method, "POST", path)
            Completion.serve(self._services, request, client)
        elif path == PATH_HEALTH:
            check_method(request.method, "GET", path)
            client.respond(200, [JSON], b'{"status":"ok"}')
        elif path == PATH_READY:
            check_method(request.method, "GET", path)
            ready = self._is_ready()
            client.respond(200 if ready else 503, [JSON], b'{"ready":%b}' % str(ready).lower().encode())
        elif path in ANY_ENGINE:
            check_method(request.method, ANY_ENGINE[path], path)
            client.run(self._from_any_engine(request, client))
        else:
            raise RouterError(404, f"{request.method} {path} is not served here", "not_found")

    async def _from_any_engine(self, request: Request, client: ClientConnection) -> None:
        registry, pool = self._services.registry, self._services.pool
        usable = registry.healthy_or_all(ROLE_PREFILL) + registry.healthy_or_all(ROLE_DECODE)
        if not usable:
            raise no_endpoint(ROLE_DECODE)
        self._turn += 1
        start = self._turn % len(usable)
        usable = usable[start:] + usable[:start]
        headers = foreign(request.headers, _DROP)
        method = ANY_ENGINE[request.path]
        target = f"{request.path}?{request.query}" if request.query else request.path
        failures: list[Failure] = []
        answer: Answer | None = None
        for endpoint in usable[: self._services.settings.attempts]:
            try:
                answer = await fetch(
                    pool, endpoint.address, target, method=method, headers=headers, body=request.body,
                    patience=self._services.settings.prefill_timeout_seconds, limit=_MAX_ANSWER,
                )  # fmt: skip
            except (ConnectError, BrokenError) as error:
                if isinstance(error, ConnectError) and error.own:
                    raise RouterError(503, f"{error}; retry later", "overloaded", retry_after=2) from None
                # these answers say nothing about completions: engines are judged by those, and asked whether they live
                self._services.probes.ask(endpoint)
                failures.append(Failure("any", endpoint, getattr(error, "cause", "refused"), str(error)))
                continue
            if answer.status < 500 and answer.status != HTTPStatus.TOO_MANY_REQUESTS:
                break
            cause = "rate_limited" if answer.status == HTTPStatus.TOO_MANY_REQUESTS else "status"
            failures.append(Failure("any", endpoint, cause, f"it answered {answer.status}"))
        if answer is not None:  # of several that failed, the last one's
            client.respond(answer.status, foreign(answer.head.headers, _LENGTH), answer.body)
            self._note(request, "ok", answer.status, failures)
            return
        problem = failed(f"no engine answered {request.path}: {failures[-1].message}")
        self._note(request, problem.code, problem.status, failures)
        raise problem

    def _note(self, request: Request, outcome: str, status: int, failures: list[Failure]) -> None:
        """Leave a line behind, as completions do."""
        journal = self._services.telemetry.journal
        if journal.wants(outcome, status, failures):
            journal.write(outcome, status, failures, {"path": request.path})
