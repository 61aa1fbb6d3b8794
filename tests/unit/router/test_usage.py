"""What a request and the end of its answer say for telemetry."""

import json

import msgspec
import pytest

from eldr_router.api.usage import UNKNOWN, Usage, model_of, usage_of

TOLD = {"prompt_tokens": 11, "total_tokens": 16, "completion_tokens": 5, "prompt_tokens_details": None}


@pytest.mark.parametrize("separators", [None, (",", ":")])
def test_usage_of_the_families(separators):
    def dumps(value):
        return json.dumps(value, separators=separators).encode()

    assert usage_of(dumps({"choices": [{"text": "x"}], "usage": TOLD, "kv_transfer_params": None})) == (11, 5)
    usage = {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 9}, "output_tokens": 4}
    assert usage_of(dumps({"output": [], "usage": usage})) == (3, 4)
    assert usage_of(dumps({"type": "message_delta", "usage": {"output_tokens": 7}})) == Usage(None, 7)


def test_the_last_usage_of_a_stream_counts():
    events = [
        b'data: {"choices":[],"usage":null}',
        b"data: " + json.dumps({"usage": TOLD}).encode(),
        b"data: [DONE]",
    ]
    assert usage_of(b"\n\n".join(events)) == (11, 5)
    assert usage_of(events[0]) == UNKNOWN


def test_no_text_looks_like_a_usage():
    said = json.dumps({"text": '"usage":{"prompt_tokens":1,"completion_tokens":2}'}).encode()
    assert usage_of(said) == UNKNOWN
    assert usage_of(b"") == UNKNOWN


def test_models():
    def named(raw: bytes) -> str:
        return model_of(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]))

    assert named(b'{"model": "a/\\u0062"}') == "a/b"
    assert (
        named(b"{}")
        == named(b'{"model": 3}')
        == named(b'{"model": null}')
        == named(b'{"model": ["x"]}')
        == ""
    )
    assert len(named(b'{"model": "%b"}' % (b"x" * 300))) == 256
    assert named(b'{"model": "%b"}' % (b"x" * 100_000)) == ""
