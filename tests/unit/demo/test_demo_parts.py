import asyncio
import math
import shlex

import httpx
import numpy as np
import orjson
import pytest
from click.testing import CliRunner

from eldr.cli import main
from eldr.contract import BATCH_BUCKETS
from eldr.sim import text, traces
from eldr.sim.telemetry import EngineMetrics
from eldr.wire import ExpertCounts, encode_counts
from eldr_demo.answers import AnswerError, read_stream
from eldr_demo.arrivals import ClosedLoop, Poisson
from eldr_demo.compare import STATISTICS, compare
from eldr_demo.kept import write
from eldr_demo.load import Outcome
from eldr_demo.plan import Measure
from eldr_demo.report import Phase, measure, starved
from eldr_demo.simulated import SimulatedEngines
from eldr_demo.telemetry import Reader, Sampler, Totals, parse
from tests.support.records import make_record


def stream(prompt: str, tokens: int, *, done: bool = True, spoil: bool = False) -> bytes:
    kv = text.fingerprint(prompt)
    pieces = [text.token(text.stale(kv) if spoil else kv, i) for i in range(tokens)]
    events = [b"data: " + orjson.dumps({"choices": [{"delta": {"content": p}}]}) for p in pieces]
    return b"\n\n".join([*events, b"data: [DONE]" if done else b"", b""])


def test_only_the_right_text_to_the_end_passes():
    draw = SimulatedEngines().workload("JSQ", "first", logged=False).draw
    prompt = draw(np.random.default_rng(0), 7)
    said = f"user: {prompt.text}"
    assert prompt.verify(read_stream(200, stream(said, 5)), 5) is None
    assert prompt.verify(read_stream(200, stream(said, 5, spoil=True)), 5) == "wrong tokens"
    assert prompt.verify(read_stream(200, stream(said, 4)), 5) == "wrong tokens"


@pytest.mark.parametrize(
    ("status", "received", "named"),
    [
        (200, stream("p", 5, done=False), "ended without"),
        (200, b'data: {"error": {"message": "lost"}}\n\n', "error event: lost"),
        (503, b"full", "HTTP 503"),
    ],
)
def test_an_answer_that_is_no_complete_stream_is_an_error(status, received, named):
    with pytest.raises(AnswerError, match=named):
        read_stream(status, received)


def test_totals_come_from_the_engines_own_metrics():
    metrics = EngineMetrics("m", 64)
    for batch, active in ((3, 10.0), (5, 14.0)):
        metrics.active_experts.observe(active)
        metrics.batch_size.observe(batch)
        metrics.step_seconds.observe(0.02 * batch)
    totals = parse(metrics.render().decode())
    assert (totals.steps, totals.experts, totals.requests) == (2, 24, 8)
    assert (totals.active_experts, totals.batch) == (12, 4)
    assert totals.busy == pytest.approx(0.16)
    assert {b: n for b, n in zip(BATCH_BUCKETS, totals.batches, strict=True) if n} == {3: 1, 5: 1}
    assert math.isnan(Totals().batch)


@pytest.fixture
def sampler():
    made = Sampler(list)
    made.samples = [(float(t), Totals(10.0 * t, 300.0 * t, 160.0 * t, seen=3200.0 * t)) for t in range(60)]
    return made


async def test_every_activation_record_is_read_once():
    encoded = encode_counts(ExpertCounts(np.full((1, 4), 3, np.uint16), 2, 6, exact=True))
    records = [{"request_id": f"r{i}", **encoded} for i in range(300)]
    metrics = EngineMetrics("m", 4).render()

    def answer(request):
        if request.url.path == "/metrics":
            return httpx.Response(200, content=metrics)
        after = int(request.url.params["after"])
        page = records[after : after + int(request.url.params["limit"])]
        return httpx.Response(200, json={"boot": "b", "next": after + len(page), "records": page})

    reader = Reader("http://engine")
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        for _ in range(2):
            totals = await reader.read(client)
            assert (totals.tokens, totals.chosen.tolist()) == (1800, [[900.0] * 4])


JSQ, UNION = Measure("JSQ", "first"), Measure("MarginalUnion", "first", "fitted")


def outcome(step, start, tpot=0.05, error=None, number=0):
    return Outcome(step.name, number, start, start + 0.1, start + 0.1 + 10 * tpot, 11, error)


def test_figures_of_a_phase_rest_on_the_measured_span_only(sampler):
    phase = Phase(UNION, 10.0, 20.0)
    outcomes = [
        outcome(UNION, 5.0, 9.9, number=0),
        outcome(UNION, 11.0, number=1),
        outcome(UNION, 12.0, 0.07, number=2),
        outcome(JSQ, 12.0, 9.0, number=3),
    ]
    outcomes.append(outcome(UNION, 13.0, 9.0, error="HTTP 500", number=4))
    (row,) = measure([phase], outcomes, sampler, paced=False)
    assert (row.requests, row.failures, row.changes) == (4, 1, None)
    assert row.batch == pytest.approx(16)
    assert row.experts_per_token == pytest.approx(20)
    assert row.tpot[:2] == pytest.approx((0.06, 0.06))
    assert row.tpot[2] == pytest.approx(0.07, abs=1e-3)


