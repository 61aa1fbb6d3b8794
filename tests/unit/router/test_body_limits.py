"""What a body may hold: what is refused at once, by name, and what must pass all the same."""

import base64
import json
import random
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr_router.api import bodies
from eldr_router.api.cost import MAX_BODY
from eldr_router.api.fields import MOST_ITEMS
from eldr_router.http.errors import RouterError


def refusal(raw, path=bodies.COMPLETIONS):
    with pytest.raises(RouterError) as caught:
        bodies.sequences(bodies.parse(raw, path))
    assert caught.value.status == 400
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", b"1000000000"),
        ("n", b"1" * 1_000_000),
        ("n", b"1e999"),
        ("best_of", b"16385"),
        ("max_tokens", b"9223372036854775808"),
        ("max_tokens", b"[" * 500 + b"]" * 500),
        ("seed", b"-" + b"7" * 1_000_000),
        ("temperature", b"1e999"),
        ("temperature", b"-1e999"),
        ("stream", b'"' + b"x" * 1000 + b'"'),
        ("prompt_logprobs", b"[" + b"1," * 1000 + b"1]"),
        ("prompt", b"[" + b'"",' * MOST_ITEMS + b'""]'),
        ("prompt", b"[" + b"[1]," * MOST_ITEMS + b"[1]]"),
        ("prompt", b"[" + b"1," * (3 << 20) + b"1]"),
        ("messages", b"[" + b"{}," * (MOST_ITEMS * 3) + b"{}]"),
        ("tools", b"[" + b"{}," * (MOST_ITEMS * 3) + b"{}]"),
        ("tools", b'["' + b"x" * (5 << 20) + b'"]'),
        ("vllm_xargs", b'{"a":"' + b"x" * 300_000 + b'"}'),
        ("vllm_xargs", b"{" + b",".join(b'"%d":1' % i for i in range(257)) + b"}"),
        ("stream_options", b'{"a":"' + b"x" * 5000 + b'"}'),
    ],
)
def test_a_field_beyond_its_limit_is_named(name, value):
    path = bodies.CHAT if name == "messages" else bodies.COMPLETIONS
    first = b"" if name == "prompt" else b'"prompt":["x","y"],'
    assert name in refusal(b'{"model":"m",' + first + b'"%b":%b}' % (name.encode(), value), path)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"[" * 5000 + b"]" * 5000, "nest too deep"),
        (b'"\xff"', "byte 6: .*xff.* is no UTF-8"),
        (b'"' + b"x" * 100 + b'\xed\xa0\x80"', "byte 106: .* is no UTF-8"),
    ],
)
def test_what_is_no_text_is_shown(value, why):
    assert re.search(why, refusal(b'{"x":%b}' % value, bodies.COMPLETIONS))


@pytest.mark.parametrize("many", [300, 300_000])
@pytest.mark.parametrize("key", ["a%d", "a"])
def test_too_many_fields(many, key):
    fields = ",".join(f'"{key % i if "%" in key else key}":{i}' for i in range(many))
    if many == 300 and key == "a":
        assert bodies.parse(f"{{{fields}}}".encode()).fields.keys() == {"a"}
        return
    assert "256 fields" in refusal(f"{{{fields}}}".encode())


@given(st.binary(max_size=40), st.sampled_from([0, 70_000, 3 << 20]))
def test_invalid_utf_8_never_passes(junk, padding):
    raw = b'{"pad":"%b","x":%b}' % (b"x" * padding, msgspec.json.encode("y"))
    raw = raw[:-2] + junk + raw[-2:]
    try:
        raw.decode()
    except UnicodeDecodeError:
        assert "UTF-8" in refusal(raw)
        return
    try:
        body = bodies.parse(raw)
    except RouterError:
        refusal(raw)
    else:
        assert json.loads(bodies.decode_body(body, None)) == json.loads(raw)


@pytest.mark.parametrize("cut", range(4))
def test_characters_may_lie_across_pieces(cut):
    text = "x" * cut + "é春😀" * 300_000
    raw = json.dumps({"prompt": text}, ensure_ascii=False).encode()
    assert len(raw) > 2 << 20
    assert bytes(bodies.parse(raw).prompt)[1:-1].decode() == text


def agent_tools():
    schema = {
        "type": "object",
        "properties": {f"p{i}": {"type": "string", "description": "x" * 60} for i in range(14)},
    }
    return [{"type": "function", "function": {"name": f"f{i}", "parameters": schema}} for i in range(128)]


PICTURE = base64.b64encode(random.Random(1).randbytes(12_400_000)).decode()


@pytest.mark.parametrize(
    ("fields", "path"),
    [

        ({"prompt": [123_456] * 800_000}, bodies.COMPLETIONS),
        ({"prompt": ["a b"] * MOST_ITEMS, "n": 16_384}, bodies.COMPLETIONS),


        ({"messages": [], "tools": agent_tools()}, bodies.CHAT),
        ({"messages": [{"role": "user", "content": "x"}] * MOST_ITEMS}, bodies.CHAT),
        ({"messages": [{"role": "user", "content": [{"image_url": {"url": PICTURE}}]}]}, bodies.CHAT),

        ({"prompt": "春" * 1_300_000}, bodies.COMPLETIONS),
        ({"prompt": "\U0001f600 \x00", "seed": -(2**63), "temperature": 1e-300, "x": 2**64}, bodies.COMPLETIONS),
        ({"prompt": "x", "vllm_xargs": {"a": [1.5, 2], "b": {"c": [[]]}}, "max_tokens": 2**31 - 1}, bodies.COMPLETIONS),
        ({"prompt": "x", "z": json.loads("[" * 500 + "]" * 500)}, bodies.COMPLETIONS),
    ],
    ids=[ "800k ids", "texts",   "tools", "messages", "picture",  "escapes", "odd", "xargs", "deep"],
)  # fmt: skip
def test_valid_bodies_pass(fields, path):
    raw = json.dumps(fields).encode()
    assert len(raw) <= MAX_BODY
    body = bodies.parse(raw, path)
    assert bodies.sequences(body) >= 1
    assert json.loads(bodies.decode_body(body, None)) == fields
    assert bodies.prefill_body(body)


@pytest.mark.parametrize("size", [1, 255, MOST_ITEMS - 1, MOST_ITEMS])
@pytest.mark.parametrize("item", ["", "x" * 2000, 'say "no"'])
def test_prompts_are_counted(size, item):
    assert bodies.sequences(bodies.parse(json.dumps({"prompt": [item] * size}).encode())) == size


def test_a_higher_limit_lets_more_pass():
    raw = json.dumps({"prompt": [123_456] * 2_000_000}).encode()
    assert "prompt" in refusal(raw)
    assert bodies.parse(raw, max_body=64 << 20)
