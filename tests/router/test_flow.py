"""A request's way over real sockets, without faults."""

import asyncio

import numpy as np
import pytest

from eldr import contract
from eldr.wire import ExpertCounts, encode_counts
from tests.fakes.engines import TOKENS, answer, pieces, prefill, slow
from tests.router.conftest import signature, until


async def test_two_legs_follow_the_protocol(start):
    async with start("p0", "d0") as router:
        got = await router.post(
            prompt="Grüße",
            stream=False,
            max_tokens=7,
            min_tokens=3,
            logprobs=2,
            temperature=0.5,
            headers={"x-request-id": "mine", "authorization": "Bearer k", "x-custom": "1"},
        )
        assert got.status_code == 200
        assert got.json()["choices"][0]["text"] == "".join(TOKENS)
        assert got.headers["x-request-id"] == "mine"
        assert got.headers["x-eldr-decode"] == "d0"
        (first,), (second,) = router["p0"].requests, router["d0"].requests
        assert first.path == second.path == "/v1/completions"
        assert first.body == {
            "model": "m",
            "prompt": "Grüße",
            "stream": False,
            "max_tokens": 1,
            "min_tokens": 1,
            "n": 1,
            "logprobs": 2,
            "temperature": 0.5,
            "kv_transfer_params": {
                "do_remote_decode": True,
                "do_remote_prefill": False,
                "remote_engine_id": None,
                "remote_block_ids": None,
                "remote_host": None,
                "remote_port": None,
            },
        }
        sent = second.body
        assert sent.pop("kv_transfer_params")["do_remote_prefill"] is True
        assert sent == {
            "model": "m",
            "prompt": "Grüße",
            "stream": False,
            "max_tokens": 7,
            "min_tokens": 3,
            "logprobs": 2,
            "temperature": 0.5,
        }
        base = f"eldr-{router.app.services.telemetry.router}-1"
        assert [first.id, second.id] == [f"{base}-1", f"{base}-2"]
        assert contract.base_id(second.id) == base
        for seen, name in ((first, "p0"), (second, "d0")):
            assert seen.headers["authorization"] == "Bearer k"
            assert seen.headers["x-custom"] == "1"
            assert seen.headers["host"] == f"127.0.0.1:{router[name].port}"
        assert router.counter("requests", outcome="ok") == 1


async def test_chat_gets_both_token_limits_and_ids_are_ours_without_the_clients(start):
    async with start("p0", "d0") as router:
        got = await router.post(
            "/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_completion_tokens=9
        )
        assert got.headers["x-request-id"] == f"eldr-{router.app.services.telemetry.router}-1"
        body = router["p0"].requests[0].body
        assert (body["max_tokens"], body["max_completion_tokens"]) == (1, 1)
        assert router["d0"].requests[0].body["max_completion_tokens"] == 9


async def test_expert_counts_never_reach_a_decode_engine(start):
    async with start("p0", "d0") as router:
        router["p0"].eldr = {"v": 1, "secret": "counts"}
        await router.post()
        params = router["d0"].requests[0].body["kv_transfer_params"]
        assert "eldr" not in params
        assert params["remote_engine_id"] == "p0"
        assert router.counter("placements", reason="wire_error") == 1


async def test_prefill_answers_are_counted_by_what_they_tell(start):
    counts = np.array([[1, 1]], dtype=np.uint16)
    answers = {
        "exact": encode_counts(ExpertCounts(counts, top_k=1, tokens=2, exact=True)),
        "inexact": encode_counts(ExpertCounts(counts, top_k=1, tokens=3, exact=False)),
        "no_signature": None,
        "wire_error": {"v": 99},
    }
    assert set(answers) == set(contract.SIGNATURE_QUALITIES)
    async with start("p0", "d0") as router:
        for answer in (*answers.values(), {"v": 1, "unavailable": "no router"}):
            router["p0"].eldr = answer
            await router.post()
        counters = (await router.state())["counters"]
        found = {quality: counters[contract.signature_counter(quality)] for quality in answers}
        assert found == {"exact": 1, "inexact": 1, "no_signature": 2, "wire_error": 1}


