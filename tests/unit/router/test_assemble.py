"""Whole answers made of streams."""

import contextlib
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr_router.http.events import EventReader
from eldr_router.plan.assemble import Assembly, AssemblyError


def assemble(events: list[bytes], *, chat: bool) -> bytes:
    assembly = Assembly(chat=chat)
    for data in events:
        assembly.add(data)
    return assembly.finish()


TOP = {"id": "x", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def stream(*events) -> list[bytes]:
    return [*(json.dumps({**TOP, **event}).encode() for event in events), b"[DONE]"]


def test_a_completion():
    events = stream(
        {"choices": [{"index": 0, "text": " a", "token_ids": [1], "prompt_token_ids": [7, 8], "finish_reason": None,
                      "logprobs": {"tokens": [" a"], "token_logprobs": [-1.0], "top_logprobs": [{" a": -1.0}], "text_offset": [0]}}]},
        {"choices": [{"index": 0, "text": "b", "token_ids": [2], "finish_reason": "length", "stop_reason": None,
                      "logprobs": {"tokens": ["b"], "token_logprobs": [-2.0], "top_logprobs": [{"b": -2.0}], "text_offset": [2]}}]},
        {"choices": [], "usage": USAGE},
    )  # fmt: skip
    answer = json.loads(assemble(events, chat=False))
    (choice,) = answer["choices"]
    assert answer["object"] == "text_completion"
    assert answer["usage"] == USAGE
    assert {key: answer[key] for key in TOP} == TOP
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == (" ab", "length", [1, 2])
    assert choice["prompt_token_ids"] == [7, 8]
    assert choice["logprobs"]["token_logprobs"] == [-1.0, -2.0]
    assert choice["logprobs"]["text_offset"] == [0, 2]


def test_a_chat_with_thoughts():
    events = stream(
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [7]},
        {"choices": [{"index": 0, "delta": {"role": "", "reasoning": "hm"}}]},
        {"choices": [{"index": 0, "delta": {"reasoning": " so"}}]},
        {"choices": [{"index": 0, "delta": {"content": "yes"}, "logprobs": {"content": [{"token": "yes", "logprob": -1}]}}]},
        {"choices": [{"index": 0, "delta": {"content": "!"}, "finish_reason": "stop", "stop_reason": 5}]},
        {"choices": [], "usage": USAGE},
    )  # fmt: skip
    answer = json.loads(assemble(events, chat=True))
    (choice,) = answer["choices"]
    assert answer["object"] == "chat.completion"
    assert answer["prompt_token_ids"] == [7]
    assert choice["message"] == {"role": "assistant", "content": "yes!", "reasoning": "hm so"}
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 5)
    assert choice["logprobs"] == {"content": [{"token": "yes", "logprob": -1}]}


def test_thoughts_alone_are_no_content():
    events = stream(
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"index": 0, "delta": {"reasoning": "hm"}, "finish_reason": "length"}]},
    )
    assert json.loads(assemble(events, chat=True))["choices"][0]["message"]["content"] is None


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ([b"[DONE]"], "empty"),
        ([b'{"choices":[{"index":0,"text":"a"}]}'], "protocol"),
        ([b"nonsense"], "protocol"),
        ([b"[]"], "protocol"),
        ([b'{"error":{"code":500}}', b"[DONE]"], "error_event"),
        ([b'{"choices":[{"index":0,"text":"a","finish_reason":"abort"}]}', b"[DONE]"], "aborted"),
        ([b'{"choices":[1]}', b"[DONE]"], "protocol"),
        ([b'{"choices":5}', b"[DONE]"], "protocol"),
        ([b'{"choices":[{"index":0,"text":5}]}', b"[DONE]"], "protocol"),
        ([b'{"choices":[{"index":"x"}]}', b"[DONE]"], "protocol"),
        ([b'{"choices":[{"index":[]}]}', b"[DONE]"], "protocol"),
        ([b'{"choices":[{"index":0.5,"text":"a"}]}', b"[DONE]"], "protocol"),
        ([b'{"choices":[{"index":0,"logprobs":"x"}]}', b"[DONE]"], "protocol"),
        ([b'{"choices":[{"index":0,"logprobs":{"tokens":1}}]}', b"[DONE]"], "protocol"),
        ([b'{"choices":[{"index":0,"token_ids":7}]}', b"[DONE]"], "protocol"),
    ],
)
def test_what_is_no_answer(events, cause):
    with pytest.raises(AssemblyError) as caught:
        assemble(events, chat=False)
    assert caught.value.cause == cause
    assert caught.value.answer is None


def test_an_error_that_blames_the_client_is_its_answer():
    with pytest.raises(AssemblyError) as caught:
        assemble([b'{"error":{"code":400,"message":"no"}}', b"[DONE]"], chat=False)
    status, body = caught.value.answer
    assert (status, json.loads(body)["error"]["message"]) == (400, "no")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["index", "text", "delta", "logprobs", "token_ids", "role", "content", "choices", "error"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.lists(JSON, max_size=4), st.booleans())
def test_any_events_are_an_answer_or_a_named_error(values, chat):
    events = [json.dumps({"choices": value}).encode() for value in values] + [
        json.dumps(v).encode() for v in values
    ]
    with contextlib.suppress(AssemblyError):
        assert json.loads(assemble([*events, b"[DONE]"], chat=chat))["choices"]


def test_a_long_answer_copies_nothing_twice():
    logprobs = {
        "tokens": [" a"],
        "token_logprobs": [-1.0],
        "top_logprobs": [{" a": -1.0}],
        "text_offset": [0],
    }
    assembly = Assembly(chat=False)
    event = json.dumps(
        {**TOP, "choices": [{"index": 0, "text": " a", "token_ids": [1], "logprobs": logprobs}]}
    ).encode()
    lists = set()
    for _ in range(5000):
        assembly.add(event)
        lists.add(id(assembly._choices[0]._token_ids))
    assert len(lists) == 1, "lists grow, they are not made anew with every event"
    assembly.add(b"[DONE]")
    (choice,) = json.loads(assembly.finish())["choices"]
    assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"]) == 5000
    assert choice["text"] == " a" * 5000


@given(st.lists(st.integers(0, 48), max_size=6))
def test_events_of_any_line_ending_however_they_are_cut(cuts):
    text = b"data: a\n\n: c\n\ndata:b\r\n\r\ndata: c\rdata: d\r\r\n"
    reader, got = EventReader(), []
    edges = sorted({0, len(text), *cuts})
    for begin, end in itertools.pairwise(edges):
        got += reader.feed(text[begin:end])
    assert got == [b"a", b"b", b"c\nd"]
