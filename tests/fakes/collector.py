"""An OTLP receiver over HTTP, as a collector has one: it keeps the spans that it is sent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass
class Span:
    """A span as it was received."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    begin: int
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    events: list[tuple[str, int]]
    failed: bool
    message: str
    state: str


@dataclass
class Collector:
    """What has come; ``held`` keeps the receiver from answering."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)

    def take(self, body: bytes) -> None:
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _plain(part.resource.attributes)
            self.spans += [_read(span, resource) for scope in part.scope_spans for span in scope.spans]


def _read(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        name=span.name, kind=span.kind, trace=span.trace_id.hex(), id=span.span_id.hex(),
        parent=span.parent_span_id.hex(), begin=span.start_time_unix_nano, end=span.end_time_unix_nano,
        attributes=_plain(span.attributes), resource=resource,
        events=[(event.name, event.time_unix_nano) for event in span.events],
        failed=span.status.code == 2, message=span.status.message, state=span.trace_state,
    )  # fmt: skip


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Receive spans; leave with ``held`` set to let no sender wait."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.paths.append(self.path)
            if collector.held.is_set():
                stop.wait()
                return
            collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    stop = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
        thread.join()