def test_policies_are_compared_request_by_request(sampler):
    rng = np.random.default_rng(0)
    phases = [Phase(JSQ, 0.0, 60.0), Phase(UNION, 60.0, 120.0), Phase(Measure("JSQ", "second"), 120.0, 180.0)]
    outcomes = []
    for number in range(300):
        own = float(rng.lognormal(-3, 0.3))
        outcomes.append(outcome(JSQ, number / 10, own, number=number))
        outcomes.append(
            outcome(
                UNION,
                60 + number / 10,
                own * float(rng.normal(0.95, 0.01)),
                number=number if number != 250 else 999,
            )
        )
    none, union, other = measure(phases, outcomes, sampler, paced=False)
    assert none.changes is None
    assert other.changes is None
    for name in STATISTICS:
        change, low, high = union.changes[name]
        assert low < -0.05 < high
        assert low <= change <= high < 0
    low, high = union.changes["mean"][1:]
    assert high - low < 0.01, "pairs tell what differs by 5 % among requests that differ by 30 %"


def test_a_phase_whose_engines_were_starved_is_marked():
    made = Sampler(list)
    # four engines: all computed all the time until 30 s, then other programs took a tenth of it
    made.samples = [
        (float(t), Totals(busy=4.0 * min(t, 30) + 3.6 * max(0, t - 30), clock=4.0 * t)) for t in range(60)
    ]
    phases = [Phase(JSQ, 5.0, 29.0), Phase(UNION, 31.0, 59.0)]
    rows = measure(phases, [], made, paced=True)
    assert [row.kept_up for row in rows] == pytest.approx([1.0, 0.9])
    (line,) = starved(rows)
    assert UNION.name in line
    assert not starved(measure(phases, [], made, paced=False)), "real engines report what steps took"


def test_too_few_requests_are_not_compared():
    assert compare(dict.fromkeys(range(300), 1.0), dict.fromkeys(range(250, 600), 1.0)) is None
    same = compare({n: 1.0 + n for n in range(300)}, {n: 1.0 + n for n in range(300)})
    assert same["P50"] == (0, 0, 0)


async def test_a_kept_connection_that_its_server_closes_spoils_nothing(monkeypatch):
    metrics, asked, stop = EngineMetrics("m", 4).render(), [], asyncio.Event()

    def answer(request):
        asked.append(request.url.path)
        if len(asked) == 1:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        if request.url.path == "/metrics":
            return httpx.Response(200, content=metrics)
        stop.set()
        return httpx.Response(200, json={"boot": "b", "next": 0, "records": []})

    client = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **_: client(transport=httpx.MockTransport(answer)))
    sampler = Sampler(lambda: ["http://engine"])
    await asyncio.wait_for(sampler.run(stop), 30)
    assert len(sampler.samples) == 1


async def test_experts_are_weighted_by_the_tokens_that_see_them():
    pages = [(10, 100.0, 20.0), (20, 300.0, 120.0)]  # steps, experts, requests so far: 10 x 2, then 20 x 10

    def answer(request):
        if request.url.path != "/metrics":
            return httpx.Response(200, json={"boot": "b", "next": 0, "records": []})
        steps, experts, requests = pages.pop(0)
        return httpx.Response(
            200,
            text=f"""\
# TYPE eldr_engine_active_experts histogram
eldr_engine_active_experts_count {steps}
eldr_engine_active_experts_sum {experts}
# TYPE eldr_engine_batch_size histogram
eldr_engine_batch_size_sum {requests}
""",
        )

    reader = Reader("http://engine")
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        await reader.read(client)
        totals = await reader.read(client)
    assert totals.active_experts == 15
    assert totals.experts_per_token == pytest.approx((10 * 20 + 20 * 100) / 120)


async def test_a_closed_loop_keeps_as_many_in_flight_and_stops():
    arrivals, stop = ClosedLoop(2), asyncio.Event()
    assert await arrivals.next(stop)
    assert await arrivals.next(stop)
    third = asyncio.ensure_future(arrivals.next(stop))
    await asyncio.sleep(0)
    assert not third.done()
    arrivals.done()
    assert await third
    stop.set()
    assert not await arrivals.next(stop)


async def test_poisson_arrivals_repeat_after_a_restart():
    def gaps(arrivals, n=5):
        return [float(arrivals._gaps.exponential()) for _ in range(n)]

    arrivals = Poisson(1000.0)
    first = gaps(arrivals)
    assert gaps(arrivals) != first
    arrivals.restart()
    assert gaps(arrivals) == first
    stop = asyncio.Event()
    assert await arrivals.next(stop)
    stop.set()
    assert not await arrivals.next(stop)


@pytest.mark.slow
def test_the_log_is_kept_by_mix_and_can_be_simulated(tmp_path):
    captured, folder = traces.load(), tmp_path / "siglog"
    records = [make_record(captured, at, at, time=1000.0 + at, tokens=96) for at in range(300)]
    said = write(records, folder, 1160.0, (*SimulatedEngines(speed=2.0).known, "--rate", "9")).splitlines()
    assert [path.name for path in sorted(folder.iterdir())] == ["first.siglog", "second.siglog"]
    first, command, both = (line.partition("#")[0] for line in said if "eldr simulate" in line)
    assert command in said[3]
    assert "first.siglog" in first
    assert both.count("--log") == 2
    quick = ["--seconds", "5", "--seeds", "1"]
    done = CliRunner().invoke(main, [*shlex.split(command)[1:], *quick])
    assert done.exit_code == 0, done.output
    assert "4 engines, 9 requests/s" in done.output
    said = write(records, folder, math.inf, ()).splitlines()
    assert said == [f"signature log: {folder / 'first.siglog'}"], "nothing of an earlier run stays"
