"""What is counted, measured, logged and remembered of one request, until it is over."""

from __future__ import annotations

from typing import Any

from eldr.contract import attempt_id, is_sampled, request_base
from eldr_router.http.requests import Request
from eldr_router.ops.joiner import Observation
from eldr_router.plan import headers
from eldr_router.plan.apis import APIS
from eldr_router.plan.fields import Fields
from eldr_router.plan.signature import WHOLE, Signature
from eldr_router.plan.steps import State
from eldr_router.plan.usage import UNKNOWN, Usage, model_of
from eldr_router.serve.services import Services
from eldr_router.state.placer import Placement


class Account:
    """The books of one request.

    Attributes
    ----------
    outcome : str
        Label of the request metric; what it is if nothing else happens: the client left.
    status : int
        What the client got; 0 for nothing.
    signature : Signature
    placement : Placement or None
        The last ones.
    """

    __slots__ = (
        "_attempts", "_base", "_first_byte_seconds", "_model", "_prefill_seconds", "_request", "_services", "_started", "_streams",
        "_table", "_usage", "closed", "message", "outcome", "placement", "signature", "status",
    )  # fmt: skip

    def __init__(self, services: Services, request: Request) -> None:
        services.sequence += 1
        self._services = services
        self._request = request
        self._table = services.table
        self._started = services.clock()
        self._base = request_base(services.router, services.sequence)
        self._attempts = 0
        self._prefill_seconds = self._first_byte_seconds = 0.0
        self._model, self._streams, self._usage = "", False, UNKNOWN
        self.outcome, self.status, self.message = "disconnected", 0, ""
        self.signature: Signature = WHOLE
        self.placement: Placement | None = None
        self.closed = False

    def next_id(self) -> str:
        """Return the id of the next request to an engine."""
        self._attempts += 1
        return attempt_id(self._base, self._attempts)

    def returned_id(self) -> tuple[bytes, bytes]:
        """Return the request id that the client gets, as a header."""
        return headers.returned_id(self._request, self._base)

    def asked(self, fields: Fields) -> None:
        """Take note of what the client asks for."""
        self._model = model_of(fields)

    def prefilled(self, signature: Signature, at: float) -> None:
        """Take note of a prefill result."""
        self.signature = signature
        self._prefill_seconds = at - self._started
        self._services.metrics.prefill(self._prefill_seconds)
        self._services.metrics.signatures(signature.quality)

    def began(self, status: int, *, streams: bool) -> None:
        """Take note that the response begins."""
        self.status, self._streams = status, streams
        self._first_byte_seconds = self._services.clock() - self._started
        self._services.metrics.first_byte(self._first_byte_seconds)
        if self.placement is not None:
            self._services.metrics.place(self.placement)

    def answered(self, usage: Usage) -> None:
        """Take note that the response was given, and is over."""
        self.outcome, self._usage = "ok", usage

    def close(self, state: State) -> None:
        """Count the request, and leave a line and a log record behind where they are due."""
        self.closed = True
        services, outcome = self._services, self.outcome
        seconds = services.clock() - self._started
        services.metrics.requests(outcome)
        if outcome in ("ok", "broken_stream"):
            services.metrics.total(seconds)
        services.metrics.gen_ai(
            APIS[self._request.path].operation, self._model, "" if outcome == "ok" else outcome, seconds,
            first=self._first_byte_seconds if self._streams else None, tokens=self._usage.output,
        )  # fmt: skip
        if services.journal.wants(outcome, self.status, state.failures):
            self._log(state, seconds)
        if outcome == "ok":
            self._observe(state, seconds)

    def _log(self, state: State, seconds: float) -> None:
        fields: dict[str, Any] = {
            "id": self._base,
            "client_id": self.returned_id()[1].decode("latin-1"),
            "path": self._request.path,
            "decode": None if self.placement is None else self.placement.endpoint.name,
            "seconds": round(seconds, 4),
        }
        self._services.journal.write(self.outcome, self.status, state.failures, fields, self.message)

    def _observe(self, state: State, seconds: float) -> None:
        placement, counts, intent = self.placement, self.signature.counts, self._table.intent
        if placement is None or counts is None or not headers.is_logged(self._request):
            return
        if placement.endpoint in state.broken:
            return  # it may keep a record of the attempt that failed as well, and both have this request's id
        if not is_sampled(self._base, intent.sample_rate):
            return
        self._services.joiner.observe(
            Observation(
                request_id=self._base,
                model=intent.model,
                counts=counts,
                placement=placement,
                prefill_seconds=self._prefill_seconds,
                first_byte_seconds=self._first_byte_seconds,
                total_seconds=seconds,
            )
        )