async def test_a_stream_arrives_as_the_engine_sends_it(start):
    async with start("p0", "d0") as router:
        release = asyncio.Event()
        router["d0"].script.append(slow(release))
        async with router.stream() as got:
            lines = got.aiter_lines()
            assert TOKENS[0] in await anext(lines)  # the rest is not even produced yet
            assert router.in_flight() == {"p0": 0, "d0": 1}
            release.set()
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert len(rest) == len(TOKENS)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize(
    ("name", "parts", "close"),
    [
        (
            "chunks cut anywhere",
            (b"3\r", b"\nab", b"c\r\n1", b"0;x=y\r\n0123456789", b"abcdef\r", b"\n0\r\n\r\n"),
            False,
        ),
        ("trailers", (b"3\r\nabc\r\n0\r\nx-t: 1\r\n", b"\r\n"), False),
        ("closed", (b"abc", b"def"), True),
        ("length", (b"abc", b"def"), False),
    ],
)
async def test_framings(start, version, name, parts, close):
    head = {
        "closed": b"",
        "length": b"content-length: 6\r\n",
    }.get(name, b"transfer-encoding: chunked\r\n")
    wanted = {"chunks cut anywhere": b"abc0123456789abcdef", "trailers": b"abc"}.get(name, b"abcdef")
    async with start("p0", "d0") as router:
        early = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
        start_line = early + b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n" + head + b"\r\n"
        router["d0"].script.append(pieces(start_line[:30], start_line[30:], *parts, close=close))
        reader, writer = await router.connect()
        body = b'{"model":"m","prompt":"x"}'
        writer.write(
            b"POST /v1/completions HTTP/%b\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
            % (version.encode(), len(body), body)
        )
        got = await reader.readuntil(b"\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"early" not in got.lower()
        if version == "1.1" and not close:
            assert b"connection: close" not in got
            raw = await reader.readexactly(6) if name == "length" else await reader.readuntil(b"0\r\n")
            if name == "length":
                assert raw == wanted
            else:
                assert b"transfer-encoding: chunked" in got
                assert raw == b"".join(parts)[: len(raw)]  # spliced, byte for byte
                await reader.readuntil(b"\r\n\r\n") if name == "trailers" else await reader.readexactly(2)
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        else:
            assert b"connection: close" in got
            assert b"transfer-encoding" not in got
            assert await reader.read() == wanted
        writer.close()
        await until(lambda: not router.app.clients.connections, "the connection to close")


async def test_statuses_without_a_body(start):
    async with start("p0", "d0") as router:
        router["d0"].script.append(pieces(b"HTTP/1.1 204 No Content\r\n\r\n"))
        assert (await router.post()).status_code == 204
        assert (await router.post()).status_code == 200


async def test_connections_to_engines_are_reused(start):
    async with start("p0", "d0") as router:
        for _ in range(10):
            assert (await router.post()).status_code == 200
        # a look at /metrics may coincide with a request, which takes another connection then
        assert 1 <= router["p0"].accepted <= 3
        assert 1 <= router["d0"].accepted <= 3


async def test_models_health_and_unknown_paths(start):
    async with start("p0", "d0") as router:
        get = router.client.get
        assert (await get(f"{router.url}/v1/models")).json()["data"][0]["id"] == "m"
        assert (await get(f"{router.url}/health")).status_code == 200
        assert (await get(f"{router.url}/ready")).json() == {"ready": True}
        head = await router.client.head(f"{router.url}/health")
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "15")
        for method, path, status in (
            ("GET", "/nothing", 404),
            ("GET", "/v1/completions", 405),
            ("POST", "/health", 405),
            ("POST", "/inference/v1/abort_requests", 404),
        ):
            got = await router.client.request(method, router.url + path)
            assert got.status_code == status
            assert got.json()["error"]["message"]
        await router["p0"].refuse()
        assert (await get(f"{router.url}/v1/models")).json()["data"][0]["id"] == "m"


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt":"x","kv_transfer_params":{"do_remote_prefill":true}}',
        '{"prompt":"x","vllm_xargs":{"kv_transfer_params":"x"}}',
        '{"prompt":"x"} trailing',
        "",
    ],
)
async def test_bodies_that_are_refused(start, text):
    async with start("p0", "d0") as router:
        got = await router.client.post(f"{router.url}/v1/completions", content=text)
        assert got.status_code == 400
        assert got.json()["error"]["message"]
        assert not router["p0"].requests + router["p0"].freed
        assert not router["d0"].requests + router["d0"].freed


async def test_a_nested_name_is_no_reason_to_refuse(start):
    async with start("p0", "d0") as router:
        assert (await router.post(metadata={"kv_transfer_params": 1})).status_code == 200


async def test_prefill_follows_the_prompts_text(start):
    async with start("p0", "p1", "p2", "d0") as router:
        shared = "You are a helpful assistant. " * 60
        for i in range(6):
            fields = {"temperature": i / 10, "user": str(i), "stream": False}
            assert (await router.post(prompt=shared + str(i), **fields)).status_code == 200
        assert sorted(len(router[name].requests) for name in ("p0", "p1", "p2")) == [0, 0, 6]


