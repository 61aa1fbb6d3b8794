"""Expert-parallel engines of several ranks that balance activated experts: the answers and counts of one process, fewer experts, no wrong token.

Three layouts: both ranks compute the same tokens (tensor parallel), each has requests of its own (data parallel), or two pairs
have requests of their own, of which each rank routes a part. Of 96 physical experts 32 are replicas, and EPLB moves them every 16 steps. What the CPU build lacks comes from ``hack/vllm/cpu``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from eldr import contract
from eldr_tiny_moe.client import ReferenceClient
from tests.support.router import router
from tests.vllm.client import ask
from tests.vllm.comparison import check, clear
from tests.vllm.engines import NAME, Engine, Setup, asked_mode, wait_for
from tests.vllm.fleet import serving
from tests.vllm.models import written
from tests.vllm.pair import Exchange, Pair
from tests.vllm.prompts import COMPLETIONS, Case

LAYERS, REQUESTS, TOKENS = 4, 16, 48
LEASE = 300
SOON = 10.0
"""Seconds from when ranks see that they differ until all requests are answered and all processes gone."""
PROMPTS = [[(7 * i + 13 * j + i * j) % 4000 + 5 for j in range(20 + i)] for i in range(REQUESTS)]
EPLB = {
    "num_redundant_experts": 32,
    "use_async": False,
    "communicator": "torch_nccl",
    "window_size": 16,
    "step_interval": 16,
}
SPLIT = {
    "tensor": ("--tensor-parallel-size", "2"),
    "data": ("--data-parallel-size", "2"),
    "both": ("--data-parallel-size", "2", "--tensor-parallel-size", "2"),
}
RANKS = {"tensor": 2, "data": 2, "both": 4}
BALANCED, VLLM = {"choice": contract.CHOICE_BALANCED}, {"choice": contract.CHOICE_VLLM}


def setup_of(layout: str, plugin: Path, log: Path) -> Setup:
    return Setup(
        role="decode",
        lease=LEASE,
        children=("Saboteur",),
        plugin=plugin,
        max_len=512,
        arguments=(
            *SPLIT[layout],
            "--enable-expert-parallel",
            "--enable-eplb",
            "--eplb-config",
            json.dumps(EPLB),
        ),
        env={
            contract.ENV_BALANCE: contract.BALANCE_ACTIVATIONS,
            "ELDR_CPU_EXPERT_PARALLEL": "1",
            "ELDR_CPU_EXPERTS_LOG": str(log),
        },
    )


@dataclass
class Served:
    """An engine of several ranks that has served all prompts at once."""

    engine: Engine
    pair: Pair
    exchanges: list[Exchange]
    log: Path
    reference: ReferenceClient
    near_ties: list[str]
    layout: str = "data"

    def calls(self) -> list[tuple[int, ...]]:
        """Return the activated experts of each rank, for every call of the kernel in steps in which any rank has requests."""
        logs = [Path(f"{self.log}.{rank}").read_text().splitlines() for rank in range(RANKS[self.layout])]
        calls = [[tuple(map(int, line.split())) for line in lines] for lines in zip(*logs, strict=True)]
        return [
            tuple(activated for _, activated, _ in call)
            for call in calls
            if any(serves for *_, serves in call)
        ]


def refused(error: BaseException | None) -> bool:
    """Tell whether an engine said that it ends, or had ended before it could."""
    if isinstance(error, AssertionError):
        return "EngineCore encountered an issue" in str(error)
    return isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError))


def ends_where_maps_differ(served: Served, background: Executor) -> None:
    """Let the last rank's map differ from the others' after EPLB's next move: no answer is served, and the engine ends soon."""
    engine = served.engine
    (engine.gate / "maps").touch()
    # one for each rank, where they have requests of their own
    asked = [background.submit(served.pair.ask_decode_only, prompt, 400) for prompt in PROMPTS[:2]]
    why = "the ranks' maps of experts differ. Answers would be wrong"
    wait_for(lambda: why in engine.log.read_text(), "the ranks to see it", 120, engine.tail)
    last = time.monotonic() + SOON
    for one in asked:
        error = one.exception(last - time.monotonic())
        assert refused(error), repr(error or one.result())
    wait_for(lambda: not engine.running(), "the engine to end", last - time.monotonic(), engine.tail)


def serve(pair: Pair, *, pulled: bool = False) -> list[Exchange]:
    """Ask all prompts at once; where their KV is pulled, each step of the engine is a decode step, and measured."""
    ask_one = pair.ask if pulled else pair.ask_decode_only
    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(lambda prompt: ask_one(prompt, TOKENS), PROMPTS))


@pytest.fixture(scope="module")
def prefill(environment, plugin, tmp_path_factory) -> Iterator[Engine]:
    """An engine of one process, from which the others pull KV."""
    setup = Setup(role="prefill", lease=LEASE, plugin=plugin, max_len=512)
    engine = Engine("one", setup, environment, tmp_path_factory.mktemp("one"))
    with serving(engine):
        yield engine


