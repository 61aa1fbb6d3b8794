"""Decode engines that keep their own limit: one that is full has read nothing, so the prefill result goes to the next one."""

import asyncio
import json

import pytest

from tests.fakes.engines import CLIENT_ERROR, TOKENS, Exchange, answer, decode, full
from tests.router.conftest import until

BUSY = answer(429, {"error": {"message": "busy", "code": 429}})


def prefills(router) -> int:
    return sum(len(engine.requests) for engine in router.engines.values() if engine.role == "prefill")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_result_goes_to_an_engine_that_has_room(start, stream):
    async with start("p0", "d0", "d1") as router:
        for name in ("d0", "d1"):
            router[name].script.append(full)
        for _ in range(2):
            router["d0"].script, router["d1"].script = router["d1"].script, router["d0"].script
            got = await router.post(stream=stream)
            assert got.status_code == 200
            assert all(token in got.text for token in TOKENS)
        assert prefills(router) == 2
        assert router.counter("retries", leg="decode", cause="full") == 2
        assert router.counter("requests", outcome="ok") == 2
        state = await router.state()
        assert all(engine["healthy"] for engine in state["decode"]), "it is full, not ill"


async def test_a_request_waits_with_its_result_until_an_engine_has_room(start):
    async with start("p0", "d0", "d1") as router:
        for name in ("d0", "d1"):
            router[name].script += [full] * 3
        got = await router.post(stream=True)
        assert got.status_code == 200
        assert prefills(router) == 1
        assert router.counter("retries", leg="decode", cause="full") == 6
        assert len(router["d0"].requests + router["d1"].requests) == 7, "asked until one of them answers"
        assert not router.app.services.waiting


async def test_a_429_that_does_not_say_what_was_read_uses_the_result_up(start):
    async with start("p0", "d0", "d1") as router:
        router["d0"].script.append(BUSY)
        router["d1"].script.append(BUSY)
        for _ in range(2):
            assert (await router.post()).status_code == 200
        assert prefills(router) == 4
        assert router.counter("retries", leg="decode", cause="busy") == 2


@pytest.mark.slow
async def test_nobody_waits_longer_than_the_lease(start):
    async with start("p0", "d0", lease_seconds=2.0) as router:  # usable for one second
        router["d0"].script += [full] * 1000
        got = await router.post()
        assert got.status_code == 429
        assert "lease of the prefill result" in got.json()["error"]["message"]
        assert got.headers["retry-after"] == "1"
        assert not router["d0"].freed, "its blocks are free by then"
        router["d0"].script.clear()
        assert (await router.post()).status_code == 200


async def test_a_client_that_leaves_while_it_waits_has_its_result_freed(start):
    async with start("p0", "d0") as router:
        router["d0"].script += [full] * 1000
        task = asyncio.create_task(router.post())
        await until(
            lambda: router.app.services.registry.waiting == 1, "its place to be reserved while it waits"
        )
        task.cancel()
        await until(lambda: router["d0"].freed, "its blocks to be freed")
        await until(router.idle, "every count to return")
        assert not router.app.services.waiting


async def test_a_request_without_a_result_is_told_to_come_back(start):
    async with start("p0", "d0", "d1") as router:
        for name in ("d0", "d1"):
            router[name].script.append(full)
        got = await router.post(n=2)
        assert (got.status_code, got.headers["retry-after"]) == (429, "1")
        assert got.json()["error"]["message"] == "every decode engine is full; retry later"
        assert prefills(router) == 0


async def test_an_engine_that_fails_after_another_one_declined_costs_an_attempt(start):
    async with start("p0", "d0", "d1") as router:
        for name in ("d0", "d1"):
            router[name].script += [full, answer(500, CLIENT_ERROR)]
        assert (await router.post()).status_code == 200
        assert prefills(router) == 3
        assert router.counter("retries", leg="decode") == 4


async def test_engines_learn_what_they_judge_by_and_clients_have_no_word_in_it(start):
    seen = {}

    async def heard(exchange: Exchange):
        seen.update(exchange.seen.headers)
        await exchange.stream_head("x-eldr-load: 3/8\r\nx-other: kept\r\n")
        await exchange.event(json.dumps({"choices": [{"index": 0, "text": "a"}]}))
        await exchange.stream_end()

    async with start("p0", "d0", max_in_flight=8) as router:
        router["d0"].script.append(heard)
        headers = {
            "x-eldr-sequences": "0", "x-eldr-limit": "999", "x-eldr-full": "1/1", "x-eldr-anything": "x", "x-eldr-log": "off",
            "x-session-id": "s",
        }  # fmt: skip
        got = await router.post(stream=True, headers=headers)
        assert {name: value for name, value in seen.items() if name.startswith("x-eldr")} == {
            "x-eldr-sequences": "1",
            "x-eldr-limit": "8",
        }
        assert seen["x-session-id"] == "s"
        assert (got.headers["x-eldr-decode"], got.headers["x-other"]) == ("d0", "kept")
        assert "x-eldr-load" not in got.headers
        (sent,) = router["p0"].requests
        assert not [name for name in sent.headers if name.startswith("x-eldr")]
        router["d0"].script.append(decode)
        await router.post(n=3)
        assert router["d0"].requests[-1].headers["x-eldr-sequences"] == "3"
