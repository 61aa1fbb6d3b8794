"""``/v1/responses`` and ``/v1/messages``: what is refused, what each leg gets, and how a real vLLM 0.32 answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr_router.api import bodies, messages, responses
from eldr_router.api.paths import ANY_ENGINE, APIS, MESSAGES, RESPONSES
from eldr_router.http.errors import RouterError

KV = "kv_transfer_params"
SAID = {"role": "user", "content": "hi"}


def parsed(path, **fields):
    fields = {
        "model": "m",
        **({"input": "hi"} if path == RESPONSES else {"messages": [SAID], "max_tokens": 9}),
        **fields,
    }
    return bodies.parse(json.dumps(fields).encode(), path)


def test_no_path_is_served_in_two_ways():
    assert not APIS.keys() & ANY_ENGINE.keys()


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("body", [{KV: {}}, {"vllm_xargs": {KV: {}}}])
def test_what_the_router_alone_may_say_is_refused_everywhere(path, body):
    with pytest.raises(RouterError) as caught:
        parsed(path, **body)
    assert caught.value.code == "reserved"


# responses


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", True),  ("background", True), ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),  ("prompt", {"id": "p"}),
    ],
)  # fmt: skip
def test_what_needs_a_memory_is_refused_with_a_reason(name, value):
    with pytest.raises(RouterError) as caught:
        parsed(RESPONSES, **{name: value})
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "stateful", name)


@pytest.mark.parametrize("name", ["store", "background", "previous_response_id", "conversation", "prompt"])
def test_what_asks_for_no_memory_is_taken(name):
    parsed(RESPONSES, **{name: None})
    if name in ("store", "background"):
        parsed(RESPONSES, **{name: False})


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (RESPONSES, "max_output_tokens", 0),
        (RESPONSES, "ignore_eos", "x"),
        (RESPONSES, "user", "x" * (1 << 20)),
        (MESSAGES, "max_tokens", None),
        (MESSAGES, "max_tokens", 0),
        (MESSAGES, "thinking", {"type": "enabled", "budget_tokens": 9}),
        (MESSAGES, "thinking", {"type": "enabled", "budget_tokens": 2000}),
        (MESSAGES, "thinking", {"type": "enabled"}),
    ],
)
def test_what_only_the_decode_engine_would_refuse_is_refused_before_a_prefill(path, name, value):
    with pytest.raises(RouterError) as caught:
        parsed(path, **{name: value})
    assert (caught.value.status, caught.value.param) == (400, name)


def test_no_limit_is_not_less_than_one_token_even_with_echo():
    with pytest.raises(RouterError):
        parsed(MESSAGES, max_tokens=0, echo=True)


@pytest.mark.parametrize(
    ("path", "fields", "why"),
    [
        (RESPONSES, {}, None),
        (RESPONSES, {"input": 3}, "input"),
        (RESPONSES, {"n": 4, "echo": True}, None),  # no field of this path
        (RESPONSES, {"tools": []}, None),
        (RESPONSES, {"tools": [{"type": "function", "name": "f"}, {"type": "custom"}]}, None),
        (RESPONSES, {"tools": [{"type": "function"}, {"type": "code_interpreter"}]}, "tools"),
        (RESPONSES, {"tools": [{"type": "mcp", "server_label": "x"}]}, "tools"),
        (RESPONSES, {"tools": [1]}, "tools"),
        (RESPONSES, {"include_reasoning": False}, "include_reasoning"),
        (MESSAGES, {}, None),
        (MESSAGES, {"messages": "x"}, "messages"),
        (MESSAGES, {"tools": [{"name": "f"}]}, None),
        (MESSAGES, {"tools": [{"name": "f"}], "tool_choice": {"type": "auto"}}, None),
        (MESSAGES, {"tools": [{"name": "f"}], "tool_choice": {"type": "any"}}, "tool_choice"),
        (MESSAGES, {"tools": [{"name": "f"}], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        (MESSAGES, {"tool_choice": {"type": "any"}}, None),
    ],
)
def test_what_cannot_be_split(path, fields, why):
    body = parsed(path, **fields)
    assert bodies.unsplittable(body) == why
    assert bodies.sequences(body) == 1


def test_legs_of_a_response():
    body = parsed(
        RESPONSES, instructions="be kind", stream=True, max_output_tokens=50, request_id="mine", stop=["x"]
    )
    first = json.loads(bodies.prefill_body(body, "eldr-0a1b2c3d-1-1"))
    assert first.pop(KV)["do_remote_decode"] is True
    assert first == {
        "model": "m", "input": "hi", "instructions": "be kind", "stream": False, "max_output_tokens": 1,
        "ignore_eos": True, "store": False, "request_id": "resp-eldr-0a1b2c3d-1-1", "stop": ["x"],
    }  # fmt: skip
    second = json.loads(bodies.decode_body(body, {"a": 1, "eldr": {}}, request_id="eldr-0a1b2c3d-1-2"))
    assert second == {
        "model": "m", "input": "hi", "instructions": "be kind", "stream": True, "max_output_tokens": 50,
        "store": False, "request_id": "resp-eldr-0a1b2c3d-1-2", "stop": ["x"], KV: {"a": 1},
    }  # fmt: skip


def test_legs_of_a_message():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = parsed(MESSAGES, stream=True, max_tokens=2000, thinking=thinking, system="be kind")
    first = json.loads(bodies.prefill_body(body))
    assert first.pop(KV)["do_remote_decode"] is True
    assert first == {"model": "m", "messages": [SAID], "system": "be kind", "stream": False, "max_tokens": 1}
    second = json.loads(bodies.decode_body(body, {"a": 1}))
    assert (second["thinking"], second["max_tokens"], second[KV]) == (thinking, 2000, {"a": 1})
    other = parsed(MESSAGES, thinking={"type": "disabled"})  # it changes the prompt
    assert "thinking" in json.loads(bodies.prefill_body(other))


@pytest.mark.parametrize(
    ("path", "name", "prompt"),
    [(RESPONSES, "instructions", {"input": "hi"}), (RESPONSES, "instructions", {"input": [SAID, SAID]}),
     (MESSAGES, "system", {"messages": [SAID, SAID]})],
)  # fmt: skip
def test_engines_are_chosen_by_instructions_as_well(path, name, prompt):
    plain, stem = parsed(path, **prompt).beginning
    assert 0 < stem <= len(plain)
    begun, longer = parsed(path, **{name: "be kind"}, **prompt).beginning
    assert bytes(begun) == b'"be kind"' + bytes(plain)
    assert longer == stem + len(b'"be kind"')
    assert parsed(path, **{name: None}, **prompt).beginning == (plain, stem)


CREATED = b'{"response":{"id":"r","status":"in_progress","output":[],"usage":null},"sequence_number":0,"type":"response.created"}'
DELTA = b'{"content_index":0,"delta":" a","item_id":"m","logprobs":[],"output_index":0,"type":"response.output_text.delta"}'


def completed(tokens=1, status="completed"):
    response = {"id": "r", "status": status, "output": [1], "usage": {"output_tokens": tokens}}
    return json.dumps({"response": response, "type": "response.completed"}).encode()


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (CREATED, "early"),
        (CREATED.replace(b"created", b"some_new_name"), "early"),
        (b'{"item":{"id":"m"},"output_index":0,"type":"response.output_item.added"}', "tokens"),
        (DELTA, "tokens"),
        (completed(), "tokens"),
        (completed(0), "aborted"),
        (completed(3, "cancelled"), "aborted"),
        (b'{"response":{},"type":"response.failed"}', "error_event"),
        (b'{"type":"error","message":"x"}', "error_event"),
        (b'{"error":{"message":"x","code":500}}', "error_event"),
        (b'{"error":{"message":"x","code":400}}', "tokens"),
        (b"[DONE]", "tokens"),
        (b'{"response":', "tokens"),
    ],
)
def test_first_words_of_a_response(data, word):
    assert responses.first_word(data) == word


START = (
    b'{"type":"message_start","message":{"id":"x","type":"message","role":"assistant","content":[],"model":"m",'
    b'"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":0}}}'
)


def ended(reason="end_turn"):
    delta = {"stop_reason": reason, "stop_sequence": None}
    usage = {"input_tokens": 3, "output_tokens": 2}
    return json.dumps({"type": "message_delta", "delta": delta, "usage": usage}).encode()


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (START, "opening"),
        (b'{"type":"ping"}', "early"),
        (b'{"index":0,"type":"content_block_start","content_block":{"type":"text","text":""}}', "tokens"),
        (ended(), "tokens"),
        (ended(None), "aborted"),
        (b'{"type":"error","error":{"type":"internal_error","message":"x"}}', "error_event"),
        (b'{"error":{"code":400}}', "tokens"),
        (b'{"type"', "tokens"),
        (b"[DONE]", "tokens"),
    ],
)
def test_first_words_of_a_message(data, word):
    assert messages.first_word(data) == word


def test_whole_answers_cut_short():
    assert responses.is_cut({"status": "cancelled"})
    assert responses.is_cut({"status": "completed", "usage": {"output_tokens": 0}})
    assert not responses.is_cut({"status": "completed", "usage": {"output_tokens": 1}})
    assert not responses.is_cut({"choices": []})
    assert messages.is_cut({"type": "message"})
    assert not messages.is_cut({"type": "message", "stop_reason": "end_turn"})
    assert not messages.is_cut({"choices": []})


_NAMES = st.sampled_from(
    ["type", "response", "error", "usage", "output_tokens", "status", "message", "index", "content_block", "delta", "text",
     "stop_reason", "code"]
)  # fmt: skip
_KINDS = st.sampled_from(
    ["response.created", "response.completed", "error", "message_start", "content_block_start", "content_block_delta",
     "message_delta", "message_stop", "text_delta"]
)  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | _KINDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from([RESPONSES, MESSAGES]), _JSON)
def test_whatever_engines_say_has_a_meaning(path, event):
    word = APIS[path].first_word(json.dumps(event).encode())
    assert word in ("tokens", "opening", "early", "error_event", "aborted")


@given(
    st.sampled_from([RESPONSES, MESSAGES]),
    st.dictionaries(
        st.sampled_from(
            [
                "input",
                "messages",
                "max_tokens",
                "max_output_tokens",
                "store",
                "thinking",
                "tools",
                "tool_choice",
                "include_reasoning",
                "ignore_eos",
                "system",
                "instructions",
                "stream",
                "n",
            ]
        ),
        _JSON,
    ),
)
def test_whatever_clients_send_is_taken_or_refused(path, fields):
    try:
        body = bodies.parse(json.dumps(fields).encode(), path)
    except RouterError:
        return
    bodies.unsplittable(body)
    assert body.beginning[1] <= len(body.beginning[0])
    for sent in (
        bodies.prefill_body(body, "x"),
        bodies.decode_body(body, {}, request_id="x"),
    ):
        assert json.loads(sent)[KV] is not None