@pytest.fixture(scope="module")
def one_process(prefill, reference) -> list[list[int]]:
    """The token ids of one process that serves everything itself."""
    pair = Pair(prefill.url, prefill.url, NAME)
    found = [exchange.generated for exchange in serve(pair)]
    for prompt, ids in zip(PROMPTS, found, strict=True):
        clear(reference, prompt, ids)
    return found


@pytest.fixture(
    scope="module",
    params=["data", *(pytest.param(layout, marks=pytest.mark.long) for layout in ("tensor", "both"))],
)
def served(
    request, prefill, one_process, reference, environment, plugin, tmp_path_factory, near_ties
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    setup = setup_of(request.param, plugin, folder / "experts")
    engine = Engine(f"ranks-{request.param}", setup, environment, folder)
    with serving(engine):
        pair = Pair(prefill.url, engine.url, NAME)
        yield Served(
            engine, pair, serve(pair, pulled=True), folder / "experts", reference, near_ties, request.param
        )


def test_the_tokens_are_those_of_one_process_through_rearrangements(served, one_process):
    assert [exchange.generated for exchange in served.exchanges] == one_process
    assert served.engine.log.read_text().count("Rearranged experts") >= 3


def test_the_activations_of_every_request_are_logical_and_exact(served):
    check(served, served.exchanges)


def test_the_fullest_rank_loads_at_least_15_percent_less_than_by_vllms_choice(served):
    metric = served.engine.metric
    chosen, stock = (metric(f"{contract.METRIC_FULLEST_RANK}_sum", **by) for by in (BALANCED, VLLM))
    assert chosen <= 0.85 * stock, (chosen, stock)
    assert metric(f"{contract.METRIC_RANKS}_sum", **BALANCED) < metric(f"{contract.METRIC_RANKS}_sum", **VLLM)


def test_what_the_metrics_say_is_what_the_kernels_loaded(served):
    """The kernels' own word, written down by ``hack/vllm/cpu``: nothing of ours counts there."""
    metric = served.engine.metric
    steps = int(metric(f"{contract.METRIC_FULLEST_RANK}_count", **BALANCED))
    calls = served.calls()
    assert len(calls) == steps * LAYERS
    fullest, every = (
        metric(f"{name}_sum", **BALANCED) for name in (contract.METRIC_FULLEST_RANK, contract.METRIC_RANKS)
    )
    assert sum(map(max, calls)) == pytest.approx(fullest * LAYERS)
    assert sum(map(sum, calls)) == pytest.approx(every * LAYERS)


def test_a_step_is_that_of_all_ranks(served):
    metric = served.engine.metric
    assert metric(f"{contract.METRIC_BATCH_SIZE}_sum") == REQUESTS * TOKENS, "one rank tells of each step"
    union = metric(f"{contract.METRIC_ACTIVE_EXPERTS}_sum")
    loaded = metric(f"{contract.METRIC_RANKS}_sum", **BALANCED)
    # parts of the same tokens are filled up to one length: what fills them is loaded, and does not count
    filled = 0.01 * loaded if served.layout == "both" else 1e-6 * loaded
    assert loaded - filled <= union <= loaded + 1e-6 * loaded


def test_prompts_that_it_computes_itself_give_the_same_tokens_and_counts(served, one_process):
    exchanges = serve(served.pair)
    assert [exchange.generated for exchange in exchanges] == one_process
    check(served, exchanges)


def test_a_rank_that_reads_a_rearrangement_otherwise_ends_the_engine_and_no_token_is_served(
    served, background
):
    """Last of a layout: afterwards the engine is gone."""
    ends_where_maps_differ(served, background)


@pytest.mark.long
def test_where_one_rank_cannot_count_none_does_and_all_serve(
    prefill, one_process, environment, plugin, tmp_path
):
    engine = Engine("blind", setup_of("data", plugin, tmp_path / "experts"), environment, tmp_path)
    (engine.gate / "capture").touch()
    with serving(engine):
        pair = Pair(prefill.url, engine.url, NAME)
        assert [exchange.generated for exchange in serve(pair)] == one_process
        records = f"{contract.METRIC_RECORDS}_total"
        assert engine.metric(records) == engine.metric(records, result="unavailable") == REQUESTS
        assert engine.log.read_text().count("serving without counts of experts from now on: no room") == len(
            ("0", "1")
        )


@pytest.mark.long
def test_without_replicas_ranks_with_requests_of_their_own_prefill_and_decode(
    one_process, reference, environment, plugin, tmp_path, near_ties
):
    """The layout of a decode pool by default: nothing to choose, every expert in one place; and prefill engines of the same kind."""
    arguments = (*SPLIT["data"], "--enable-expert-parallel")
    setup = Setup(
        role="prefill",
        lease=LEASE,
        plugin=plugin,
        max_len=512,
        arguments=arguments,
        env={"ELDR_CPU_EXPERT_PARALLEL": "1"},
    )
    prefill = Engine("prefill-data", setup, environment, tmp_path)
    decode = Engine("decode-data", replace(setup, role="decode"), environment, tmp_path)
    with serving(prefill, decode):
        pair = Pair(prefill.url, decode.url, NAME)
        with ThreadPoolExecutor(8) as pool:
            exchanges = list(pool.map(lambda prompt: pair.ask(prompt, 24), PROMPTS))
        assert [exchange.generated for exchange in exchanges] == [ids[:24] for ids in one_process]
        check(Served(decode, pair, exchanges, tmp_path, reference, near_ties), exchanges)
        for engine in (prefill, decode):
            counted = [engine.metric(f"{contract.METRIC_RECORDS}_total", engine=rank) for rank in ("0", "1")]
            assert all(counted), f"{engine.name}: a rank had no request: {counted}"
            assert (
                sum(counted) == engine.metric(f"{contract.METRIC_RECORDS}_total", result="exact") == REQUESTS
            )


@pytest.mark.long
def test_ranks_with_requests_of_their_own_that_draft_by_mtp_heads(environment, plugin, tmp_path, near_ties):
    model = written(environment, "glm4moe", tmp_path / "model", "--heads", "1")
    drafts = ("--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": 2}))
    setup = Setup(
        role="prefill",
        model=model,
        lease=LEASE,
        plugin=plugin,
        mode=asked_mode(),
        max_len=512,
        arguments=(*SPLIT["data"], "--enable-expert-parallel", *drafts, "--kv-cache-memory-bytes", "3M"),
        env={"ELDR_CPU_EXPERT_PARALLEL": "1"},
    )
    prefill = Engine("prefill-mtp", setup, environment, tmp_path)
    decode = Engine("decode-mtp", replace(setup, role="decode"), environment, tmp_path)
    with serving(prefill, decode), ReferenceClient(environment, model) as reference:
        pair = Pair(prefill.url, decode.url, NAME)
        with ThreadPoolExecutor(8) as pool:
            exchanges = list(pool.map(lambda prompt: pair.ask(prompt, 24), PROMPTS))
        check(Served(decode, pair, exchanges, tmp_path, reference, near_ties), exchanges)
        for engine in (prefill, decode):
            assert engine.metric(f"{contract.METRIC_RECORDS}_total", result="exact") == REQUESTS
        fed, requests = f"{contract.METRIC_FED_TOKENS}_total", f"{contract.METRIC_BATCH_SIZE}_sum"
        for rank in ("0", "1"):
            wait_for(
                lambda rank=rank: decode.metric(fed, engine=rank) > 2 * decode.metric(requests, engine=rank),
                f"rank {rank} to report its drafts", 60, lambda: (decode.metric(fed), decode.metric(requests)),
            )  # fmt: skip


