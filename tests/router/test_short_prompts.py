"""Short prompts go whole to a decode engine, where a threshold says so."""

from functools import partial

import pytest

from eldr_router.engines.kv_room import KvRoom
from tests.fakes.engines import prefill


@pytest.fixture
def prompts(start):
    return lambda least: start("p0", "d0", min_prefill_tokens=least)


def asked(router):
    return [len(router[name].requests) for name in ("p0", "d0")]


async def test_a_prompt_below_the_threshold_goes_whole_to_a_decode_engine(prompts):
    async with prompts(100) as router:
        assert (await router.post(prompt="word " * 20)).status_code == 200
        assert asked(router) == [0, 1]
        assert "kv_transfer_params" not in router["d0"].requests[0].body
        assert router.counter("whole", reason="short") == 1
        assert (await router.post(prompt="word " * 200)).status_code == 200
        assert asked(router) == [1, 2]


async def test_tokens_are_expected_as_lately_prompts_had(prompts):
    """In some languages each byte is a token, so that a short text has many."""
    async with prompts(100) as router:
        for _ in range(40):
            router["p0"].script.append(partial(prefill, usage={"prompt_tokens": 420}))
            await router.post(prompt="x" * 400)
        assert asked(router) == [40, 40]
        await router.post(prompt="x" * 150)
        assert asked(router) == [41, 41]


async def test_an_estimate_that_is_too_low_heals(prompts):
    async with prompts(100) as router:
        contexts = router.app.services.registry.kv_room
        for _ in range(200):
            contexts.learn(40_000, 2_400)
        for _ in range(200):
            await router.post(prompt="x" * 800)
        assert len(router["p0"].requests) > 0


def test_bodies_with_images_teach_nothing_of_texts():
    contexts = KvRoom()
    for _ in range(100):
        contexts.learn(1 << 20, 300)
    assert contexts.expected(400) == 100
