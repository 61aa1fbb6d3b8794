"""What is split, what each leg gets, what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr_router.http.errors import RouterError
from eldr_router.plan import bodies

NAME = "kv_transfer_params"


def escaped(name: str, which: list[bool]) -> str:
    return "".join(f"\\u{ord(c):04x}" if flag else c for c, flag in zip(name, which, strict=True))


@given(
    st.lists(st.booleans(), min_size=len(NAME), max_size=len(NAME)),
    st.sampled_from(["null", "{}", "0", '""']),
)
def test_reserved_names_however_spelled(which, value):
    key = escaped(NAME, which)
    for text in (
        f'{{"{key}":{value},"prompt":"x"}}',
        f'{{"prompt":"x","{NAME}":{{}},"{key}":{value}}}',
        f'{{"vllm_xargs":{{"{key}":{value}}}}}',
        f'{{"vllm_xargs":1,"vllm_xargs":{{"{key}":{value}}}}}',
    ):
        with pytest.raises(RouterError) as error:
            bodies.parse(text.encode())
        assert (error.value.status, error.value.param) == (400, NAME)


def test_what_an_engine_reads_is_what_was_checked():
    """A duplicate key has one meaning left after re-serialising, and so has every odd spelling."""
    body = bodies.parse(b'{"prompt":"a","prompt":"b","\\u006e":1,"n":2}')
    assert json.loads(bodies.decode_body(body, None)) == {"prompt": "b", "n": 2}
    assert bodies.decode_body(body, None).count(b"prompt") == 1


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'"x"', b"{", b"{} {}", b"\xff\xfe{\x00}\x00", b'{"a":NaN}', b"null"]
)
def test_not_an_object(raw):
    with pytest.raises(RouterError) as error:
        bodies.parse(raw)
    assert error.value.code == "invalid_json"


@pytest.mark.parametrize(
    ("body", "path", "reason"),
    [
        ({"prompt": "x"}, bodies.COMPLETIONS, None),
        ({"prompt": [1, 2]}, bodies.COMPLETIONS, None),
        (
            {"prompt": "x", "n": 1, "best_of": 1, "echo": False, "prompt_logprobs": None},
            bodies.COMPLETIONS,
            None,
        ),
        ({"prompt": []}, bodies.COMPLETIONS, "prompt"),
        ({"prompt": ["x"]}, bodies.COMPLETIONS, "prompt"),
        ({"prompt": [[1]]}, bodies.COMPLETIONS, "prompt"),
        ({"prompt": [1, "x"]}, bodies.COMPLETIONS, "prompt"),
        ({}, bodies.COMPLETIONS, "prompt"),
        ({"prompt": "x", "n": 2}, bodies.COMPLETIONS, "n"),
        ({"prompt": "x", "n": "2"}, bodies.COMPLETIONS, "n"),
        ({"prompt": "x", "best_of": 2}, bodies.COMPLETIONS, "best_of"),
        ({"prompt": "x", "echo": True}, bodies.COMPLETIONS, "echo"),
        ({"prompt": "x", "use_beam_search": True}, bodies.COMPLETIONS, "use_beam_search"),
        ({"prompt": "x", "prompt_logprobs": 0}, bodies.COMPLETIONS, "prompt_logprobs"),
        ({"messages": [{"role": "user", "content": "x"}]}, bodies.CHAT, None),
        ({"messages": "x"}, bodies.CHAT, "messages"),
    ],
)
def test_unsplittable(body, path, reason):
    assert bodies.unsplittable(body, path) == reason


def test_prefill_body():
    body = {
        "model": "m",
        "messages": [],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 100,
        "min_tokens": 5,
        "n": 1,
        "best_of": 1,
        "logprobs": True,
        "top_logprobs": 3,
        "prompt_logprobs": None,
        "tools": [1],
        "seed": 3,
    }
    chat = json.loads(bodies.prefill_body(body, bodies.CHAT))
    assert chat.pop(NAME)["do_remote_decode"] is True
    assert chat == {
        "model": "m",
        "messages": [],
        "stream": False,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "min_tokens": 1,
        "n": 1,
        "tools": [1],
        "seed": 3,
    }
    assert "max_completion_tokens" not in json.loads(bodies.prefill_body({"prompt": "x"}, bodies.COMPLETIONS))
    limited = {"prompt": "x", "max_completion_tokens": 7}
    assert json.loads(bodies.prefill_body(limited, bodies.COMPLETIONS))["max_completion_tokens"] == 1
    assert body["stream"] is True, "the client's body stays as it was"


def test_decode_body():
    body = {"prompt": "ü", "stream": True}
    sent = json.loads(bodies.decode_body(body, {"a": 1, "eldr": {"counts": "x"}}))
    assert sent == {**body, NAME: {"a": 1}}
    assert NAME not in body


def test_prefixes():
    def prompt(value):
        return bodies.prefix({"prompt": value}, bodies.COMPLETIONS)

    assert prompt("ab") == b"ab"
    assert len(prompt("ü" * 2000)) == bodies.PREFIX_BYTES
    assert prompt([1, 23]) == b"1 23"
    assert prompt(None) == b""
    assert prompt("x" * 5000) == prompt("x" * 1024 + "y")

    def chat(*contents):
        return bodies.prefix({"messages": [{"content": content} for content in contents]}, bodies.CHAT)

    assert chat("sys", "user") == b"sys\nuser"
    assert chat([{"type": "text", "text": "a"}, {"type": "image_url"}, 3], None) == b"a"
    assert chat("s" * 2000, "a") == chat("s" * 2000, "b")
    assert bodies.prefix({"messages": [1, {}]}, bodies.CHAT) == b""


@pytest.mark.parametrize(
    "field",
    [
        b'"max_tokens":-1', b'"max_tokens":0', b'"max_tokens":"7"', b'"max_tokens":{}', b'"max_tokens":true',
        b'"max_completion_tokens":0', b'"min_tokens":-1', b'"n":0', b'"n":"1"', b'"stream":"yes"', b'"stream_options":[]',
    ],
)  # fmt: skip
def test_what_only_the_decode_engine_would_refuse_is_refused_before_prefill(field):
    with pytest.raises(RouterError) as caught:
        bodies.parse(b'{"prompt":"x",' + field + b"}")
    assert caught.value.status == 400
    assert field.split(b'"')[1].decode() in str(caught.value)


def test_nothing_is_refused_that_engines_take():
    fields = b'"max_tokens":null,"n":1,"stream":true,"stream_options":{"include_usage":true},"min_tokens":0'
    assert bodies.parse(b'{"prompt":"x",' + fields + b"}")["n"] == 1
    assert bodies.parse(b'{"prompt":"x","echo":true,"max_tokens":0}')["max_tokens"] == 0


@pytest.mark.parametrize("depth", [100, 260, 1000])
def test_a_body_too_deep_to_forward_is_the_client_s_mistake(depth):
    body = bodies.parse(b'{"prompt":"x","z":' + b"[" * depth + b"]" * depth + b"}")
    if depth < 200:
        assert bodies.prefill_body(body, bodies.COMPLETIONS)
        return
    for write in (
        lambda: bodies.prefill_body(body, bodies.COMPLETIONS),
        lambda: bodies.decode_body(body, {}),
    ):
        with pytest.raises(RouterError) as caught:
            write()
        assert caught.value.status == 400
