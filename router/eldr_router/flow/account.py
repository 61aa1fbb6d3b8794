"""What is counted, measured, logged and remembered of one request, until it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eldr.contract import attempt_id, is_sampled, request_base
from eldr_router.api import headers
from eldr_router.api.fields import Fields
from eldr_router.api.paths import APIS
from eldr_router.api.usage import UNKNOWN, Usage, model_of, usage_of
from eldr_router.engines.endpoint import Endpoint
from eldr_router.flow.services import Services
from eldr_router.flow.steps import State
from eldr_router.http.errors import RouterError
from eldr_router.http.head import Headers, header_lines
from eldr_router.http.requests import Request
from eldr_router.placement.placer import Placement
from eldr_router.placement.signature import WHOLE, Signature
from eldr_router.telemetry.joiner import Observation

if TYPE_CHECKING:
    from eldr_router.telemetry.spans import Trace


class Account:
    """The books of one request.

    Attributes
    ----------
    outcome : str
        Label of the request metric; what it is if nothing else happens: the client left.
    status : int
        What the client got; 0 for nothing.
    model : str
        As the request names it; empty if it names none.
    signature : Signature
    placement : Placement or None
        The last ones.
    headers, lines
        How the request's trace goes on, for the engine that is asked next.
    """

    __slots__ = (
        "_attempts", "_base", "_first_byte_seconds", "_prefill_seconds", "_request", "_services", "_started", "_streams",
        "_table", "_trace", "_usage", "closed", "headers", "lines", "message", "model", "outcome", "placement", "signature", "status",
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
        self.model, self._streams, self._usage = "", False, UNKNOWN
        self.outcome, self.status, self.message = "disconnected", 0, ""
        self.signature: Signature = WHOLE
        self.placement: Placement | None = None
        self.closed = False
        self._trace: Trace | None = None
        self.headers: Headers = []
        self.lines = b""
        if services.tracing is not None:
            self._trace = services.tracing.trace(request, self._operation, self._started, services.wall())
            self._carry(self._trace)

    def next_id(self) -> str:
        """Return the id of the next request to an engine."""
        self._attempts += 1
        return attempt_id(self._base, self._attempts)

    def returned_id(self) -> tuple[bytes, bytes]:
        """Return the request id that the client gets, as a header."""
        return headers.returned_id(self._request, self._base)

    def asked(self, fields: Fields) -> None:
        """Take note of what the client asks for."""
        self.model = model_of(fields)

    def waited(self) -> None:
        """Take note that the request waited for room until now."""
        if self._trace is not None:
            self._trace.add("wait", self._started, self._services.clock(), {})

    def asks(self, leg: str, endpoint: Endpoint, reason: str | None = None) -> None:
        """Take note that an engine is asked from now on."""
        if self._trace is not None:
            host, port = endpoint.address
            self._trace.begin(
                leg, self._services.clock(),
                {"server.address": host, "server.port": port, "eldr.engine": endpoint.name, "eldr.reason": reason},
            )  # fmt: skip
            self._carry(self._trace)

    def left(self, state: State) -> None:
        """Take note that the engine is done with, or given up."""
        if self._trace is not None:
            self._trace.end(self._services.clock(), state.failures)

    def prefilled(self, signature: Signature, at: float, prompt: int, model: object) -> None:
        """Record a prefill result, the prompt's tokens, 0 if they are not known, and of the model that the engine names."""
        self.signature = signature
        self._services.names.observe(self.model, model)
        self._prefill_seconds = at - self._started
        self._services.metrics.prefill(self._prefill_seconds)
        self._services.metrics.signatures(signature.quality)
        if self._trace is not None:
            self._usage = Usage(prompt or None)
            self._trace.note({"eldr.signature": signature.quality})

    def placed(self, placement: Placement, since: float) -> None:
        """Take note of a decision that was begun at ``since``; its engine is asked from now on."""
        self.placement = placement
        if self._trace is not None:
            self._trace.add(
                "decision", since, self._services.clock(),
                {**_decided(placement), "eldr.candidates": placement.candidates, "eldr.similarity": placement.similarity,
                 "eldr.in_flight": placement.in_flight},
            )  # fmt: skip
            self.asks("decode", placement.endpoint)

    def unplaced(self, error: RouterError, since: float) -> None:
        """Take note that no engine could be chosen."""
        if self._trace is not None:
            self._trace.add("decision", since, self._services.clock(), {}, (error.code, error.message))

    def began(self, status: int, *, streams: bool) -> None:
        """Take note that the response begins."""
        self.status, self._streams = status, streams
        self._first_byte_seconds = self._services.clock() - self._started
        self._services.metrics.first_byte(self._first_byte_seconds)
        if self.placement is not None:
            self._services.metrics.place(self.placement)
        if self._trace is not None:
            self._trace.note(
                {"http.response.status_code": status}, self._services.clock() if streams else None
            )

    def answered(self, end: bytes) -> None:
        """Take note that the response was given, and is over; of its end a trace has how many tokens it was."""
        self.outcome = "ok"
        if self._trace is not None:
            usage = usage_of(end)
            self._usage = Usage(usage.input or self._usage.input, usage.output)

    def close(self, state: State) -> None:
        """Count the request, and leave a line and a log record behind where they are due."""
        self.closed = True
        services, outcome = self._services, self.outcome
        seconds = services.clock() - self._started
        services.metrics.requests(outcome)
        if outcome in ("ok", "broken_stream"):
            services.metrics.total(seconds)
        if services.journal.wants(outcome, self.status, state.failures):
            self._log(state, seconds)
        if outcome == "ok":
            self._observe(state, seconds)
        if self._trace is not None:
            self._end_trace(self._trace, seconds)

    @property
    def _operation(self) -> str:
        return APIS[self._request.path].operation

    def _carry(self, trace: Trace) -> None:
        self.headers, self.lines = trace.headers, header_lines(trace.headers)

    def _end_trace(self, trace: Trace, seconds: float) -> None:
        attributes: dict[str, Any] = {
            "eldr.request_id": self._base,
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": self.model or None,
            "gen_ai.response.time_to_first_chunk": self._first_byte_seconds if self._streams else None,
            "gen_ai.usage.input_tokens": self._usage.input,
            "gen_ai.usage.output_tokens": self._usage.output,
            "http.response.status_code": self.status or None,
        }
        if self.placement is not None:
            attributes |= _decided(self.placement)
        error = None if self.outcome == "ok" else (self.outcome, self.message or self.outcome)
        trace.close(f"{self._operation} {self.model}".rstrip(), self._started + seconds, attributes, error)

    def _log(self, state: State, seconds: float) -> None:
        fields: dict[str, Any] = {
            "id": self._base,
            "client_id": self.returned_id()[1].decode("latin-1"),
            "path": self._request.path,
            "decode": None if self.placement is None else self.placement.endpoint.name,
            "seconds": round(seconds, 4),
        }
        if self._trace is not None:
            fields["trace"] = self._trace.id
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


def _decided(placement: Placement) -> dict[str, Any]:
    return {
        "eldr.policy": placement.policy,
        "eldr.reason": placement.reason,
        "eldr.decode": placement.endpoint.name,
    }
