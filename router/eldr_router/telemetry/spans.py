"""Spans of a request and of its legs.

An engine continues the span of its leg. A leg ends when the next one begins or the request is over, with the time it had: only then is
it known whether the request failed with it.

References
----------
.. [1] W3C Trace Context: how a trace goes on from a client, and to an engine.
.. [2] OpenTelemetry semantic conventions, generative AI and HTTP spans: names of attributes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, Status, StatusCode

import eldr
from eldr_router.engines.health import Failure
from eldr_router.http.head import Headers
from eldr_router.http.requests import Request

_CLOSE_SECONDS = 5.0
_NANOSECONDS = 1_000_000_000
Value = str | int | float | bool
Attributes = Mapping[str, Value | None]
KINDS = {"prefill": SpanKind.CLIENT, "decode": SpanKind.CLIENT}
"""Of legs."""


class Tracing:
    """What all traces of a process share."""

    def __init__(self, provider: TracerProvider) -> None:
        self.tracer = provider.get_tracer("eldr_router", eldr.__version__)
        self.propagator = propagate.get_global_textmap()
        self.fields = frozenset(field.lower().encode() for field in self.propagator.fields)
        self.address: tuple[str, int] | None = None
        self._provider = provider

    def trace(self, request: Request, operation: str, now: float, wall: float) -> Trace:
        """Return a request's trace; parameters as of :class:`Trace`."""
        return Trace(self, request, operation, now, wall)

    async def close(self) -> None:
        """Send what is left, within a few seconds."""
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop has not waited
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, daemon=True).start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), _CLOSE_SECONDS)


class Trace:
    """One request's.

    Parameters
    ----------
    tracing : Tracing
    request : Request
        Its headers lose what they say of a trace: engines get it by :attr:`headers`.
    operation : str
        The convention's name of what is asked for.
    now, wall : float
        The same moment by the clock that times of the request are by, and since the epoch.

    Attributes
    ----------
    headers : list of (bytes, bytes)
        How the trace goes on, for the engine that is asked next.
    """

    __slots__ = ("_context", "_end", "_error", "_failures", "_leg", "_offset", "_span", "_tracing", "headers")

    def __init__(self, tracing: Tracing, request: Request, operation: str, now: float, wall: float) -> None:
        self._tracing = tracing
        self._offset = wall - now
        carrier: dict[str, list[str]] = {}
        for name, value in request.headers:
            if name in tracing.fields:
                carrier.setdefault(name.decode(), []).append(value.decode("latin-1"))
        request.headers = [header for header in request.headers if header[0] not in tracing.fields]
        before = tracing.propagator.extract(carrier)
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": operation,
            "http.request.method": request.method,
            "url.path": request.path,
        }
        if tracing.address is not None:
            attributes["server.address"], attributes["server.port"] = tracing.address
        self._span = tracing.tracer.start_span(
            operation, before, SpanKind.SERVER, attributes, start_time=self._time(now)
        )
        self._context = trace.set_span_in_context(self._span, before)
        self._leg: trace.Span | None = None
        self._end: float | None = None
        self._error: tuple[str, str] | None = None
        self._failures = 0
        self.headers = self._carried(self._context)

    @property
    def id(self) -> str:
        """The trace's id, as W3C writes it."""
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    def begin(self, name: str, now: float, attributes: Attributes) -> None:
        """Begin a leg; :attr:`headers` name it from now on."""
        self._settle()
        if self._span.is_recording():
            self._leg = self._start(name, now, attributes)
            self.headers = self._carried(trace.set_span_in_context(self._leg, self._context))

    def note(self, attributes: Attributes, first: float | None = None) -> None:
        """Record what is learned of the leg that runs, or when its answer began."""
        if self._leg is not None:
            self._leg.set_attributes(_known(attributes))
            if first is not None:
                self._leg.add_event("first token", timestamp=self._time(first))

    def end(self, now: float, failures: Sequence[Failure]) -> None:
        """End the leg that runs; a failure that was not there before is its own."""
        if self._leg is None or self._end is not None:
            return
        self._end = now
        if len(failures) > self._failures:
            self._error = (failures[-1].cause, failures[-1].message)
        self._failures = len(failures)

    def add(
        self,
        name: str,
        begin: float,
        end: float,
        attributes: Attributes,
        error: tuple[str, str] | None = None,
    ) -> None:
        """Add what is over."""
        self._settle()
        if self._span.is_recording():
            self._leg, self._end, self._error = self._start(name, begin, attributes), end, error

    def close(self, name: str, now: float, attributes: Attributes, error: tuple[str, str] | None) -> None:
        """End the request's span.

        Parameters
        ----------
        name : str
            Of the request's span.
        now : float
        attributes : Attributes
        error : (str, str) or None
            Why the request failed, as a word and as a sentence. The last leg failed with it.
        """
        self._end = self._end or now
        self._settle(error)
        self._span.update_name(name)
        self._span.set_attributes(_known(attributes))
        self._finish(self._span, now, error)

    def _start(self, name: str, begin: float, attributes: Attributes) -> trace.Span:
        kind = KINDS.get(name, SpanKind.INTERNAL)
        return self._tracing.tracer.start_span(
            name, self._context, kind, _known(attributes), start_time=self._time(begin)
        )

    def _settle(self, error: tuple[str, str] | None = None) -> None:
        """End the span of a leg that is over."""
        if self._leg is not None and self._end is not None:
            self._finish(self._leg, self._end, self._error or error)
        self._leg = self._end = self._error = None

    def _finish(self, span: trace.Span, end: float, error: tuple[str, str] | None) -> None:
        if error is not None:
            span.set_attribute("error.type", error[0])
            span.set_status(Status(StatusCode.ERROR, error[1]))
        span.end(self._time(end))

    def _carried(self, context: Context) -> Headers:
        carrier: dict[str, str] = {}
        self._tracing.propagator.inject(carrier, context)
        return [(name.encode(), value.encode("latin-1", "replace")) for name, value in carrier.items()]

    def _time(self, at: float) -> int:
        return int((at + self._offset) * _NANOSECONDS)


def _known(attributes: Attributes) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}
