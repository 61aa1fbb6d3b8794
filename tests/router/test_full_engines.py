"""Decode engines that keep their own limit: one that is full has read nothing, so the prefill result goes to the next one."""

import asyncio
import json
from functools import partial

import pytest

from eldr_router.engines.kv_room import KvCache
from tests.fakes.engines import CLIENT_ERROR, TOKENS, Exchange, answer, prefill, slow
from tests.router.conftest import signature, until

BUSY = answer(429, {"error": {"message": "busy", "code": 429}})


def prefills(router) -> int:
    return sum(len(engine.requests) for engine in router.engines.values() if engine.role == "prefill")


async def prefill_after(event: asyncio.Event, exchange: Exchange, **more: object) -> None:
    await event.wait()
    await prefill(exchange, **more)


def fill(router, *names, limit=3) -> None:
    """Let requests of others take all places of some engines; this router does not know it yet."""
    for name in names:
        router[name].limit = router[name].in_flight = limit


@pytest.mark.parametrize("stream", [False, True])
async def test_the_result_goes_to_an_engine_that_has_room(start, stream):
    async with start("p0", "d0", "d1") as router:
        router["d1"].limit = 3
        fill(router, "d0")
        for _ in range(8):
            got = await router.post(stream=stream)
            assert (got.status_code, got.headers["x-eldr-decode"]) == (200, "d1")
            assert all(token in got.text for token in TOKENS)
        assert prefills(router) == 8
        assert router.counter("retries", leg="decode", cause="full") == 1, (
            "it is asked again only if it reports room"
        )
        assert router.counter("requests", outcome="ok") == 8
        state = await router.state()
        assert all(engine["healthy"] for engine in state["decode"]), "it is full, not ill"


async def test_a_result_is_placed_once_there_is_a_report(start):
    async with start("p0", "d0", "d1") as router:
        fill(router, "d0", "d1")
        asking = asyncio.ensure_future(router.post(stream=True))
        await until(lambda: router.counter("retries", leg="decode", cause="full") == 2, "both to decline")
        asked = len(router["d0"].requests + router["d1"].requests)
        router["d1"].in_flight = 0
        await asyncio.sleep(0.6)  # two ticks: nobody told the router
        assert len(router["d0"].requests + router["d1"].requests) == asked == 2
        await router.poll()
        got = await asking
        assert (got.status_code, got.headers["x-eldr-decode"]) == (200, "d1")
        assert prefills(router) == 1
        assert not router.app.services.waiting


@pytest.mark.usefixtures("polled")
async def test_no_report_is_old_while_there_is_traffic(start):
    async with start("p0", "d0", "d1") as router:
        for engine in router.engines.values():
            engine.limit = 8
        registry = router.app.services.registry
        known = registry.endpoints("decode") + registry.endpoints("prefill")
        await until(lambda: all(e.load for e in known), "all to report")
        release = asyncio.Event()
        router.play(slow(release))
        async with router.stream():
            router["d0"].in_flight += 5
            router["p0"].in_flight += 2
            await until(lambda: sum(registry.totals(known)) == 8, "what passes the router to be seen")
        release.set()
        router["d0"].in_flight = router["p0"].in_flight = 0
        await until(lambda: not sum(registry.totals(known)), "its end to be seen")


async def test_answers_report_too(start):
    async with start("p0", "d0") as router:
        router["p0"].limit, router["d0"].limit = 8, 8
        (engine,), (source,) = (
            router.app.services.registry.endpoints(role) for role in ("decode", "prefill")
        )
        router["d0"].in_flight, router["p0"].in_flight = 4, 2
        for stream in (True, False):
            engine.report(None, 0.0)
            assert (await router.post(stream=stream)).status_code == 200
            await until(router.idle, "it to be over")
            registry = router.app.services.registry
            assert registry.totals([engine, source]) == [4, 2]
        assert router["d0"].polls == 0


async def test_a_429_that_does_not_say_what_was_read_uses_the_result_up(start):
    async with start("p0", "d0", "d1") as router:
        router.play(BUSY)
        for _ in range(2):
            assert (await router.post()).status_code == 200
        assert prefills(router) == 4
        assert router.counter("retries", leg="decode", cause="rate_limited") == 2