@pytest.mark.slow
async def test_a_changed_worker_file_is_taken_and_a_broken_one_is_not(start):
    async with start("p0", "d0", "d1") as router:
        removed = router.engines.pop("d1")
        await router.configure(policy="RoundRobin")
        assert [e["name"] for e in (await router.state())["decode"]] == ["d0"]
        assert (await router.state())["policy"] == "RoundRobin"

        def problem():
            return router.app.routing.problem

        digits = "9" * 400
        for broken, told in (
            ("policy: Nonsense", "Nonsense"),
            (f"max_in_flight: {digits}", "max_in_flight: expected"),
        ):
            router.workers.write_text(broken)
            await until(lambda told=told: told in (problem() or ""), "the broken file to be noticed")
            state = await router.state()
            assert told in state["problem"]
            assert digits not in state["problem"]
            assert [e["name"] for e in state["decode"]] == ["d0"]
            assert (await router.post()).status_code == 200
        router.engines["d1"] = removed
        await router.configure()
        assert problem() is None


@pytest.mark.slow
async def test_an_engine_that_goes_keeps_its_streams(start):
    async with start("p0", "d0", "d1") as router:
        release = asyncio.Event()
        router.play(slow(release))
        task = asyncio.ensure_future(router.post(stream=True))
        await until(router.decoding, "the stream to start")
        busy = router.decoding()
        gone = router.engines.pop(busy)
        await router.configure()
        assert [e["name"] for e in (await router.state())["decode"]] != ["d0", "d1"]
        other = {"d0": "d1", "d1": "d0"}[busy]
        router[other].script.clear()
        for _ in range(3):
            assert (await router.post()).headers["x-eldr-decode"] == other
        release.set()
        got = await task
        assert got.text.endswith("data: [DONE]\n\n")
        router.engines[busy] = gone


async def test_responses_keep_the_engines_headers_but_not_hop_by_hop_ones(start):
    async with start("p0", "d0") as router:
        extra = "x-engine: 1\r\nkeep-alive: timeout=5\r\nx-hop: 1\r\nconnection: keep-alive, x-hop\r\n"
        router["d0"].script.append(answer(200, {"ok": True}, extra + "x-request-id: engines\r\n"))
        got = await router.post()
        assert got.headers["x-engine"] == "1"
        assert "keep-alive" not in got.headers
        assert "x-hop" not in got.headers
        assert got.headers.get_list("x-request-id") == [f"eldr-{router.app.services.telemetry.router}-1"]


async def test_names_of_one_model_share_a_home_and_adapters_do_not(start):
    """vLLM answers by the first name of a model, whichever the request gave, and by an adapter's own."""
    names = {"m", "alias", None}

    async def as_vllm(exchange):
        asked = exchange.seen.body.get("model")
        await prefill(exchange, model="m" if asked in names else asked)

    async with start("p0", "p1", "p2", "p3", "d0") as router:
        engines = [router[f"p{n}"] for n in range(4)]

        async def home(model: str | None) -> str:
            for engine in engines:
                engine.seen.clear()
                engine.script.append(as_vllm)
            body = {"prompt": "x" * 5000} | ({} if model is None else {"model": model})
            await router.client.post(f"{router.url}/v1/completions", json=body)
            (engine,) = (engine for engine in engines if engine.requests)
            return engine.name

        for model in names:
            await home(model)  # each name is learned by its first answer
        assert len({await home(model) for model in names}) == 1
        # the same name in other letters of JSON
        body = b'{"prompt":"%b","model":"\\u006d"}' % (b"x" * 5000)
        known = await home("m")
        for engine in engines:
            engine.seen.clear()
        await router.client.post(f"{router.url}/v1/completions", content=body)
        assert [engine.name for engine in engines if engine.requests] == [known]
        assert len({await home(f"adapter-{n}") for n in range(12)}) > 1


async def test_a_signature_is_that_of_its_request_alone(start):
    """One prompt read by two adapters (LoRA) uses experts of its own each time, and is placed by them."""
    told = {"one": signature(9, 1, 0, 0, 9, 1, 0, 0), "two": signature(0, 0, 1, 9, 0, 0, 1, 9)}

    async with start("p0", "d0", "d1", policy="MarginalUnion") as router:

        async def as_adapter(exchange):
            router["p0"].eldr = told[exchange.seen.body["model"]]
            await prefill(exchange, model=exchange.seen.body["model"])

        placed: dict[str, list[np.ndarray]] = {"one": [], "two": []}
        place = router.app.services.placer.place

        def kept(table, found, *args, **options):
            placed[asked].append(found.counts.counts)
            return place(table, found, *args, **options)

        router.app.services.placer.place = kept
        for asked in ("one", "two", "one", "two"):
            router["p0"].script.append(as_adapter)
            assert (await router.post(prompt="x" * 5000, model=asked)).status_code == 200
    assert [each[0].tolist() for each in placed["one"]] == [[9, 1, 0, 0]] * 2
    assert [each[0].tolist() for each in placed["two"]] == [[0, 0, 1, 9]] * 2
