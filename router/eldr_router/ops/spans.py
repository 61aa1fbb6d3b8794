"""Spans of a request: the request itself, and its prefills, decisions and decodes, each with the times that it had.

Only the request's own span begins when it arrives: that decides whether it is sampled. The others are noted while the
request runs, and made when it is over; engines get their ids before.

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
from typing import NamedTuple

from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode

import eldr
from eldr_router.http.head import Headers
from eldr_router.http.requests import Request
from eldr_router.plan.steps import Failure

_CLOSE_SECONDS = 5.0
_NANOSECONDS = 1_000_000_000
Value = str | int | float | bool
Attributes = Mapping[str, Value | None]
KINDS = {"prefill": SpanKind.CLIENT, "decode": SpanKind.CLIENT}
"""Of parts that are requests to an engine."""


class Ids(RandomIdGenerator):
    """Gives a span the id that an engine was told before."""

    def __init__(self) -> None:
        self.next: int | None = None

    def generate_span_id(self) -> int:
        """See :class:`opentelemetry.sdk.trace.id_generator.IdGenerator`."""
        chosen, self.next = self.next, None
        return chosen or super().generate_span_id()


class Tracing:
    """What all traces of a process share."""

    def __init__(self, provider: TracerProvider, ids: Ids) -> None:
        self.ids = ids
        self.tracer = provider.get_tracer("eldr_router", eldr.__version__)
        self.propagator = propagate.get_global_textmap()
        self.fields = frozenset(field.lower().encode() for field in self.propagator.fields)
        self.address: tuple[str, int] | None = None
        self._provider = provider

    def trace(self, request: Request, operation: str, now: float, wall: float) -> Trace:
        """Return a request's trace; parameters as of :class:`Trace`."""
        return Trace(self, request, operation, now, wall)

    async def close(self) -> None:
        """Send what is left, within a few seconds; a receiver that hangs delays nobody longer."""
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop has not waited
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, daemon=True).start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), _CLOSE_SECONDS)


class _Part(NamedTuple):
    name: str
    span_id: int
    begin: float
    end: float
    attributes: dict[str, Value | None]
    error: tuple[str, str] | None
    first: float | None


class Trace:
    """One request's.

    Parameters
    ----------
    request : Request
        Its headers lose what they say of a trace: engines are told by :attr:`headers`.
    operation : str
        The convention's name of what is asked for.
    now, wall : float
        The same moment by the clock that times of the request are by, and since the epoch.

    Attributes
    ----------
    headers : list of (bytes, bytes)
        How the trace goes on, for the engine that is asked next.
    """

    __slots__ = ("_context", "_failures", "_offset", "_open", "_parts", "_span", "_tracing", "headers")

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
        self._parts: list[_Part] | None = [] if self._span.is_recording() else None
        self._open: _Part | None = None
        self._failures = 0
        self.headers = self._carried(self._span)

    @property
    def id(self) -> str:
        """The trace's id, as W3C writes it."""
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    def begin(self, name: str, now: float, attributes: Attributes) -> None:
        """Begin a part that is an exchange with an engine; :attr:`headers` name it from now on."""
        if self._parts is None:
            return
        own, of_part = self._span.get_span_context(), self._tracing.ids.generate_span_id()
        self._open = _Part(name, of_part, now, now, dict(attributes), None, None)
        context = SpanContext(own.trace_id, of_part, False, own.trace_flags, own.trace_state)
        self.headers = self._carried(NonRecordingSpan(context))

    def note(self, attributes: Attributes, first: float | None = None) -> None:
        """Take note of what is learned of the part that runs, or of when its answer began."""
        if self._open is not None:
            self._open.attributes.update(attributes)
            self._open = self._open._replace(first=first)

    def end(self, now: float, failures: Sequence[Failure]) -> None:
        """End the part that runs; a failure that was not there before is its own."""
        if self._open is None or self._parts is None:
            return
        error = (failures[-1].cause, failures[-1].message) if len(failures) > self._failures else None
        self._failures = len(failures)
        self._parts.append(self._open._replace(end=now, error=error))
        self._open = None

    def add(
        self,
        name: str,
        begin: float,
        end: float,
        attributes: Attributes,
        error: tuple[str, str] | None = None,
    ) -> None:
        """Add a part that is over."""
        if self._parts is not None:
            self._parts.append(_Part(name, 0, begin, end, dict(attributes), error, None))

    def close(self, name: str, now: float, attributes: Attributes, error: tuple[str, str] | None) -> None:
        """Make the spans, and hand them to the thread that sends them.

        Parameters
        ----------
        name : str
            Of the request's span.
        error : (str, str) or None
            Why the request failed, as a word and as a sentence. The last part failed with it.
        """
        if self._parts is None:
            return
        self.end(now, ())
        for at, part in enumerate(self._parts):
            last = at == len(self._parts) - 1
            self._make(part._replace(error=error) if last and part.error is None else part)
        self._span.update_name(name)
        self._finish(self._span, now, attributes, error)

    def _make(self, part: _Part) -> None:
        tracing = self._tracing
        tracing.ids.next = part.span_id
        kind = KINDS.get(part.name, SpanKind.INTERNAL)
        span = tracing.tracer.start_span(part.name, self._context, kind, start_time=self._time(part.begin))
        if part.first is not None:
            span.add_event("first token", timestamp=self._time(part.first))
        self._finish(span, part.end, part.attributes, part.error)

    def _finish(
        self, span: trace.Span, end: float, attributes: Attributes, error: tuple[str, str] | None
    ) -> None:
        span.set_attributes({key: value for key, value in attributes.items() if value is not None})
        if error is not None:
            span.set_attribute("error.type", error[0])
            span.set_status(Status(StatusCode.ERROR, error[1]))
        span.end(self._time(end))

    def _carried(self, span: trace.Span) -> Headers:
        carrier: dict[str, str] = {}
        self._tracing.propagator.inject(
            carrier, trace.set_span_in_context(span, getattr(self, "_context", None))
        )
        return [(name.encode(), value.encode("latin-1", "replace")) for name, value in carrier.items()]

    def _time(self, at: float) -> int:
        return int((at + self._offset) * _NANOSECONDS)
