"""Requests that fit no decode engine's KV cache: 429 or 400 with the reason, and their blocks are freed."""

import asyncio

from eldr_router.placement.engine_metrics import EngineMetricsPoller
from tests.fakes.engines import answer, hang, slow
from tests.router.conftest import engines, serving, until
from tests.router.test_explain import ask

CACHE = 'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="625"} 1.0\n'


async def text(exchange):
    body = CACHE.encode()
    await exchange.send(b"HTTP/1.1 200 X\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


def long(tokens: int):
    """A prefill engine's answer to a prompt of so many tokens."""

    async def behaviour(exchange):
        params = {"do_remote_prefill": True, "remote_request_id": f"long-{tokens}-{exchange.seen.id}"}
        await exchange.json({"usage": {"prompt_tokens": tokens}, "kv_transfer_params": params})

    return behaviour


async def know(router) -> None:
    """Let the router ask both engines how much KV they hold."""
    for name in ("d0", "d1"):
        router[name].metrics = text
    services = router.app.services
    steps = EngineMetricsPoller(services.registry, services.pool, services.placer.locality)
    await steps.step()
    await steps.step()
    assert {one["kv_tokens"] for one in (await router.state())["decode"]} == {10_000}


async def expect_long(router, prompts: int, release) -> None:
    """Let the next requests be long, and the first answer of each decode engine take until it is released."""
    await know(router)
    router.play(slow(release))
    router["p0"].script += [long(6000)] * prompts


async def test_a_router_that_starts_asks_all_engines_at_once(tmp_path, monkeypatch):
    """Until it knows their KV caches, long requests go anywhere."""
    monkeypatch.setattr("eldr_router.placement.engine_metrics._PERIOD", 1e6)
    async with engines("p0", "d0", "d1") as made:
        for engine in made[1:]:
            engine.metrics = text
        async with serving(made, tmp_path) as router:

            async def known():
                return {one["kv_tokens"] for one in (await router.state())["decode"]}

            while await known() != {10_000}:
                await asyncio.sleep(0.05)


async def test_engines_are_not_asked_in_vain_while_they_are_not_well(start):
    """Each would hold the others up for seconds, whose figures get too old to be believed meanwhile."""
    async with start("p0", "d0", "d1") as router:
        services = router.app.services
        ill, _ = services.registry.endpoints("decode")
        ill.health.probed(well=False)
        router["d0"].metrics, router["d1"].metrics = hang, text
        steps = EngineMetricsPoller(services.registry, services.pool, services.placer.locality)
        async with asyncio.timeout(2.0):
            await steps.step()
            await steps.step()
        assert [one["kv_tokens"] for one in (await router.state())["decode"]] == [None, 10_000]


async def test_a_long_prompt_goes_elsewhere_or_gets_429(start):
    release = asyncio.Event()
    async with start("p0", "d0", "d1", policy="JSQ") as router:
        await expect_long(router, 3, release)
        async with router.stream() as first, router.stream() as second:
            assert {first.headers["x-eldr-decode"], second.headers["x-eldr-decode"]} == {"d0", "d1"}
            held = {one["name"]: one["kv_held"] for one in (await router.state())["decode"]}
            assert held == {"d0": 6016, "d1": 6016}, "prompt, and the usual limit of a completion"
            refused = await router.post()
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert "about 6016 tokens of KV" in refused.json()["error"]["message"]
            assert router.counter("requests", outcome="overloaded") == 1
            await until(lambda: router.counter("freed_results") == 1, "its blocks to be freed")
            assert (await router.post()).status_code == 200, "a short one is served"
            release.set()
        await until(router.idle, "the streams to end")
        router["p0"].script.append(long(6000))
        assert (await router.post()).status_code == 200


async def test_a_dry_run_counts_the_prompt(start):
    release = asyncio.Event()
    async with start("p0", "d0", "d1", policy="JSQ") as router:
        await expect_long(router, 2, release)
        async with router.stream() as first:
            busy, free = sorted(("d0", "d1"), key=lambda name: name != first.headers["x-eldr-decode"])
            got = (await ask(router, {"prompt_tokens": 8000, "max_tokens": 8})).json()
            assert (got["choice"], got["kv_expected"]) == (free, 8008)
            rows = {
                one["name"]: (one["kv_held"], one["kv_tokens"], one["eligible"]) for one in got["engines"]
            }
            assert rows == {busy: (6016, 10_000, False), free: (0, 10_000, True)}
            never = (await ask(router, {"prompt_tokens": 10_000})).json()
            assert never["error"]["code"] == "context_length_exceeded"
            async with router.stream():
                full = (await ask(router, {"prompt_tokens": 8000})).json()
                assert (full["choice"], full["error"]["status"]) == (None, 429)
            release.set()
        for wrong in (0, "8", True):
            assert (await ask(router, {"prompt_tokens": wrong})).status_code == 400


async def test_a_prompt_that_can_never_fit_gets_400(start):
    async with start("p0", "d0", "d1", policy="JSQ") as router:
        await know(router)
        router["p0"].script.append(long(10_000))
        refused = await router.post()
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert "retry-after" not in refused.headers
        await until(lambda: router.counter("freed_results") == 1, "its blocks to be freed")


async def test_a_cache_that_is_not_told_refuses_nobody(start):
    async with start("p0", "d0", policy="JSQ") as router:
        router["d0"].metrics = answer(200, {})
        router["p0"].script.append(long(10**9))
        assert (await router.post()).status_code == 200
