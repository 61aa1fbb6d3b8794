"""Whole answers made of streams."""

import json

import pytest

from eldr_router.http.events import split_events
from eldr_router.plan.assemble import AssemblyError, assemble

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
        {"choices": [{"index": 0, "delta": {"reasoning": "hm"}}]},
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


def test_events_of_any_line_ending():
    assert split_events(b"data: a\n\n: c\n\ndata:b\r\n\r\ndata: c\rdata: d\r\r") == [b"a", b"b", b"c\nd"]