async def test_a_prompt_that_fits_no_engine_waits_for_none(start):
    """An engine is full, and another one has a place, but no cache that is large enough."""
    async with start("p0", "d0", "d1") as router:
        for endpoint in router.app.services.registry.endpoints("decode"):
            endpoint.cache = KvCache(100, 100)
        fill(router, "d0")
        await router.poll()
        router["p0"].script.append(partial(prefill, usage={"prompt_tokens": 5000}))
        got = await router.post()
        assert (got.status_code, got.json()["error"]["code"]) == (400, "context_length_exceeded")
        await until(lambda: router["d0"].freed or router["d1"].freed, "its result to be freed")


async def test_results_that_wait_are_placed_in_the_order_of_their_arrival_before_whoever_comes_later(start):
    async with start("p0", "d0", max_in_flight=4) as router:
        ends = [asyncio.Event() for _ in range(4)]
        router["p0"].script += [partial(prefill_after, end) for end in ends]
        asking = []
        for at in range(4):
            asking.append(asyncio.ensure_future(router.post(prompt=f"waits {at}")))
            await until(lambda n=at: prefills(router) == n + 1, "its prefill")
        fill(router, "d0", limit=4)
        for at, end in enumerate(ends):
            end.set()
            await until(lambda n=at: len(router.app.services.queue._results) == n + 1, "it to wait")
        assert (await router.post(prompt="later")).status_code == 429, "their places are reserved"
        router["d0"].in_flight = 3  # one place, for one after the other
        await router.poll()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
        served = [seen.body["prompt"] for seen in router["d0"].requests if not seen.declined]
        assert served == [f"waits {at}" for at in range(4)]
        assert prefills(router) == 4


async def test_a_result_that_waits_goes_to_an_engine_that_came_back(start, long_ejections):
    async with start("p0", "d0", "d1") as router:
        fill(router, "d1")
        await router["d0"].refuse()
        asking = asyncio.ensure_future(router.post())
        await until(lambda: router.app.services.queue._results, "it to wait")
        await router["d0"].start()
        (back, _) = router.app.services.registry.endpoints("decode")
        back.health.answered()
        got = await asking
        assert (got.status_code, got.headers["x-eldr-decode"]) == (200, "d0")
        assert prefills(router) == 1


async def test_a_result_that_waits_goes_by_the_limit_of_the_day(start):
    async with start("p0", "d0", max_in_flight=1) as router:
        router["d0"].limit, router["d0"].in_flight = 8, 3
        asking = asyncio.ensure_future(router.post())
        await until(lambda: router.app.services.queue._results, "it to wait")
        await router.poll()
        await router.configure(max_in_flight=8)
        assert (await asking).status_code == 200
        assert router["d0"].requests[-1].headers["x-eldr-limit"] == "8"


async def test_a_request_counts_once_however_often_it_is_declined(start):
    kind = signature(500, 500, 0, 0, 500, 500, 0, 0)
    async with start("p0", "d0", "d1", policy="MarginalUnion") as router:
        router["p0"].eldr = kind
        locality = router.app.services.placer.locality
        await router.post()
        noticed, notice = [], locality.notice
        locality.notice = lambda one: noticed.append(notice(one))
        fill(router, "d0", "d1")
        asking = asyncio.ensure_future(router.post())
        await until(lambda: router.app.services.queue._results, "it to wait")
        router["d0"].in_flight = 0
        await router.poll()
        assert (await asking).status_code == 200
        assert len(noticed) == 1


async def test_an_engine_that_died_full_is_tried_where_there_is_no_other(start):
    async with start("p0", "d0") as router:
        fill(router, "d0")
        await router.poll()
        assert (await router.post()).status_code == 429
        await router["d0"].refuse()
        await router.poll()
        assert (await router.post()).status_code == 502
        router["d0"].in_flight = 0
        await router["d0"].start()
        assert (await router.post()).status_code == 200


@pytest.mark.parametrize("status", [403, 500])
async def test_an_engine_that_cannot_be_asked_for_its_load_is_not_full_for_ever(start, status):
    async with start("p0", "d0") as router:
        fill(router, "d0")
        await router.poll()
        router["d0"].in_flight = 0
        router["d0"].report = answer(status, {})
        await router.poll()
        assert (await router.post()).status_code == 200


