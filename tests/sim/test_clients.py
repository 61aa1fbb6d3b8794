"""The clients that users have, before a real router and simulated engines: every path, streamed and whole."""

from __future__ import annotations

import anthropic
import openai
import pytest

from eldr.contract import HEADER_DECODE
from eldr.sim import text
from tests.support.processes import engine, wait_for
from tests.support.router import router

pytestmark = pytest.mark.process

FAST = ("--speed", "0.05")
TOKENS = 8
SAID = [{"role": "user", "content": "hi"}]
EXPECTED = {
    "plain": text.completion("user: hi", TOKENS),
    "instructed": text.completion("system: be kind\nuser: hi", TOKENS),
    "completion": text.completion("hi", TOKENS),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("router")
    with (
        engine("prefill", *FAST) as p,
        engine("decode", *FAST) as d,
        engine("decode", *FAST) as e,
        router(folder, {"p0": p.url, "d0": d.url, "d1": e.url}) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def gpt(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def claude(served):
    with anthropic.Anthropic(base_url=served.url, api_key="x", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def _split(served):
    """Every request that is served here was split, and placed by its signature."""
    yield
    wait_for(lambda: not served.in_flight(), "nothing to be in flight", 10)
    assert served.counter("whole") == served.counter("retries") == 0
    assert served.counter("signatures", quality="exact") >= served.counter("requests", outcome="ok")


def test_chats_and_completions(gpt):
    asked = {"model": "m", "max_tokens": TOKENS}
    chat = gpt.chat.completions.create(messages=SAID, **asked)
    assert chat.choices[0].message.content == EXPECTED["plain"]
    parts = gpt.chat.completions.create(messages=SAID, stream=True, **asked)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == EXPECTED["plain"]
    assert gpt.completions.create(prompt="hi", **asked).choices[0].text == EXPECTED["completion"]
    assert [model.id for model in gpt.models.list()] == ["m"]


@pytest.mark.parametrize("most", [TOKENS, None])
def test_responses(gpt, most):
    asked = {"model": "m", "max_output_tokens": most} if most else {"model": "m"}
    expected = EXPECTED["instructed"] if most else text.completion("system: be kind\nuser: hi", 16)
    raw = gpt.responses.with_raw_response.create(input="hi", instructions="be kind", **asked)
    assert raw.headers[HEADER_DECODE] in ("d0", "d1")
    response = raw.parse()
    assert response.output_text == expected
    assert response.usage.output_tokens == len(expected.split())
    assert response.id.startswith("resp-eldr-")
    listed = gpt.responses.create(input=SAID, instructions="be kind", store=False, **asked)
    assert listed.output_text == expected


def test_a_streamed_response(gpt):
    with gpt.responses.stream(model="m", input=SAID, max_output_tokens=TOKENS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds.count("response.output_text.delta") == TOKENS
    assert final.output_text == EXPECTED["plain"]


@pytest.mark.parametrize(
    "stateful",
    [{"store": True}, {"background": True}, {"previous_response_id": "resp_1"}, {"conversation": "c"}],
)
def test_a_response_that_needs_a_memory(gpt, stateful):
    with pytest.raises(openai.BadRequestError) as caught:
        gpt.responses.create(model="m", input="hi", **stateful)
    assert (caught.value.code, caught.value.param) == ("stateful", *stateful)
    with pytest.raises(openai.NotFoundError):
        gpt.responses.retrieve("resp_1")


def test_messages(claude):
    message = claude.messages.create(model="m", max_tokens=TOKENS, messages=SAID, system="be kind")
    (block,) = message.content
    assert block.text == text.completion("system: be kind\nuser: hi", TOKENS)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", TOKENS)


def test_a_streamed_message(claude):
    with claude.messages.stream(model="m", max_tokens=TOKENS, messages=SAID) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == final.content[0].text == EXPECTED["plain"]
    assert final.stop_reason == "max_tokens"


def test_tokens_of_a_message_are_counted_by_any_engine(claude, served):
    counts = {claude.messages.count_tokens(model="m", messages=SAID).input_tokens for _ in range(3)}
    message = claude.messages.create(model="m", max_tokens=1, messages=SAID)
    assert counts == {message.usage.input_tokens}


def test_mistakes_are_the_clients_own_errors(claude, gpt):
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(model="m", max_tokens=0, messages=SAID)
    assert caught.value.body["type"] == "error"
    assert "max_tokens" in caught.value.body["error"]["message"]
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="other", max_tokens=1, messages=SAID)
    with pytest.raises(openai.NotFoundError):  # these engines embed nothing
        gpt.embeddings.create(model="m", input="hi")
