"""Traces of requests, as an OTLP receiver gets them from a router over real sockets."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time

import pytest

from eldr_kube.ports import free_port
from eldr_router.telemetry import tracing
from tests.fakes.collector import Collector, Span, collecting
from tests.fakes.engines import answer, counted, dies_after, hang, reset, slow
from tests.router.conftest import until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, SPAN = PARENT.split("-")[1:3]
UNSAMPLED = PARENT[:-1] + "0"
SERVER, CLIENT, INTERNAL = 2, 3, 1


@pytest.fixture
def collector(monkeypatch):
    with collecting() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield made


async def spans(collector: Collector, count: int) -> dict[str, Span]:
    """Wait for so many spans, and return them by name; the last of a name, if there are several."""
    await until(lambda: len(collector.spans) >= count, f"{count} spans")
    assert len(collector.spans) == count, [span.name for span in collector.spans]
    return {span.name: span for span in collector.spans}


async def test_the_tree_of_a_request(start, collector):
    async with start("p0", "d0") as router:
        router["d0"].script.append(counted)
        sent = {"traceparent": PARENT, "tracestate": "vendor=1", "x-request-id": "mine"}
        before = time.time_ns()
        assert (
            await router.post("/v1/chat/completions", headers=sent, messages=[], stream=True)
        ).status_code == 200
        found = await spans(collector, 4)
        request, prefill, decision, decode = (
            found[name] for name in ("chat m", "prefill", "decision", "decode")
        )

        assert set(collector.paths) == {"/v1/traces"}, "in one batch, or in several"
        assert {span.trace for span in collector.spans} == {TRACE}
        assert request.parent == SPAN
        assert {span.parent for span in (prefill, decision, decode)} == {request.id}
        assert {span.state for span in collector.spans} == {"vendor=1"}
        assert [found[name].kind for name in ("chat m", "decision", "decode")] == [SERVER, INTERNAL, CLIENT]
        assert (
            before
            <= request.begin
            <= prefill.begin
            <= prefill.end
            <= decision.end
            <= decode.end
            <= request.end
        )
        assert decision.begin <= decision.end <= decode.begin
        ((event, at),) = decode.events
        assert (event, decode.begin <= at <= decode.end) == ("first token", True)
        assert not any(span.failed for span in collector.spans)

        for engine, span in (("p0", prefill), ("d0", decode)):  # engines continue the part that is theirs
            (seen,) = router[engine].requests
            assert seen.headers["traceparent"] == f"00-{TRACE}-{span.id}-01"
            assert seen.headers["tracestate"] == "vendor=1"
            assert span.attributes["server.port"] == router[engine].port
            assert span.attributes["eldr.engine"] == engine
        assert prefill.attributes["eldr.reason"] == "home"
        assert prefill.attributes["eldr.signature"] == "no_signature"
        assert decode.attributes["http.response.status_code"] == 200
        assert decision.attributes["eldr.decode"] == "d0"
        first = request.attributes.pop("gen_ai.response.time_to_first_chunk")
        assert 0 < first < (request.end - request.begin) / 1e9
        assert request.attributes.pop("eldr.request_id") in router["d0"].requests[0].id
        assert request.attributes == {
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "m",
            "gen_ai.usage.input_tokens": 11, "gen_ai.usage.output_tokens": 5,
            "http.request.method": "POST", "url.path": "/v1/chat/completions", "http.response.status_code": 200,
            "server.address": "127.0.0.1", "server.port": router.app.addresses[0][1],
            "eldr.policy": "JSQ", "eldr.reason": "no_signature", "eldr.decode": "d0",
        }  # fmt: skip
        assert request.resource["service.name"] == "eldr-router"


@pytest.mark.parametrize(
    "parent",
    [None, "00-zz-b7ad6b7169203331-01", f"00-{'0' * 32}-{SPAN}-01", "\u00e4"],
)
async def test_what_is_no_parent_begins_a_trace(start, collector, parent):
    async with start("p0", "d0") as router:
        sent = None if parent is None else {"traceparent": parent.encode("latin-1")}
        assert (await router.post(headers=sent, max_tokens=3)).status_code == 200
        found = await spans(collector, 4)
        request = found["text_completion m"]
        assert request.parent == ""
        assert request.trace not in (TRACE, "0" * 32)
        assert router["p0"].requests[0].headers["traceparent"].split("-")[1] == request.trace


async def test_mistakes_of_a_client_flood_no_log(start, collector, caplog):
    async with start("p0", "d0") as router:
        for wrong in (
            {"baggage": "a;b," * 170},
            {"baggage": "a" * 9000},
            {"tracestate": "a=1,a=2,b,=,\u00e4=1"},
            {"tracestate": "," * 8000},
        ):
            headers = {name: value.encode("latin-1") for name, value in wrong.items()}
            sent = {"traceparent": PARENT.encode(), **headers}
            assert (await router.post(headers=sent, max_tokens=3)).status_code == 200
        await until(lambda: len(collector.spans) >= 16, "all spans")
    assert [record.getMessage() for record in caplog.records if record.name.startswith("opentelemetry")] == []


async def test_attempts_that_failed_are_spans_with_an_error(start, collector):
    async with start("p0", "d0", "d1") as router:
        router.play(reset)
        assert (await router.post(max_tokens=3)).status_code == 200
        found = await spans(collector, 10)
        decodes = [span for span in collector.spans if span.name == "decode"]
        assert [span.failed for span in decodes] == [True, True, False]
        assert decodes[0].attributes["error.type"] == "reset"
        assert sum(span.name == "prefill" for span in collector.spans) == 3
        assert not found["text_completion m"].failed


async def test_failures_end_with_an_error(start, collector):
    async with start("p0", "d0") as router:
        router["d0"].script.append(dies_after(1))
        router["d0"].release.set()
        await router.post(stream=True)
        broken = await spans(collector, 4)
        for name, kind in (("text_completion m", "broken_stream"), ("decode", "reset")):
            assert (broken[name].failed, broken[name].attributes["error.type"]) == (True, kind)
        assert not broken["prefill"].failed
        collector.spans.clear()

        router["p0"].script.append(answer(404, {"error": {"message": "no such model"}}))
        assert (await router.post(model="x")).status_code == 404
        refused = await spans(collector, 2)
        assert {span.attributes["error.type"] for span in refused.values()} == {"engine_error"}
        collector.spans.clear()

        assert (await router.post(kv_transfer_params={})).status_code == 400
        (request,) = (await spans(collector, 1)).values()
        assert request.name == "text_completion"
        assert (request.failed, request.attributes["error.type"]) == (True, "reserved")
        assert request.attributes["http.response.status_code"] == 400
        assert "reserved for the router" in request.message


async def test_a_client_that_leaves_ends_its_spans(start, collector):
    async with start("p0", "d0") as router:
        router["d0"].script.append(hang)
        asked = asyncio.ensure_future(router.post(stream=True))
        await until(lambda: router["d0"].hanging, "the decode")
        asked.cancel()
        found = await spans(collector, 4)
        for name in ("text_completion m", "decode"):
            assert (found[name].failed, found[name].attributes["error.type"]) == (True, "disconnected")
        assert "http.response.status_code" not in found["text_completion m"].attributes


async def test_no_room_is_a_decision_that_failed(start, collector):
    async with start("p0", "d0", max_in_flight=1) as router:
        release = asyncio.Event()
        router["d0"].script.append(slow(release))
        async with router.stream():
            assert (await router.post()).status_code == 429
            refused = [span for span in (await spans(collector, 3)).values() if span.failed]
            assert [(one.name, one.attributes["error.type"]) for one in refused] == [
                ("text_completion m", "overloaded")
            ]
            release.set()


async def test_a_wait_for_room_is_a_span(start, collector):
    async with start("p0", "d0", settings={"max_waiting": 1}, max_in_flight=1) as router:
        release = asyncio.Event()
        router["d0"].script.append(slow(release))
        async with router.stream() as first:
            task = asyncio.ensure_future(router.post(max_tokens=3))
            await until(lambda: router.app.services.queue._entries, "it to wait")
            release.set()
            await first.aread()
        assert (await task).status_code == 200
        await spans(collector, 9)
        (wait,) = (span for span in collector.spans if span.name == "wait")
        (prefill,) = (s for s in collector.spans if (s.name, s.trace) == ("prefill", wait.trace))
        assert wait.begin < wait.end <= prefill.begin
        assert (wait.parent, wait.failed) == (prefill.parent, False)


async def test_what_is_not_sampled_is_passed_on_and_not_sent(start, collector):
    async with start("p0", "d0") as router:
        assert (await router.post(headers={"traceparent": UNSAMPLED}, max_tokens=3)).status_code == 200
        assert (await router.post(headers={"traceparent": PARENT}, max_tokens=3)).status_code == 200
        await spans(collector, 4)
        assert {span.trace for span in collector.spans} == {TRACE}
        passed = router["d0"].requests[0].headers["traceparent"].split("-")
        assert (passed[1], passed[3]) == (TRACE, "00")
        assert passed[2] != SPAN


async def test_the_log_names_the_trace(start, collector, caplog):
    caplog.set_level(logging.INFO)
    async with start("p0", "d0", settings={"access_log": True}) as router:
        assert (await router.post(headers={"traceparent": PARENT}, max_tokens=3)).status_code == 200
        assert any(f'"trace":"{TRACE}"' in record.getMessage() for record in caplog.records)
        await spans(collector, 4)


async def test_a_receiver_that_is_away_or_stuck_delays_nobody(start, collector, monkeypatch):
    collector.held.set()
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setattr("eldr_router.telemetry.spans._CLOSE_SECONDS", 0.2)
    for url in (collector.url, f"http://127.0.0.1:{free_port()}"):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        async with start("p0", "d0") as router:
            for _ in range(20):  # more spans than wait
                assert (await router.post(max_tokens=3)).status_code == 200
            stopping = time.monotonic()
        assert time.monotonic() - stopping < 5
    assert collector.paths, "the receiver was asked"
    await until(lambda: not any(t.name.startswith("Otel") for t in threading.enumerate()), "the last try")


async def test_what_was_not_sent_yet_is_sent_at_the_end(start, collector, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    async with start("p0", "d0") as router:
        assert (await router.post(max_tokens=3)).status_code == 200
        assert not collector.spans
    found = await spans(collector, 4)
    assert not found["decode"].events, "of a whole answer nobody knows when it began"


async def test_without_variables_nothing_changes(start, monkeypatch):
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    async with start("p0", "d0") as router:
        assert router.app.services.telemetry.tracing is None
        assert (await router.post(headers={"traceparent": PARENT}, max_tokens=3)).status_code == 200
        assert router["d0"].requests[0].headers["traceparent"] == PARENT


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL: no exporter for 'grpc' is installed",
        ),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER: no exporter for 'zipkin' is installed"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "check the variables OTEL_"),
    ],
)
def test_a_wrong_variable_is_told_and_stops_nobody(monkeypatch, caplog, variables, said):
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", **variables}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert tracing.start(given) is None
    assert said in caplog.text


def test_a_missing_package_is_told(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    assert tracing.start({"OTEL_TRACES_EXPORTER": "otlp"}) is None
    assert "install ELDR with its extra otel" in caplog.text


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, []),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ["otlp"]),
        ({"OTEL_TRACES_EXPORTER": "console, OTLP"}, ["console", "otlp"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "True"}, []),
    ],
)
def test_when_traces_are_wanted(variables, names):
    assert tracing.wanted(variables) == names


@pytest.mark.process
def test_without_variables_nothing_is_imported():
    code = (
        "import sys, eldr_router.app; from eldr_router.telemetry import tracing;"
        "assert tracing.start({'OTEL_SERVICE_NAME': 'x'}) is None;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
