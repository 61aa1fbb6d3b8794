"""The clients that users have, before a router and real engines: what is split says what one engine alone would have said."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator

import anthropic
import httpx
import openai
import pytest

from eldr.contract import base_id
from eldr_router.api.paths import ANY_ENGINE, APIS, CHAT, MESSAGES, RESPONSES
from tests.support.router import Router, router
from tests.vllm.conftest import LEASE
from tests.vllm.engines import BLOCK, NAME, Engine, wait_for
from tests.vllm.fleet import Fleet

SOURCE = "vllm:prompt_tokens_by_source_total"
TEXT = "Le gestionnaire de paquets conserve la liste des logiciels installés et vérifie leurs dépendances. "
KIND = "You are kind."
TOKENS = 24
GREEDY = {"temperature": 0}  # no parameter of this client any more
SERVED = {"/v1/models", "/version", "/tokenize", "/detokenize", "/v1/messages/count_tokens"}
"""Of the paths for any engine, those of one that generates."""


def prompt(number: int) -> str:
    """Return one that no engine has seen."""
    return f"Chapitre {number}. " + TEXT * 6


@pytest.fixture(scope="module")
def engines(fleet: Fleet) -> tuple[Engine, Engine]:
    p, d0 = fleet.up("p", "d0")
    return p, d0


@pytest.fixture(scope="module")
def served(engines: tuple[Engine, Engine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    urls = {engine.name: engine.url for engine in engines}
    with router(tmp_path_factory.mktemp("router"), urls, model=NAME, lease_seconds=LEASE) as running:
        yield running


@pytest.fixture(scope="module")
def gpt(served: Router) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0, timeout=240) as client:
        yield client


@pytest.fixture(scope="module")
def claude(served: Router) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="x", max_retries=0, timeout=240) as client:
        yield client


@pytest.fixture
def split(served: Router, engines: tuple[Engine, Engine]) -> Iterator[None]:
    """What is asked in a test is split: the decode engine pulls its prompt."""
    before = engines[1].metric(SOURCE, source="external_kv_transfer")
    whole, ok = served.counter("whole"), served.counter("requests", outcome="ok")
    yield
    assert served.counter("requests", outcome="ok") > ok
    assert served.counter("whole") == whole
    assert served.counter("retries") == 0
    assert engines[1].metric(SOURCE, source="external_kv_transfer") >= before + BLOCK


def post(url: str, path: str, **body) -> httpx.Response:
    return httpx.post(url + path, json={"model": NAME, "temperature": 0, **body}, timeout=240)


@pytest.mark.usefixtures("split")
def test_a_response(gpt, engines, served):
    asked = {"input": prompt(TOKENS), "instructions": KIND, "max_output_tokens": TOKENS}
    got = gpt.responses.create(model=NAME, temperature=0, **asked)
    alone = post(engines[1].url, RESPONSES, **asked).json()
    assert got.output_text == alone["output"][0]["content"][0]["text"]
    assert (got.status, got.usage.output_tokens) == (alone["status"], alone["usage"]["output_tokens"])
    assert got.usage.input_tokens == alone["usage"]["input_tokens"]
    left_out = alone.keys() - got.model_dump().keys()
    assert not left_out, "every field is passed on"
    base = base_id(got.id)
    assert base != got.id, "the router's own id, by which activations are found"
    wait_for(lambda: base in known(engines[1]), "the decode engine's record of it", 30)


def known(engine: Engine) -> set[str]:
    page = httpx.get(
        engine.url + "/eldr/v1/activations", params={"after": 0, "limit": 256}, timeout=60
    ).json()
    return {record["request_id"] for record in page["records"]}


@pytest.mark.usefixtures("split")
def test_a_streamed_response(gpt, engines):
    asked = {"input": [{"role": "user", "content": prompt(3)}], "max_output_tokens": TOKENS}
    with gpt.responses.stream(model=NAME, temperature=0, **asked) as stream:
        events = list(stream)
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type in ("response.completed", "response.incomplete")  # as vLLM 0.32 and 0.33 have it
    got = events[-1].response
    alone = post(engines[1].url, RESPONSES, **asked).json()
    assert got.output[0].content[0].text == alone["output"][0]["content"][0]["text"]


@pytest.mark.usefixtures("split")
def test_a_message(claude, engines):
    said = [{"role": "user", "content": prompt(4 + TOKENS)}]
    got = claude.messages.create(model=NAME, extra_body=GREEDY, max_tokens=TOKENS, messages=said, system=KIND)
    alone = post(engines[1].url, MESSAGES, max_tokens=TOKENS, messages=said, system=KIND).json()
    assert [block.text for block in got.content] == [block["text"] for block in alone["content"]]
    assert (got.stop_reason, got.usage.output_tokens) == (
        alone["stop_reason"],
        alone["usage"]["output_tokens"],
    )
    assert got.usage.input_tokens == alone["usage"]["input_tokens"]


@pytest.mark.usefixtures("split")
def test_a_streamed_message(claude, engines):
    said = [{"role": "user", "content": prompt(6)}]
    with claude.messages.stream(model=NAME, extra_body=GREEDY, max_tokens=TOKENS, messages=said) as stream:
        text = "".join(stream.text_stream)
        got = stream.get_final_message()
    alone = post(engines[1].url, MESSAGES, max_tokens=TOKENS, messages=said).json()
    assert text == got.content[0].text == alone["content"][0]["text"]
    assert got.stop_reason == "max_tokens"


FAILED = {
    CHAT: (["opening", "error_event", "aborted"], False),
    RESPONSES: (["early"] * 2, True),
    MESSAGES: (["opening", "error_event"], False),
}
"""What a stream says whose pull fails, and whether its connection breaks."""


@pytest.mark.parametrize("path", FAILED)
def test_a_failed_pull_shows_before_the_first_token(engines, path):
    """In a response the events before it come before the pull, so that they say nothing of it. Then vLLM cuts the connection."""
    said = [{"role": "user", "content": prompt(70 + len(path))}]
    asked = {"input": said} if path == RESPONSES else {"messages": said, "max_tokens": TOKENS}
    kv = {"do_remote_decode": True, "do_remote_prefill": False}
    one = {"max_output_tokens": 1, "ignore_eos": True} if path == RESPONSES else {"max_tokens": 1}
    prefilled = post(engines[0].url, path, **{**asked, **one}, kv_transfer_params=kv)
    params = prefilled.json()["kv_transfer_params"]
    assert params["do_remote_prefill"]
    assert "eldr" in params, "the signature by which it is placed"
    params = {**params, "remote_engine_id": str(uuid.uuid4()), "remote_port": 1}  # one that nobody knows
    said, broken = [], False
    try:
        with httpx.stream(
            "POST", engines[1].url + path, timeout=240,
            json={"model": NAME, "stream": True, "kv_transfer_params": params, **asked},
        ) as got:  # fmt: skip
            assert got.status_code == 200
            for line in got.iter_lines():
                said += [line.removeprefix("data: ")] if line.startswith("data: ") else []
    except httpx.RemoteProtocolError:
        broken = True
    assert ([APIS[path].first_word(data.encode()) for data in said], broken) == FAILED[path]


def test_paths_for_any_engine_are_those_that_engines_list(served, engines):
    listed = httpx.get(f"{engines[1].url}/openapi.json", timeout=60).json()
    assert {path for path in ANY_ENGINE if path in listed["paths"]} == SERVED
    for path in SERVED:
        assert ANY_ENGINE[path].lower() in listed["paths"][path]
    takers = {
        name
        for name, schema in listed["components"]["schemas"].items()
        if "kv_transfer_params" in json.dumps(schema)
    }
    asked = json.dumps([listed["paths"][path] for path in SERVED])
    assert not [name for name in takers if f'schemas/{name}"' in asked], "none of them names KV"
    for path, body in (("/tokenize", {"prompt": "Debian"}), ("/detokenize", {"tokens": [300, 301]})):
        assert post(served.url, path, **body).json() == post(engines[1].url, path, **body).json()
    assert (
        httpx.get(f"{served.url}/version", timeout=60).json()
        == httpx.get(f"{engines[1].url}/version", timeout=60).json()
    )
    for path in listed["paths"].keys() - APIS.keys() - ANY_ENGINE.keys() - {"/health", "/ready"}:
        assert (
            httpx.post(served.url + path.replace("{response_id}", "x"), json={}, timeout=60).status_code
            == 404
        ), path


def test_the_router_knows_what_a_kv_cache_holds(served, engines):
    def decode() -> dict:
        return served.state()["decode"][0]

    wait_for(lambda: decode()["kv_tokens"], "the router to read the engine's capacity", 60)
    page = httpx.get(f"{engines[1].url}/metrics", timeout=60).text
    (info,) = re.findall(r"^vllm:cache_config_info{(.*)} 1.0$", page, re.MULTILINE)
    told = dict(re.findall(r'(\w+)="([^"]*)"', info))
    assert decode()["kv_tokens"] == int(told["num_gpu_blocks"]) * int(told["block_size"])
