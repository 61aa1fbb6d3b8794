"""Answers that come after the lease of their prefill result: whatever they say, no client may see it."""

import asyncio
import time

import pytest

from eldr.contract import PULL_BEFORE_KEY
from eldr_router import app
from eldr_router.net.outbound import ConnectError
from tests.fakes.engines import TOKENS, decode, hang, prefill, token_event
from tests.router.conftest import until
from tests.router.test_http import post

LEASE = 2.0  # usable for one second
WRONG = " wrong"


@pytest.fixture
def no_ticks(monkeypatch):
    """Nothing ends a wait: what is late is told by the moment of its arrival alone, as after both processes stood still."""
    monkeypatch.setattr(app, "_TICK_SECONDS", 1000.0)


def whole(seconds):
    async def behaviour(exchange):
        if "kv_transfer_params" not in exchange.seen.body:
            await decode(exchange)  # no pull, nothing to be late for
            return
        await asyncio.sleep(seconds)
        await exchange.json({"choices": [{"index": 0, "text": WRONG}]})

    return behaviour


def at_once(seconds):
    """Send head and first event in one piece."""

    async def behaviour(exchange):
        await asyncio.sleep(seconds)
        event = f"data: {token_event(WRONG)}\n\n".encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        await exchange.send(head + b"%x\r\n%b\r\n" % (len(event), event))
        await exchange.stream_end()

    return behaviour


@pytest.mark.slow
@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize(
    ("late", "fields"),
    [
        (whole, {}),
        (whole, {"messages": []}),
        (at_once, {"stream": True}),
    ],
    ids=["whole", "whole chat", "head and event together"],
)
async def test_what_arrives_after_the_lease_is_thrown_away(start, late, fields):
    async with start("p0", "d0", "d1", lease_seconds=LEASE) as router:
        router.play(late(1.3))
        path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
        got = await router.post(path, **fields)
        assert got.status_code == 200
        assert WRONG not in got.text
        assert all(token in got.text for token in TOKENS)
        late_ones = (
            2 if "stream" in fields else 1
        )  # after a whole answer the second attempt does without a pull
        assert router.counter("expired_results") == late_ones
        assert router.counter("retries", leg="decode", cause="expired") == late_ones


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"stream": True}, {}])
async def test_nobody_waits_for_an_engine_beyond_the_lease(start, fields):
    async with start("p0", "d0", lease_seconds=LEASE) as router:
        router["d0"].script.append(hang)
        began = time.monotonic()
        assert (await router.post(**fields)).status_code == 200
        assert time.monotonic() - began < 20, "not the time-out of a silent engine"
        assert router.counter("expired_results") == 1


async def slow_decode(exchange):
    await asyncio.sleep(1.5)
    await decode(exchange)


@pytest.mark.slow
async def test_a_whole_answer_that_outlasts_the_lease_is_asked_for_without_a_pull(start):
    """A decode engine that keeps no deadline could have pulled at any time until its answer came."""
    async with start("p0", "d0", lease_seconds=LEASE) as router:
        router["d0"].script.extend([hang, slow_decode])
        got = await router.post("/v1/chat/completions", messages=[])
        assert got.json()["choices"][0]["text"] == "".join(TOKENS)
        assert "kv_transfer_params" not in router["d0"].requests[1].body
        assert router.counter("whole", reason="expired") == 1


@pytest.mark.slow
async def test_a_whole_answer_outlasts_the_lease_where_the_engine_keeps_the_deadline(start):
    async with start("p0", "d0", lease_seconds=LEASE) as router:
        router["d0"].limit = 8  # what reports its load has the plug-in
        await router.poll()
        router["d0"].script.append(slow_decode)
        got = await router.post("/v1/chat/completions", messages=[])
        assert got.json()["choices"][0]["text"] == "".join(TOKENS)
        assert len(router["d0"].requests) == 1
        assert "stream" not in router["d0"].requests[0].body
        assert router.counter("expired_results") == 0


@pytest.mark.slow
async def test_an_answer_says_itself_whether_its_engine_keeps_the_deadline(start):
    """Another engine may have taken the address since the last report."""
    async with start("p0", "d0", lease_seconds=LEASE) as router:
        router["d0"].limit = 8
        await router.poll()
        router["d0"].limit = None
        router["d0"].script.append(whole(1.3))
        got = await router.post()
        assert WRONG not in got.text
        assert got.json()["choices"][0]["text"] == "".join(TOKENS)


async def test_decode_engines_are_told_until_when_they_may_pull(start):
    async with start("p0", "d0", lease_seconds=100.0) as router:
        before = time.time()
        assert (await router.post()).status_code == 200
        deadline = router["d0"].requests[0].body["kv_transfer_params"][PULL_BEFORE_KEY]
        assert before + 85 < deadline < time.time() + 91


KV = {"remote_request_id": "old", "do_remote_prefill": True}


@pytest.mark.usefixtures("no_ticks")
async def test_after_a_stall_a_prefill_answer_counts_from_before_it(start):
    """It may have lain in the socket all that time; whether timers run before it is read is chance."""
    async with start("p0", "d0", lease_seconds=LEASE) as router:
        services, stall = router.app.services, [0.0]
        services.clock = lambda: time.monotonic() + stall[0]

        async def stalls(exchange):
            stall[0] = 30.0
            services.tick()
            await exchange.json({"choices": [], "kv_transfer_params": KV})

        router["p0"].script.append(stalls)
        assert (await router.post()).status_code == 200
        assert router.counter("expired_results") == 1
        assert "old" not in router["d0"].blocks


@pytest.mark.slow
async def test_a_prefill_engine_that_stood_still_before_it_answered_hands_nothing_over(start):
    """Its lease began before, and nobody can tell when."""
    async with start("p0", "d0", lease_seconds=LEASE) as router:

        async def stands_still(exchange):
            await asyncio.sleep(1.3)
            await exchange.json({"choices": [], "kv_transfer_params": KV})

        router["p0"].script.append(stands_still)
        assert (await router.post()).status_code == 200
        assert router.counter("expired_results") == 1
        assert "old" not in router["d0"].blocks


@pytest.mark.slow
async def test_where_prefill_takes_longer_than_its_lease_a_decode_engine_does_it_all(start):
    async with start("p0", "d0", "d1", lease_seconds=LEASE) as router:

        async def slow(exchange):
            await asyncio.sleep(1.3)
            await prefill(exchange)

        router["p0"].script.extend([slow, slow, slow])
        assert (await router.post()).status_code == 200
        assert router.counter("expired_results") == 2
        assert router.counter("whole", reason="expired") == 1


async def test_the_blocks_of_a_request_whose_client_left_between_the_legs_are_freed(start, monkeypatch):
    async with start("p0", "d0", "d1") as router:
        pool = router.app.services.pool
        dial, dialling = pool.dial, asyncio.Event()

        async def slow_dial(address):
            if address[1] == router["p0"].port or dialling.is_set():
                return await dial(address)
            dialling.set()
            raise await asyncio.sleep(1000, ConnectError("never"))

        monkeypatch.setattr(type(pool), "dial", lambda _, address: slow_dial(address))
        _, writer = await router.connect()
        writer.write(post(b'{"model":"m","prompt":"x","max_tokens":50}'))
        await asyncio.wait_for(dialling.wait(), 30)
        writer.close()
        await until(lambda: router.counter("freed_results") == 1, "the blocks to be freed")
        assert len(router["d0"].freed + router["d1"].freed) == 1
        assert router["d0"].blocks + router["d1"].blocks == [], "it takes no place on an engine"
