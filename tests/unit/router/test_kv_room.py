"""KV caches: what engines tell of them, what requests are expected to hold, which engines have room, what heals."""

import contextlib
import tracemalloc

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from eldr.contract import METRIC_BATCH_SIZE, METRIC_INFO, ROLE_DECODE
from eldr.core.step_time import StepTime
from eldr.core.step_time_fit import Learned
from eldr.sim.telemetry import EngineMetrics
from eldr_router.api.answers import prompt_tokens
from eldr_router.engines.endpoint import Occupancy
from eldr_router.engines.exposition import (
    Sums,
    read_answers,
    read_cache,
    read_steps,
    read_sums,
    read_untested,
)
from eldr_router.engines.kv_room import Answers, KvCache, KvDemand, KvRoom
from eldr_router.engines.load import Load
from eldr_router.engines.registry import Registry
from eldr_router.engines.spec import EndpointSpec
from eldr_router.http.errors import RouterError
from eldr_router.placement.placer import Placer
from eldr_router.placement.signature import NO_SIGNATURE
from eldr_router.placement.table import RoutingDocument, make_table

JSQ = make_table(RoutingDocument(policy="JSQ"), epoch=1, active=None, centroids=None)
SMALL = KvCache(10_000, 10_000)


def test_the_cache_of_the_engine_simulator_is_read():
    metrics = EngineMetrics("m", 128, kv_blocks=100, block_size=16)
    assert read_answers(metrics.render()) is None, "nothing has ended"
    metrics.kv_usage.set(0.25)
    metrics.generation_tokens.inc(30)
    metrics.finished("length")
    metrics.finished("stop")
    assert read_cache(metrics.render()) == KvCache(1600, 1600, 0.25)
    assert read_answers(metrics.render()) == Answers(30, 2)
    assert read_cache(EngineMetrics("m", 128).render()) is None


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({"kv_cache_size_tokens": "3000", "num_gpu_blocks": "500", "block_size": "16"}, KvCache(6000, 3000)),
        ({"kv_cache_size_tokens": "None", "num_gpu_blocks": "500", "block_size": "16"}, KvCache(8000, 4000)),
        ({"num_gpu_blocks": "500", "block_size": "16"}, KvCache(8000, 4000)),
        ({"num_gpu_blocks": "None", "block_size": "16"}, None),
        ({"num_gpu_blocks": "0", "block_size": "16"}, None),
        ({"kv_cache_size_tokens": "1" + "0" * 400}, None),
        ({"num_gpu_blocks": "9" * 20, "block_size": "9" * 20}, None),
    ],
)
def test_ranks_tell_their_own_tokens_and_the_blocks_of_all(labels, found):
    registry = CollectorRegistry()
    info = Gauge("vllm:cache_config_info", "x", ["engine", "odd", *labels], registry=registry)
    for rank in "01":
        info.labels(rank, 'a"} 1\n{', *labels.values()).set(1)
    assert read_cache(generate_latest(registry)) == found


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}, 7),
        ({"input_tokens": 7, "cache_read_input_tokens": 3}, 10),
        ({"prompt_tokens": True}, 0),
        ({"prompt_tokens": -5}, 0),
        ({"prompt_tokens": 1 << 62, "input_tokens": 1 << 62}, 1 << 40),
        ("no", 0),
    ],
)
def test_prefill_engines_tell_the_prompts_tokens(usage, tokens):
    assert prompt_tokens({"usage": usage}) == tokens


