"""Tracing, as OpenTelemetry's variables say.

The SDK is imported only where traces are wanted.

Nothing here may keep a router from serving: what is wrong with a variable is logged, and there are no traces.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from eldr_router.telemetry.spans import Tracing

log = logging.getLogger(__name__)

_EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_BY_PROTOCOL = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_SERVICE = "eldr-router"
_OF_CLIENTS = ("opentelemetry.baggage", "opentelemetry.propagators", "opentelemetry.trace")
"""Loggers that warn of what clients send: one request could leave hundreds of lines, or one of 8 KiB."""


class TracingError(ValueError):
    """Invalid variables; the message names the value and the remedy."""


def wanted(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the exporters that spans go to; empty for no traces.

    Examples
    --------
    >>> wanted({"OTEL_SERVICE_NAME": "x"}), wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})
    ([], ['otlp'])
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if any(environ.get(name) for name in _ENDPOINTS) else "none"
    names = [name.strip().lower() for name in (environ.get(_EXPORTER) or default).split(",")]
    return [name for name in names if name not in ("", "none")]


def start(environ: Mapping[str, str]) -> Tracing | None:
    """Begin to make traces if they are wanted.

    Parameters
    ----------
    environ : mapping
        The process's: the SDK reads the rest of it by itself.
    """
    names = wanted(environ)
    if not names:
        return None
    try:
        return _make(names, environ)
    except ModuleNotFoundError as error:
        log.error("no traces: the package %s is not installed; install ELDR with its extra otel", error.name)  # noqa: TRY400
    except TracingError as error:
        log.error("no traces: %s", error)  # noqa: TRY400 - the message says it all
    except Exception:
        log.exception("no traces: OpenTelemetry does not start; check the variables OTEL_...")
    return None


def _make(names: list[str], environ: Mapping[str, str]) -> Tracing:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from eldr_router.telemetry.spans import Tracing

    for name in _OF_CLIENTS:
        logging.getLogger(name).setLevel(logging.ERROR)
    exporters = list(_exporters(names, environ))
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: _SERVICE}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    log.info("traces go to %s", ", ".join(names))
    return Tracing(provider)


def _exporters(names: list[str], environ: Mapping[str, str]) -> Iterator[SpanExporter]:
    for name in names:
        variable, value = _EXPORTER, name
        if name == "otlp":
            given = ((each, environ[each].strip()) for each in _PROTOCOLS if environ.get(each))
            variable, value = next(given, (_PROTOCOLS[1], "http/protobuf"))
        exporters = [
            *entry_points(group="opentelemetry_traces_exporter", name=_BY_PROTOCOL.get(value, value))
        ]
        if not exporters:
            raise TracingError(
                f"{variable}: no exporter for {value!r} is installed; "
                "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, with the collector's port for HTTP (4318)"
            )
        yield exporters[0].load()()