async def test_an_engine_that_declines_and_reports_room_is_not_asked_for_ever(start):
    """Whatever it says: it has said no."""
    async with start("p0", "d0", lease_seconds=2.0) as router:
        lie = answer(429, {"error": {"code": 429}}, "x-eldr-full: 3/3\r\nx-eldr-load: 0/9\r\n")
        router["d0"].script += [lie] * 1000
        assert (await router.post()).status_code == 429
        assert len(router["d0"].requests) == 1


@pytest.mark.slow
async def test_nobody_waits_longer_than_the_lease(start):
    async with start("p0", "d0", lease_seconds=2.0) as router:  # usable for one second
        fill(router, "d0")
        got = await router.post()
        assert got.status_code == 429
        assert "lease of the prefill result" in got.json()["error"]["message"]
        assert got.headers["retry-after"] == "1"
        assert not router["d0"].freed, "its blocks are free by then"
        assert (await router.post()).status_code == 429
        assert prefills(router) == 1, "nothing is computed that has no place"


async def test_a_client_that_leaves_while_it_waits_has_its_result_freed(start):
    async with start("p0", "d0") as router:
        fill(router, "d0")
        task = asyncio.create_task(router.post())
        await until(lambda: router.app.services.queue._results, "it to wait")
        assert router.app.services.registry._reserved == 1, "its place is reserved while it waits"
        task.cancel()
        await until(lambda: router["d0"].freed, "its blocks to be freed")
        await until(router.idle, "every count to return")
        assert not router.app.services.waiting


async def test_a_request_without_a_result_is_told_to_come_back(start):
    async with start("p0", "d0", "d1") as router:
        fill(router, "d0", "d1")
        got = await router.post(n=2)
        assert (got.status_code, got.headers["retry-after"]) == (429, "1")
        assert "every decode engine is full" in got.json()["error"]["message"]
        assert prefills(router) == 0


@pytest.mark.parametrize("of_prefill", [True, False], ids=["prefill hands nothing over", "several choices"])
async def test_a_request_without_a_result_waits_in_line_where_it_may(start, of_prefill):
    async with start("p0", "d0", settings={"max_waiting": 8, "max_wait_seconds": 60.0}) as router:
        fill(router, "d0")
        router["p0"].script += [partial(prefill, kv_transfer_params=None)] * 2
        asking = asyncio.ensure_future(router.post(**({} if of_prefill else {"n": 2})))
        await until(lambda: router.app.services.queue._entries, "it to wait in line")
        assert len(router["d0"].requests) == 1
        router["d0"].in_flight = 0
        await router.poll()
        assert (await asking).status_code == 200
        assert len(router["d0"].requests) == 2


async def test_a_request_that_lines_up_before_it_was_placed_gives_its_place_back(start):
    async with start("p0", "d0", settings={"max_waiting": 8, "max_wait_seconds": 60.0}) as router:
        router["d0"].limit = 3
        await router.poll()
        held = asyncio.Event()
        router["p0"].script.append(partial(prefill_after, held, kv_transfer_params=None))
        asking = asyncio.ensure_future(router.post())
        await until(lambda: router["p0"].requests, "the prefill")
        fill(router, "d0")
        await router.poll()
        held.set()
        await until(lambda: router.app.services.queue._entries, "it to wait in line")
        assert not router["d0"].requests
        router["d0"].in_flight = 0
        await router.poll()
        assert (await asking).status_code == 200
        await until(router.idle, "its places to be free again")


async def test_an_engine_that_fails_after_another_one_declined_costs_an_attempt(start):
    async with start("p0", "d0", "d1") as router:
        fill(router, "d0")
        router["d1"].script += [answer(500, CLIENT_ERROR)] * 2
        assert (await router.post()).status_code == 200
        assert prefills(router) == 3
        assert router.counter("retries", leg="decode", cause="status") == 2


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
            "x-eldr-limit": "999", "x-eldr-full": "1/1", "x-eldr-anything": "x", "x-eldr-log": "off",
            "x-session-id": "s",
        }  # fmt: skip
        got = await router.post(stream=True, headers=headers)
        assert {name: value for name, value in seen.items() if name.startswith("x-eldr")} == {
            "x-eldr-limit": "8",
        }
        assert seen["x-session-id"] == "s"
        assert (got.headers["x-eldr-decode"], got.headers["x-other"]) == ("d0", "kept")
        assert "x-eldr-load" not in got.headers
        (sent,) = router["p0"].requests
        assert not [name for name in sent.headers if name.startswith("x-eldr")]
