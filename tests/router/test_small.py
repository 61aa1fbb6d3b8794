"""Small things that clients and operators trip over."""

import asyncio
import json
import logging
import resource

import pytest

from eldr_router import app as app_module
from tests.fakes.engines import TOKENS, answer, engines, reset, slow
from tests.router.conftest import DEADLINE, serving, until
from tests.router.test_http import HEALTH, post


async def test_an_absolute_target_is_served(start):
    async with start("p0", "d0") as router:
        for target in (b"http://proxy.example:80/health", b"HTTP://h/v1/models", b"/health?x=http://y/z"):
            reader, writer = await router.connect()
            writer.write(b"GET %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % target)
            assert (await asyncio.wait_for(reader.read(), DEADLINE)).startswith(b"HTTP/1.1 200")
            writer.close()


@pytest.mark.slow
async def test_a_long_pipeline_of_upgrades_is_served(start):
    upgrade = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    async with start("p0", "d0") as router:
        reader, writer = await router.connect()
        writer.write(upgrade * 5000 + HEALTH)
        body = len(b'{"status":"ok"}')
        for _ in range(5001):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)
            assert head.startswith(b"HTTP/1.1 200")
            await reader.readexactly(body)
        writer.close()


@pytest.mark.slow
async def test_an_upload_in_progress_is_served_while_the_router_drains(start):
    async with start("p0", "d0", settings={"drain_seconds": 30.0}) as router:
        data = post()
        reader, writer = await router.connect()
        writer.write(data[:-5])
        await until(lambda: router.app.clients.budget.held, "the beginning")
        drain = asyncio.create_task(router.app.drain())
        await until(lambda: router.app.draining, "the drain to begin")
        await asyncio.sleep(0.2)
        writer.write(data[-5:])
        got = await asyncio.wait_for(reader.read(), DEADLINE)
        assert got.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in got
        await asyncio.wait_for(drain, DEADLINE)
        writer.close()


async def test_the_lame_duck_says_that_connections_close(start):
    async with start("p0", "d0", settings={"lame_duck_seconds": 20.0}) as router:
        reader, writer = await router.connect()
        drain = asyncio.create_task(router.app.drain())
        await until(lambda: router.app.draining, "the drain to begin")
        writer.write(HEALTH)
        assert b"connection: close" in await asyncio.wait_for(reader.read(), DEADLINE)
        assert not drain.done(), "still accepting: load balancers need time to hear of it"
        drain.cancel()
        writer.close()


def test_the_limit_of_open_files_is_raised(monkeypatch, caplog):
    set_to = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: set_to.append(pair))
    assert app_module._raise_file_limit() == 1000
    assert set_to == [(1000, 1000)]
    assert "228 client connections" in caplog.text


async def test_too_many_connections_are_told_so(start):
    async with start("p0", "d0") as router:
        router.app.clients.max_connections = 3
        held = [await router.connect() for _ in range(3)]
        for _, other in held:
            other.write(b"POST /v1/completions HTTP/1.1\r\n")
        await until(lambda: router.app.clients.busy == 3, "their requests to begin")
        reader, writer = await router.connect()
        got = await asyncio.wait_for(reader.read(), DEADLINE)
        assert got.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in got
        for _, other in (*held, (reader, writer)):
            other.close()


@pytest.mark.parametrize("fields", [{"stream": True}, {"max_tokens": 4000}])
async def test_a_stream_without_any_event_is_no_answer(start, fields):
    async def empty(exchange):
        await exchange.stream_head()
        await exchange.send(b"0\r\n\r\n")

    async with start("p0", "d0", "d1") as router:
        router.play(empty)
        got = await router.post(**fields)
        assert all(token in got.text for token in TOKENS)
        assert router.counter("retries", leg="decode") == 2


async def test_tokenize_goes_to_every_engine_in_turn(start):
    async with start("p0", "p1", "d0") as router:
        for engine in router.engines.values():
            engine.script.extend([answer(200, {"tokens": [1]})] * 6)
        for _ in range(6):
            got = await router.client.post(f"{router.url}/tokenize", json={"prompt": "x"})
            assert got.json() == {"tokens": [1]}
        assert [len(engine.seen) - len(probes(engine)) for engine in router.engines.values()] == [2, 2, 2]


def probes(engine):
    return [seen for seen in engine.seen if seen.path in {"/health", "/metrics"}]


