"""The router benchmark gives no figures for routers or engines that did otherwise than its rows name."""

import asyncio
from collections import Counter
from contextlib import nullcontext

import pytest

from eldr.contract import POLICY_ELDR, POLICY_MARGINAL
from eldr_bench import candidates, load, router
from eldr_bench.candidates import Candidate, series
from eldr_bench.proof import Unproven


def candidate(policy=POLICY_MARGINAL):
    return Candidate("ours", 0, load.Target(0), policy, asked=Counter({True: 5, False: 3}))


def state(policy=POLICY_MARGINAL, **counters):
    signed, unsigned = candidates.PLACED[policy]
    known = Counter({'eldr_router_requests_total{outcome="ok"}': 8.0})
    known.update({series(*signed): 5.0})
    known.update({series(*unsigned): 3.0})
    unions = {"requests": 5} if policy == POLICY_MARGINAL else None
    return {"policy": policy, "counters": {**known, **counters}, "locality": unions}


@pytest.mark.parametrize("policy", [POLICY_MARGINAL, POLICY_ELDR, "JSQ"])
def test_a_router_that_placed_as_named_passes(policy):
    candidate(policy).prove(state(policy))


UNION = POLICY_MARGINAL


@pytest.mark.parametrize(
    ("policy", "wrong", "why"),
    [
        (UNION, state(POLICY_ELDR), "policy ELDR is in effect"),
        (UNION, state(**{series("JSQ", "wrong_shape"): 1.0}), "wrong_shape"),
        (UNION, state(**{'eldr_router_requests_total{outcome="upstream"}': 1.0}), "of 8 requests"),
        (UNION, state(**{'eldr_router_retries_total{cause="refused",leg="decode"}': 1.0}), "given up"),
        (UNION, state() | {"locality": None}, "0 of 5 requests are in unions"),
        (POLICY_ELDR, state(POLICY_ELDR) | {"locality": {"requests": 1}}, "keeps unions"),
    ],
)
def test_a_router_that_did_otherwise_is_told(policy, wrong, why):
    with pytest.raises(Unproven, match=why):
        candidate(policy).prove(wrong)


WHOLE = {"prefill": 7, "signed": 7, "decode": 7, "pulled": 7}


@pytest.mark.parametrize("wrong", [{}, {"signed": 0}, {"pulled": 6}])
async def test_a_load_counts_only_if_engines_served_it_whole(monkeypatch, wrong):
    answers, one = iter([{}, {}, WHOLE | wrong]), candidate()
    monkeypatch.setattr(router, "get", lambda _: next(answers))
    with pytest.raises(Unproven, match="engines served") if wrong else nullcontext():
        async with router.serving(one, "", 7, signed=True):
            pass
    assert one.asked[True] == (5 if wrong else 12)


async def answering(data):
    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (HEAD + b"data: a\n\ndata: [DONE]\n\n0\r\n\r\n", "2 chunks"),
        (HEAD + b"data: a\n\ndata: b\n\ndata: {error}\n\n0\r\n\r\n", "3 chunks"),
        (HEAD + b"data: a\n\n", "ended after"),
        (b"HTTP/1.1 429 No\r\n\r\n0\r\n\r\n", "429"),
    ],
)
async def test_a_stream_that_ends_badly_is_told(data, why):
    server, port = await answering(data)
    async with server:
        with pytest.raises(Unproven, match=why):
            await load.listen(load.Target(port), 0, 2)
