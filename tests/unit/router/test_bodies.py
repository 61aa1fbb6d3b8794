"""What is split, what each leg gets, what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr_router.api import bodies
from eldr_router.http.errors import RouterError

NAME = "kv_transfer_params"


def parsed(fields, path=bodies.COMPLETIONS):
    return bodies.parse(json.dumps(fields).encode(), path)


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
        ({"prompt": ["x", "y"]}, bodies.COMPLETIONS, "prompt"),
        ({"prompt": [[1], [2]]}, bodies.COMPLETIONS, "prompt"),
        ({"prompt": [1, "x"]}, bodies.COMPLETIONS, None),  # the prefill engine refuses it
        ({"prompt": [-1]}, bodies.COMPLETIONS, None),
        ({}, bodies.COMPLETIONS, "prompt"),
        ({"prompt": "x", "n": 2}, bodies.COMPLETIONS, "n"),
        ({"prompt": "x", "best_of": 2}, bodies.COMPLETIONS, "best_of"),
        ({"prompt": "x", "echo": True}, bodies.COMPLETIONS, "echo"),
        ({"prompt": "x", "use_beam_search": True}, bodies.COMPLETIONS, "use_beam_search"),
        ({"prompt": "x", "prompt_logprobs": 0}, bodies.COMPLETIONS, "prompt_logprobs"),
        ({"messages": [{"role": "user", "content": "x"}]}, bodies.CHAT, None),
        ({"messages": "x"}, bodies.CHAT, "messages"),
        ({"prompt": "", "prompt_embeds": "AAAA"}, bodies.COMPLETIONS, "prompt_embeds"),
        ({"prompt": "x", "prompt_embeds": None}, bodies.COMPLETIONS, None),
        ({"messages": [], "prompt_embeds": "AAAA"}, bodies.CHAT, None),
    ],
)
def test_unsplittable(body, path, reason):
    assert bodies.unsplittable(parsed(body, path)) == reason


def test_prefill_body():
    body = {
        "model": "m",
        "messages": [],
        "stream": True,
        "stream_options": {"include_usage": True},
        "best_of": 1,
        "tools": [1],
    }
    chat = json.loads(bodies.prefill_body(parsed(body, bodies.CHAT)))
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
    }
    assert "max_completion_tokens" not in json.loads(bodies.prefill_body(parsed({"prompt": "x"})))
    limited = {"prompt": "x", "max_completion_tokens": 7}
    assert json.loads(bodies.prefill_body(parsed(limited)))["max_completion_tokens"] == 1


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"prompt": "x"}, 1),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1], [2]]}, 2),
        ({}, 1),
        ({"prompt": "", "prompt_embeds": "AAAA"}, 1),
        ({"prompt": "x", "prompt_embeds": ["AAAA", "AAAA"], "n": 2}, 6),
    ],
)
def test_sequences(fields, count):
    assert bodies.sequences(parsed(fields)) == count


def test_a_prompt_stays_the_bytes_that_came():
    text = '{"model": "m", "prompt" :  [1,  2], "x": {"a" : 1}}'
    body = bodies.parse(text.encode())
    assert bytes(body.prompt) == b"[1,  2]"
    assert b'"prompt":[1,  2]' in bodies.decode_body(body, None)


@pytest.mark.parametrize(
    "field",
    [
        b'"max_tokens":-1', b'"max_tokens":0', b'"max_tokens":"7"', b'"max_tokens":{}', b'"max_tokens":true',
        b'"max_completion_tokens":0', b'"min_tokens":-1', b'"n":0', b'"n":"1"', b'"stream":"yes"', b'"stream_options":[]',
        b'"best_of":4.0', b'"best_of":0',
    ],
)  # fmt: skip
def test_what_only_the_decode_engine_would_refuse_is_refused_before_prefill(field):
    with pytest.raises(RouterError) as caught:
        bodies.parse(b'{"prompt":"x",' + field + b"}")
    assert caught.value.status == 400
    assert field.split(b'"')[1].decode() in str(caught.value)


def test_nothing_is_refused_that_engines_take():
    fields = b'"max_tokens":null,"n":1,"stream":true,"stream_options":{"include_usage":true},"min_tokens":0'
    assert bodies.parse(b'{"prompt":"x",' + fields + b"}").known["n"] == 1
    assert bodies.parse(b'{"prompt":"x","echo":true,"max_tokens":0}').known["max_tokens"] == 0


@pytest.mark.parametrize("depth", [100, 20_000])  # Hypothesis raises the limit of recursion while it runs
def test_a_body_too_deep_to_forward_is_the_client_s_mistake(depth):
    raw = b'{"prompt":"x","z":' + b"[" * depth + b"]" * depth + b"}"
    if depth < 200:
        assert bodies.prefill_body(bodies.parse(raw))
        return
    with pytest.raises(RouterError) as caught:
        bodies.parse(raw)
    assert caught.value.status == 400


def test_what_the_prefill_engine_can_refuse_it_gets_to_see():
    """It answers 400 then, before it has computed anything: the decode engine would say so too late."""
    body = parsed({"prompt": "x", "n": None, "min_tokens": None, "logprobs": "x", "max_tokens": None})
    sent = json.loads(bodies.prefill_body(body))
    assert (sent["n"], sent["min_tokens"], sent["logprobs"], sent["max_tokens"]) == (None, None, "x", 1)


@pytest.mark.parametrize("prompt", ['["a, \\"b"]', "[ [1, 2] ]", '[\n"x"]'])
def test_a_list_of_one_prompt_is_that_prompt(prompt):
    body = bodies.parse(b'{"prompt":' + prompt.encode() + b"}")
    assert bodies.unsplittable(body) is None
    assert [json.loads(bytes(body.prompt))] == json.loads(prompt)
    assert json.loads(bodies.decode_body(body, None))["prompt"] == json.loads(prompt)[0]


@pytest.mark.parametrize("prompt", ['["a","b"]', "[[1],[2]]", "[1]", '"x"', "[]", "[1,2]", '["a",1]', "3"])
def test_any_other_prompt_stays_as_it_is(prompt):
    body = bodies.parse(b'{"prompt":' + prompt.encode() + b"}")
    assert json.loads(bytes(body.prompt)) == json.loads(prompt)


def test_a_mark_before_the_text_is_skipped():
    assert bodies.parse(b'\xef\xbb\xbf{"prompt":"x"}').known == {}


@pytest.mark.parametrize("path", [bodies.COMPLETIONS, bodies.CHAT])
@pytest.mark.parametrize(
    ("stream", "options", "said"),
    [
        (True, '{"include_usage":"x"}', "include_usage"), (True, '{"continuous_usage_stats":2}', "continuous_usage_stats"),
        (False, '{"include_usage":true}', "stream: true"), (False, "{}", "stream: true"), (True, "[]", "object"),
    ],
)  # fmt: skip
def test_stream_options_are_checked_here_because_no_prefill_engine_sees_them(path, stream, options, said):
    fields = {"prompt": "x", "messages": [], "stream": stream, "stream_options": json.loads(options)}
    with pytest.raises(RouterError, match=said) as caught:
        bodies.parse(json.dumps(fields).encode(), path)
    assert (caught.value.status, caught.value.param) == (400, "stream_options")


def test_a_freeing_body_names_the_result_and_nothing_of_the_client():
    sent = json.loads(bodies.freeing_body({"a": 1, "eldr": 2}))
    assert (sent.pop(NAME), sent["stream"], sent["use_beam_search"]) == ({"a": 1}, True, True)


def chat(*messages):
    return parsed({"messages": messages}, bodies.CHAT)


SYSTEM, HELLO = {"role": "system", "content": "s}]"}, {"role": "user", "content": "h\u00fc"}


def test_the_stem_of_a_conversation_is_the_same_in_all_its_turns():
    first = chat(SYSTEM, HELLO)
    later = chat(SYSTEM, HELLO, {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"})
    assert bytes(first.prompt[: first.beginning[1]]) == bytes(later.prompt[: later.beginning[1]])
    assert bytes(first.prompt[first.beginning[1] :]) == b"]"


def test_a_stem_is_counted_in_bytes():
    body = bodies.parse(
        '{"messages": [ {"role": "user", "content": "äöü😀"} , {"role":"user"}]}'.encode(), bodies.CHAT
    )
    assert bytes(body.prompt[: body.beginning[1]]).decode().endswith('😀"}')


@pytest.mark.parametrize(
    "messages",
    ["[]", "[1]", '[{"role":"system"}]', '"x"', '[{"role":"system","content":"' + "x" * 70000 + '"}]'],
)
def test_what_has_no_stem(messages):
    assert bodies.parse(b'{"messages":%b}' % messages.encode(), bodies.CHAT).beginning[1] == 0
    assert parsed({"prompt": "x"}).beginning[1] == 0
