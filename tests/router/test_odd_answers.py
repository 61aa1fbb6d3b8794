"""Answers that cannot be understood, engines that are busy, and hosts that are none: an attempt each, and nothing is left behind."""

import asyncio

import pytest

from eldr_router.flow.decode_leg import DecodeLeg
from eldr_router.net.outbound import ConnectError
from eldr_router.net.pool import Pool
from tests.fakes.engines import answer
from tests.router.conftest import until


async def test_a_bug_where_an_answer_is_taken_costs_an_attempt_and_nothing_else(start, monkeypatch, caplog):
    async with start("p0", "d0", "d1") as router:
        whole = DecodeLeg._on_body
        bugs = [KeyError("bug"), KeyError("bug")]

        def buggy(leg, body):
            if bugs:
                raise bugs.pop()
            whole(leg, body)

        monkeypatch.setattr(DecodeLeg, "_on_body", buggy)
        assert (await router.post()).status_code == 200
        assert caplog.text.count("could not be taken") == 2
        await until(router.idle, "every lease to return")


BUSY = answer(429, {"error": {"message": "busy", "code": 429}}, "retry-after: 7\r\n")


async def test_a_busy_prefill_engine_and_one_that_refuses(start):
    async with start("p0", "p1", "d0") as router:
        await router["p1"].refuse()
        for _ in range(4):
            router["p0"].script.append(BUSY)
            got = await router.post()
            assert (got.status_code, got.headers["retry-after"]) == (429, "7")
            assert got.json()["error"]["message"] == "busy"
        await until(router.idle, "every lease to return")


async def test_a_busy_decode_engine_and_no_prefill_engine_for_the_second_attempt(start):
    async with start("p0", "d0", "d1") as router:

        async def busy(exchange):
            await router["p0"].refuse()
            await BUSY(exchange)

        router.play(busy)
        got = await router.post()
        assert got.status_code in (200, 429), "whole, at an engine that is free; or that engine's own answer"
        await until(router.idle, "every lease to return")


async def test_a_host_that_is_no_name_is_an_engine_that_refuses():
    pool = Pool(asyncio.get_running_loop(), connect_timeout=1.0)
    for host in ("bad..host", "x" * 70):
        with pytest.raises(ConnectError, match=host[:5]):
            await pool.dial((host, 1))
