"""What engines say before their first token, in the words of a real vLLM 0.32."""

import pytest

from eldr_router.api import answers

ROLE = b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1]}'


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b'{"error":{"message":"x","code":500}}', "error_event"),
        (b'{"error":"x"}', "error_event"),
        (b'{"error":{"code":400}}', "tokens"),
        (ROLE, "opening"),
        (b'{"choices":[],"usage":{}}', "opening"),
        (b'{"error":null,"choices":[]}', "opening"),
        (b'{"choices":[{"text":"","finish_reason":null}]}', "opening"),
        (b'{"choices":[{"text":"","token_ids":[7],"finish_reason":null}]}', "tokens"),
        (b'{"choices":[{"text":"","finish_reason":"stop"}]}', "tokens"),
        (b'{"choices":[{"text":"\\"error\\""}]}', "tokens"),
        (b'{"choices":[{"delta":{"content":"a"}}]}', "tokens"),
        (b'{"choices":[{"delta":{"reasoning_content":"a"}}]}', "tokens"),
        (b'{"choices":[{"delta":{"tool_calls":[{}]}}]}', "tokens"),
        (b'{"choices":[{"text":"","finish_reason":"abort"}]}', "aborted"),
        (b'{"choices":[{"delta":{},"finish_reason":"abort"}]}', "aborted"),
        (b'{"choices":[{"text":"a","finish_reason":"abort"}]}', "tokens"),
        (b"[DONE]", "aborted"),
        (b'{"error"', "tokens"),
        (b'{"choices":[1]}', "tokens"),
        (b"{}", "tokens"),
    ],
)
def test_first_words(data, word):
    assert answers.first_word(data) == word


@pytest.mark.parametrize(
    ("body", "aborted"),
    [
        (b'{"choices":[{"text":"a","finish_reason":"abort"}]}', True),
        (b'{"choices":[{"finish_reason":"stop"},{"finish_reason":"abort"}]}', True),
        (b'{"choices":[{"text":"the word \\"abort\\"","finish_reason":"stop"}]}', False),
        (b'{"choices":["abort"]}', False),
        (b'"abort"', False),
        (b"", False),
    ],
)
def test_whole_answers_cut_short(body, aborted):
    assert answers.is_aborted(body, answers.has_aborted, b'"abort"') is aborted