def test_a_request_counts_with_an_answer_of_the_usual_length_and_its_own_limit_at_most():
    kv_room = KvRoom()
    assert kv_room.demand(1000, None, 1) == KvDemand(1000, 1256)
    assert kv_room.demand(1000, 16, 2) == KvDemand(1000, 1032)
    for tokens in range(0, 40_000, 1000):  # ten answers of a hundred tokens, again and again
        kv_room.observe("d0", Answers(tokens, tokens // 100), None)
    assert kv_room.demand(1000, None, 1).size == pytest.approx(1100, abs=5)
    assert kv_room.demand(1000, 16, 1).size == 1016
    kv_room.observe("d0", Answers(0, 0), None)  # it has started anew
    kv_room.observe("d0", Answers(1000, 10), None)
    assert kv_room.mean_answer == pytest.approx(100, abs=5)


def test_counters_that_are_no_counters_are_not_read():
    text = b"vllm:generation_tokens_total %b\nvllm:request_success_total 5\n"
    assert read_answers(text % b"1e308") is None
    assert read_answers(text % b"7") == Answers(7, 5)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", [b"a", b'le="', b'le="1",', b"} 1", b"} ", b'a="', b',a="\\'])
def test_metrics_of_any_form_are_searched_in_time(piece):
    for name in ("vllm:cache_config_info", f"{METRIC_BATCH_SIZE}_bucket", METRIC_INFO):
        start = f"{name}{{".encode()
        line = start + piece * (300_000 // len(piece))
        for text in (line, line + b"} 1"):
            read_cache(text)
            read_answers(text)
            read_untested(text)
            assert read_sums(text) is None
            assert read_steps(text, Sums()) is None


@pytest.mark.parametrize("piece", [b"a", b"\\\\", b"a\\\\"])
def test_long_labels_take_little_memory(piece):
    text = b'vllm:cache_config_info{a="%b",num_gpu_blocks="8",block_size="16"} 1' % (
        piece * (1_000_000 // len(piece))
    )
    tracemalloc.start()
    try:
        assert read_cache(text) == KvCache(128, 128)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(text)
    finally:
        tracemalloc.stop()


def test_a_prompt_that_nobody_told_counts_as_the_mean_one():
    kv_room = KvRoom()
    assert kv_room.demand(0, 16, 1) == KvDemand(0, 0)
    kv_room.placed(KvDemand(1000, 1200))
    assert kv_room.demand(0, 16, 2) == KvDemand(0, 2400)


def room(kv_room, size, *held, cache=SMALL):
    return kv_room.room(KvDemand(size, size), [cache] * len(held), held)


def test_a_request_goes_where_its_tokens_fit():
    kv_room = KvRoom()
    assert room(kv_room, 4000, 0, 5500, 5501) == [0, 1]
    assert room(kv_room, 9999, 0, 9999) == [0], "an engine without requests takes whatever it can hold"
    assert kv_room.room(KvDemand(4000, 4000), [None, SMALL], [10**9, 9000]) == [0], "nothing is known of one"
    with pytest.raises(RouterError, match=r"about 4000 tokens of KV, .* has room for more than 3500") as full:
        room(kv_room, 4000, 6000, 9000)
    assert (full.value.status, full.value.code, full.value.retry_after) == (429, "overloaded", 1)
    with pytest.raises(RouterError, match=r"the prompt has 10000 tokens, .* holds 10000 at most") as never:
        room(kv_room, 10_000, 0, 0)
    assert (never.value.status, never.value.retry_after) == (400, None), "to try again brings nothing"
    assert kv_room.room(KvDemand(10_000, 10_000), [SMALL, None], [0, 0]) == [1]


def test_before_a_prefill_only_full_caches_refuse():
    kv_room = KvRoom()
    assert room(kv_room, 0, 10_000, 10_001) == [0]
    assert kv_room.room(KvDemand(0, 6000), [SMALL], [9000]) == [0], "its length is not known"
    with pytest.raises(RouterError, match="KV caches of all decode engines are full; retry later"):
        room(kv_room, 0, 10_001, 10_001)


def test_a_short_request_waits_at_an_engine_until_another_ends():
    kv_room = KvRoom()
    assert room(kv_room, 500, 9999, 10_000, 10_001) == [0, 1], "vLLM lets it in soon"
    assert room(kv_room, 600, 9600, 9601) == [0], "5 % of the cache, and a quarter of what is free"
    with pytest.raises(RouterError, match=r"about 501 tokens .* room for more than 500;"):
        room(kv_room, 501, 10_000)


def test_what_was_placed_and_what_ended_since_the_report_corrects_what_is_free():
    kv_room = KvRoom()
    half = KvCache(10_000, 10_000, used=0.5, expected=6000)
    assert kv_room.longest([half], [6000]) == [4500]
    assert kv_room.longest([half], [7000]) == [3500], "placed since"
    assert kv_room.longest([half], [2000]) == [8500], "ended since"
    assert room(kv_room, 3500, 7000, cache=half) == [0]
    with pytest.raises(RouterError, match="more than 3500"):
        room(kv_room, 3501, 7000, cache=half)


def test_what_engines_hold_of_what_is_expected_is_learned():
    kv_room = KvRoom()
    kv_room.observe("d0", None, SMALL._replace(expected=9000))
    assert kv_room.share == 1.0, "it does not report what is in use"
    shared = KvCache(100_000, 100_000, used=0.05, expected=200_000)
    for _ in range(50):  # fifty requests that share nearly all of a prompt of 4000 tokens
        kv_room.observe("d0", None, shared)
    assert kv_room.share == pytest.approx(0.025, abs=0.001)
    assert room(kv_room, 4000, *[200_000 + 4000 * more for more in (0, 500, 1000)], cache=shared) == [0, 1]
    for _ in range(100):
        kv_room.observe("d0", None, KvCache(10_000, 10_000, used=1.0, expected=100))
    assert kv_room.share == 1.0, "what requests of others hold does not make ours larger"


def test_requests_that_were_not_pulled_yet_do_not_open_an_engine_to_all():
    kv_room = KvRoom()
    fresh = KvCache(10_000, 10_000, used=0.0, expected=5000)
    kv_room.observe("d0", None, fresh)
    assert kv_room.share > 0.5
    with pytest.raises(RouterError, match="about 6000 tokens"):
        room(kv_room, 6000, 14_000, cache=fresh)


@pytest.fixture
def registry():
    registry = Registry(lambda: 100.0)
    registry.replace(ROLE_DECODE, [EndpointSpec(ROLE_DECODE, f"d{i}", "h", i, i) for i in range(2)])
    return registry


@pytest.mark.parametrize(
    ("large", "status"), [(KvCache(9000, 9000), 400), (KvCache(20_000, 20_000), 429), (None, 429)]
)
def test_a_prompt_that_only_an_engine_without_a_place_can_hold_may_come_again(registry, large, status):
    first, second = registry.endpoints(ROLE_DECODE)
    first.cache, second.cache = SMALL, large
    leases = [Occupancy(second, 1) for _ in range(JSQ.max_in_flight)]
    with pytest.raises(RouterError) as refused:
        place(registry, 15_000)
    assert refused.value.status == status
    del leases


def place(registry, *sizes):
    placer = Placer(registry, np.random.default_rng(0))
    return [placer.place(JSQ, NO_SIGNATURE, demand=KvDemand(size, size)) for size in sizes]


@pytest.mark.parametrize(("per_token", "other"), [(0.0, 2), (1e-6, 3)])
def test_a_long_context_is_load_once_it_is_known_what_it_costs(registry, per_token, other):
    first, second = registry.endpoints(ROLE_DECODE)
    first.cache = second.cache = KvCache(20_000, 20_000)
    placer = Placer(registry, np.random.default_rng(0))
    step_times = placer.locality.step_times
    pool = StepTime(0.01, 1e-4, 1e-4, 64, per_token)
    for steps in (0, 100):
        step_times.observe("d0", Sums(*(steps * each for each in (1, 0.02, 20, 10, 10, 30_000))), 0.0)
    step_times.take(Learned({}, pool, 1e-6, 0.01, 10, 3000), 64)
    assert step_times.token_cost == pytest.approx(per_token / 3e-4)
    chosen = [placer.place(JSQ, NO_SIGNATURE, demand=KvDemand(size, size)) for size in (8000, 100, 100, 100)]
    assert [one.endpoint for one in chosen].count(chosen[0].endpoint) == 4 - other
    del chosen


def test_what_others_hold_counts_as_much_as_this_routers_requests_do_in_the_mean(registry):
    first, second = registry.endpoints(ROLE_DECODE)
    first.cache = second.cache = SMALL
    first.report(Load(3, 8), 100.0)
    assert registry.expected_kv_tokens(first) == 0, "nobody knows what requests hold"
    assert {one.endpoint.name for one in place(registry, 3000, 3000)} == {"d1"}
    assert [registry.expected_kv_tokens(first), registry.expected_kv_tokens(second)] == [9000, 6000]
    with pytest.raises(RouterError, match="about 5000 tokens"):
        place(registry, 5000)
    first.report(Load(0, 8), 100.0)
    assert registry.expected_kv_tokens(first) == 0


def test_short_requests_are_served_beside_long_ones_that_come_again():
    """One long request runs at a time, two others come again each second, and five short ones come."""
    registry = Registry(lambda: 0.0)
    registry.replace(ROLE_DECODE, [EndpointSpec(ROLE_DECODE, "d0", "d", 1, 0)])
    registry.endpoints(ROLE_DECODE)[0].cache = SMALL
    long, served, longs = None, 0, 0
    for second in range(300):
        if long is not None and second % 5 == 0:
            long.occupancy.release()
            long = None
        for _ in range(2):
            with contextlib.suppress(RouterError):
                (long,), longs = place(registry, 6000), longs + 1
        for _ in range(5):
            with contextlib.suppress(RouterError):
                place(registry, 500)[0].occupancy.release()
                served += 1
    assert (longs, served) == (60, 1500)
