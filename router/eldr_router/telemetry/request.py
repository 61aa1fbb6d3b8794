"""Telemetry of a request: it observes, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eldr.contract import attempt_id, is_sampled, request_base
from eldr_router.api import headers
from eldr_router.api.fields import Fields
from eldr_router.api.paths import APIS
from eldr_router.api.usage import UNKNOWN, Usage, model_of, usage_of
from eldr_router.engines.endpoint import Endpoint
from eldr_router.engines.health import Failure
from eldr_router.http.errors import RouterError
from eldr_router.http.head import Headers, header_lines
from eldr_router.http.requests import Request
from eldr_router.placement.placer import Placement
from eldr_router.placement.signature import WHOLE, Signature
from eldr_router.placement.table import Table
from eldr_router.telemetry.joiner import Joiner, Observation
from eldr_router.telemetry.journal import Journal
from eldr_router.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from eldr_router.telemetry.spans import Trace, Tracing


@dataclass(slots=True)
class Telemetry:
    """Where all requests of a process leave what is observed of them.

    Attributes
    ----------
    router : str
        The name of this router, part of each request's id.
    clock, wall : callable
        Monotonic seconds, and those since the epoch.
    requests : int
        Requests so far.
    """

    router: str
    metrics: Metrics
    joiner: Joiner
    journal: Journal
    tracing: Tracing | None
    clock: Callable[[], float]
    wall: Callable[[], float]
    requests: int = 0


class RequestTelemetry:
    """Observes one request.

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
        "_attempts", "_base", "_first_byte_seconds", "_prefill_seconds", "_request", "_started", "_streams",
        "_table", "_telemetry", "_trace", "_usage", "closed", "headers", "lines", "message", "model", "outcome", "placement", "signature", "status",
    )  # fmt: skip

    def __init__(self, telemetry: Telemetry, request: Request, table: Table) -> None:
        telemetry.requests += 1
        self._telemetry = telemetry
        self._request = request
        self._table = table
        self._started = telemetry.clock()
        self._base = request_base(telemetry.router, telemetry.requests)
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
        if telemetry.tracing is not None:
            self._trace = telemetry.tracing.trace(request, self._operation, self._started, telemetry.wall())
            self._carry(self._trace)

    def next_id(self) -> str:
        """Return the id of the next request to an engine."""
        self._attempts += 1
        return attempt_id(self._base, self._attempts)

    def returned_id(self) -> tuple[bytes, bytes]:
        """Return the request id that the client gets, as a header."""
        return headers.returned_id(self._request, self._base)

    def on_request(self, fields: Fields) -> None:
        """Record what the client asks for."""
        self.model = model_of(fields)

    def on_queue_exit(self) -> None:
        """Record that the request waited for room until now."""
        if self._trace is not None:
            self._trace.add("wait", self._started, self._telemetry.clock(), {})

    def on_leg_start(self, leg: str, endpoint: Endpoint, reason: str | None = None) -> None:
        """Record that an engine is asked from now on."""
        if self._trace is not None:
            host, port = endpoint.address
            self._trace.begin(
                leg, self._telemetry.clock(),
                {"server.address": host, "server.port": port, "eldr.engine": endpoint.name, "eldr.reason": reason},
            )  # fmt: skip
            self._carry(self._trace)

    def on_leg_end(self, failures: tuple[Failure, ...]) -> None:
        """Record that the engine has answered, or is given up."""
        if self._trace is not None:
            self._trace.end(self._telemetry.clock(), failures)

    def on_prefill_result(self, signature: Signature, at: float, prompt: int) -> None:
        """Record a prefill result and the prompt's tokens, 0 if unknown."""
        self.signature = signature
        self._prefill_seconds = at - self._started
        self._telemetry.metrics.prefill(self._prefill_seconds)
        self._telemetry.metrics.signatures(signature.quality)
        if self._trace is not None:
            self._usage = Usage(prompt or None)
            self._trace.note({"eldr.signature": signature.quality})

    def on_placement(self, placement: Placement, since: float) -> None:
        """Record a placement that began at ``since``, and a leg's start."""
        self.placement = placement
        if self._trace is not None:
            self._trace.add(
                "decision", since, self._telemetry.clock(),
                {**_decided(placement), "eldr.candidates": placement.n_candidates, "eldr.similarity": placement.similarity,
                 "eldr.in_flight": placement.in_flight},
            )  # fmt: skip
            self.on_leg_start("decode", placement.endpoint)

    def on_placement_error(self, error: RouterError, since: float) -> None:
        """Record that no engine could be chosen."""
        if self._trace is not None:
            self._trace.add("decision", since, self._telemetry.clock(), {}, (error.code, error.message))

    def on_first_byte(self, status: int, *, streams: bool) -> None:
        """Record that the response begins."""
        self.status, self._streams = status, streams
        self._first_byte_seconds = self._telemetry.clock() - self._started
        self._telemetry.metrics.first_byte(self._first_byte_seconds)
        if self.placement is not None:
            self._telemetry.metrics.place(self.placement)
        if self._trace is not None:
            self._trace.note(
                {"http.response.status_code": status}, self._telemetry.clock() if streams else None
            )

    def on_response_end(self, end: bytes) -> None:
        """Record the end of a response; a trace reads tokens from ``end``."""
        self.outcome = "ok"
        if self._trace is not None:
            usage = usage_of(end)
            self._usage = Usage(usage.input or self._usage.input, usage.output)

    def on_end(self, failures: tuple[Failure, ...], broken: Collection[Endpoint]) -> None:
        """Count the request; write its line and its log record.

        Parameters
        ----------
        failures : tuple of Failure
            Attempts given up.
        broken : collection of Endpoint
            Engines that broke an attempt.
        """
        self.closed = True
        telemetry, outcome = self._telemetry, self.outcome
        seconds = telemetry.clock() - self._started
        telemetry.metrics.requests(outcome)
        if outcome in ("ok", "broken_stream"):
            telemetry.metrics.total(seconds)
        if telemetry.journal.wants(outcome, self.status, failures):
            self._log(failures, seconds)
        if outcome == "ok":
            self._observe(broken, seconds)
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

    def _log(self, failures: tuple[Failure, ...], seconds: float) -> None:
        fields: dict[str, Any] = {
            "id": self._base,
            "client_id": self.returned_id()[1].decode("latin-1"),
            "path": self._request.path,
            "decode": None if self.placement is None else self.placement.endpoint.name,
            "seconds": round(seconds, 4),
        }
        if self._trace is not None:
            fields["trace"] = self._trace.id
        self._telemetry.journal.write(self.outcome, self.status, failures, fields, self.message)

    def _observe(self, broken: Collection[Endpoint], seconds: float) -> None:
        placement, counts, document = self.placement, self.signature.counts, self._table.document
        if placement is None or counts is None or not headers.is_logged(self._request):
            return
        if placement.endpoint in broken:
            return  # it may keep a record of the attempt that failed as well, and both have this request's id
        if not is_sampled(self._base, document.sample_rate):
            return
        self._telemetry.joiner.observe(
            Observation(
                request_id=self._base,
                model=document.model,
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