@pytest.mark.long  # tests/vllm/test_failures.py has engines that are killed
@pytest.mark.parametrize(
    ("when", "layout", "part"), [("before a token", "tensor", "TP1"), ("decoding", "data", "_EP1")]
)
def test_routers_do_what_they_do_for_a_dead_engine_where_a_rank_is_killed(
    prefill, one_process, environment, plugin, tmp_path, background, when, layout, part
):
    """Before a first token vLLM 0.32 may tell nobody: its server shuts down, and waits for answers that never come."""
    setup = replace(setup_of(layout, plugin, tmp_path / "experts"), children=())
    ranks = Engine("ranks-killed", setup, environment, tmp_path)
    other = Engine(
        "other", Setup(role="decode", lease=LEASE, plugin=plugin, max_len=512), environment, tmp_path
    )
    engines = {"p": prefill.url, "d-ranks": ranks.url}
    with (
        serving(ranks, other),
        router(tmp_path, engines, model=NAME, lease_seconds=LEASE) as process,
    ):
        if when == "before a token":
            ranks.pause("Worker")  # the scheduler takes what it is asked
        streams = [
            background.submit(ask, process.url, Case("s", COMPLETIONS, PROMPTS[i], 400), stream=True)
            for i in (0, 1)
        ]
        # before the other engine is known: neither must get there
        wait_for(lambda: process.loads()["d-ranks"] == 2, "both to be placed", 60)
        if when == "decoding":
            wait_for(lambda: ranks.metric("vllm:generation_tokens_total") > 20, "streams to have begun", 60)
        process.configure(engines | {"d-other": other.url})
        wait_for(lambda: "d-other" in process.loads(), "the router to know the other engine", 60)
        ranks.kill_part(part)
        ranks.resume()
        for stream, expected in zip(streams, one_process[:2], strict=True):
            answer = stream.result(120)
            assert answer.outcome in {"ok", "error"}, "a stream that breaks says so"
            shared = min(len(answer.ids), TOKENS)
            assert answer.ids[:shared] == expected[:shared]
            assert answer.outcome == "error" or len(answer.ids) == 400
        for prompt, expected in zip(PROMPTS[:4], one_process[:4], strict=True):
            answer = ask(process.url, Case("a", COMPLETIONS, prompt, 12), stream=False)
            assert (answer.outcome, answer.ids) == ("ok", expected[:12])
        wait_for(lambda: not process.in_flight(), "nothing in flight", 60, process.loads)
        wait_for(lambda: not ranks.running(), "the engine to end", 90, ranks.tail)