async def test_ipv6_hosts_stand_in_brackets(tmp_path):
    async with engines("p0", "d0") as made:
        for engine in made:
            await engine.refuse()
            engine.host = "::1"
            try:
                await engine.start()
            except OSError:
                pytest.skip("this machine has no IPv6 loopback")
        async with serving(made, tmp_path, None) as router:
            assert (await router.post()).status_code == 200
            assert (await router.client.get(f"{router.url}/v1/models")).status_code == 200
            for engine in made:
                for seen in engine.seen:
                    assert seen.headers["host"] == f"[::1]:{engine.port}"


async def test_a_failure_leaves_one_line_that_tells_all(start, caplog):
    caplog.set_level(logging.INFO, "eldr_router.requests")
    async with start("p0", "d0", "d1") as router:
        router.play(answer(500, {}), times=2)
        got = await router.post(headers={"x-request-id": "mine"})
        assert got.status_code == 502
        (line,) = requests(caplog)
        assert (line["outcome"], line["status"], line["client_id"]) == ("upstream_failed", 502, "mine")
        assert len(line["tried"]) == 3
        assert {(t["leg"], t["cause"]) for t in line["tried"]} == {("decode", "status")}
        assert "gave up after 3 attempts" in line["error"]
        assert "hello" not in caplog.text, "no word of a prompt"


async def test_a_chain_of_retries_that_ends_well_leaves_a_line_too(start, caplog):
    async with start("p0", "d0") as router:
        router["d0"].script.append(reset)
        assert (await router.post()).status_code == 200
        (line,) = requests(caplog)
        assert line["outcome"] == "ok"
        assert [(t["engine"], t["cause"]) for t in line["tried"]] == [("d0", "reset")]


async def test_good_requests_are_logged_only_on_request(start, caplog):
    caplog.set_level(logging.INFO, "eldr_router.requests")
    async with start("p0", "d0") as router:
        await router.post()
        assert requests(caplog) == []
    async with start("p0", "d0", settings={"access_log": True}) as router:
        await router.post()
        (line,) = requests(caplog)
        assert (line["outcome"], line["decode"], line["path"]) == ("ok", "d0", "/v1/completions")


def requests(caplog):
    return [json.loads(r.args[0]) for r in caplog.records if r.name == "eldr_router.requests"]


async def test_a_client_that_leaves_in_the_middle_is_no_failure_line(start, caplog):
    async with start("p0", "d0") as router:
        release = asyncio.Event()
        router["d0"].script.append(slow(release))
        async with router.stream() as got:
            assert got.status_code == 200
        await until(lambda: router.counter("requests", outcome="disconnected"), "the client to be gone")
        assert requests(caplog) == []


async def test_what_any_engine_may_answer_leaves_a_line_when_none_does(start, caplog):
    async with start("p0", "d0") as router:
        router.play(reset, at=("p0", "d0"))
        got = await router.client.post(f"{router.url}/tokenize", json={"prompt": "x"})
        assert got.status_code == 502
        (line,) = requests(caplog)
        assert (line["outcome"], line["status"], line["path"]) == ("upstream_failed", 502, "/tokenize")
        assert {tried["engine"] for tried in line["tried"]} == {"p0", "d0"}
        assert {tried["cause"] for tried in line["tried"]} == {"reset"}


async def test_a_client_s_rank_reaches_no_engine(start):
    """It would name a rank of two engines at once, whose ranks are not each other's."""
    async with start("p0", "d0") as router:
        assert (await router.post(headers={"X-data-parallel-rank": "1"})).status_code == 200
        for engine in router.engines.values():
            assert engine.requests
            assert all("x-data-parallel-rank" not in seen.headers for seen in engine.requests)


async def test_a_method_that_is_not_allowed_is_told_which_is(start):
    async with start("p0", "d0") as router:
        for path, allowed in (("/v1/completions", "POST"), ("/health", "GET, HEAD"), ("/tokenize", "POST")):
            got = await router.client.request("DELETE", router.url + path)
            assert (got.status_code, got.headers["allow"]) == (405, allowed)
        got = await router.client.post(f"{router.admin}/metrics")
        assert (got.status_code, got.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "fields",
    [{"n": "x"}, {"kv_transfer_params": {}}],
)
async def test_a_client_s_mistake_leaves_no_line_unless_every_request_does(start, caplog, fields):
    caplog.set_level(logging.INFO, "eldr_router.requests")
    async with start("p0", "d0") as router:
        assert (await router.post(**fields)).status_code == 400
        assert requests(caplog) == []
        assert not any(engine.requests for engine in router.engines.values())
    async with start("p0", "d0", settings={"access_log": True}) as router:
        assert (await router.post(**fields)).status_code == 400
        (line,) = requests(caplog)
        assert line["status"] == 400
        assert {record.levelname for record in caplog.records if record.name == "eldr_router.requests"} == {
            "INFO"
        }
