"""Bodies that people send, right and wrong: one field, or a few, changed in a small request of each path.

Of fields that the router hands on as they are, there are a few.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eldr_router.api.paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES

Fields = dict[str, Any]
_SAID = [{"role": "user", "content": "hi"}]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_CLAUDE_TOOL = {"name": "f", "input_schema": {"type": "object"}}
_BASE: dict[str, Fields] = {
    COMPLETIONS: {"model": "m", "prompt": "hi"},
    CHAT: {"model": "m", "messages": _SAID},
    RESPONSES: {"model": "m", "input": "hi"},
    MESSAGES: {"model": "m", "messages": _SAID, "max_tokens": 64},
}


def _each(**values: list[Any]) -> list[Fields]:
    return [{name: value} for name, found in values.items() for value in found]


def _with(base: Fields, **values: list[Any]) -> list[Fields]:
    return [base | one for one in _each(**values)]


_EVERYWHERE = [
    {},
    *_each(
        stream=[True, False, None, "true", 1, 0, "x"],
        stream_options=[{"include_usage": True}, {}, None, [], "x"],
        temperature=["0.5", None, -1], seed=[1 << 63], stop=[["x"], ["x"] * 100], unknown=[1],
        user=["u", None, 1], request_id=["x"], ignore_eos=[True], cache_salt=[""], logit_bias=[{"x": "y"}],
        vllm_xargs=[{"a": 1}, None, [], "x", {"a": {}}, {"a": None}],
        model=[None, 1], return_token_ids=[True, "yes"], truncate_prompt_tokens=[5, -2],
    ),
    *_with(
        {"stream": True},
        stream_options=[
            {"include_usage": True}, {"include_usage": None}, {"include_usage": "x"}, {"include_usage": 2}, {"other": 1},
            {"continuous_usage_stats": "no"}, {}, None,
        ],
    ),
]  # fmt: skip
_OPENAI = [
    *_each(
        max_tokens=[1, 0, -1, None, 16.0, 16.5, "16", "x", True, 1 << 63, 1e30, [1]],
        min_tokens=[0, 1, None, -1, 2.0, "1", "x", True], max_completion_tokens=[5, 0, None, 5.0, "5", -3],
        n=[1, 2, 0, -1, None, 1.0, "1", "x", True, False, 20000], best_of=[1, 2, None, "x"],
        echo=[True, False, None, 1, "yes"], use_beam_search=[True, False, None],
        prompt_logprobs=[None, 0, False, "1", -1, -2, True],
        response_format=[{"type": "json_object"}, {"type": "text"}, {"type": "json_schema"}, "json"],
        structured_outputs=[{"regex": "a"}, {"regex": "a", "choice": ["b"]}, None],
    ),
    {"min_tokens": 9, "max_tokens": 4},
    {"max_tokens": 5, "max_completion_tokens": 7},
    *_with({"stream": True}, use_beam_search=[True], prompt_logprobs=[1, None, False]),
]  # fmt: skip
_OWN: dict[str, list[Fields]] = {
    COMPLETIONS: [
        *_each(
            logprobs=[None, 0, 1, 5, -1, -2, True, False, "1", 1.0, "x"], top_logprobs=[3],
            prompt=[["hi"], [1, 2], [[1, 2]], ["a", "b"], [], "", None, [""], [[]], 1, [1, "a"], [["a"]], [True]],
            suffix=["x"], logprob_token_ids=[[1]], prompt_embeds=[None],
        ),
        {"logprob_token_ids": [1], "logprobs": 1},
    ],
    CHAT: [
        *_each(
            logprobs=[True, False, None, 5, 1, 0, "true", "x", 1.0], top_logprobs=[0, 3, -1, -2, None, "x", 3.0, "3", True],
            logprob_token_ids=[[1]], tools=[[_TOOL], [], None, [{"type": "x"}]], functions=[[{"name": "f"}]],
            tool_choice=["auto", "required", "none", None],
            messages=[[], [{"role": "user"}], [{"role": "x", "content": "y"}], None, "x"],
            reasoning_effort=["low", "x"], include_reasoning=[False, None], continue_final_message=[True],
            store=[False],
        ),
        *_with({"logprobs": True}, top_logprobs=[0, 3, None, -1, 50, "3"], logprob_token_ids=[[1], []]),
        *_with({"top_logprobs": 3}, logprobs=[False, None], stream=[True]),
        *_with({"tools": [_TOOL]}, tool_choice=["auto", "required", "none", "x"]),
        *_with({"tools": [_TOOL]}, tool_choice=[{"type": "function", "function": {"name": name}} for name in "fg"]),
    ],
    RESPONSES: [
        *_each(
            max_output_tokens=[5, 0, -1, None, 5.0, "5", True], store=[False, True, None], background=[False, True],
            previous_response_id=[None, "resp_1"], instructions=["x", None, 5], input=[[], _SAID, None, 1],
            tools=[[{"type": "function", "name": "f", "parameters": {"type": "object"}}], [], None],
            tool_choice=["auto", "none", "required", None],
            reasoning=[{"effort": "low"}, None], text=[{"format": {"type": "text"}}], top_logprobs=[2, None, -1, "2"],
            include=[[], ["message.output_text.logprobs"]],
            prompt=[{"id": "x"}, None], ignore_eos=["x", False, 1], max_tokens=[5], include_reasoning=[True],
            structured_outputs=[{"regex": "a"}],
        ),
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    ],
    MESSAGES: [
        *_each(
            max_tokens=[5, 0, -1, None, 5.0, "5", True], system=["x", [{"type": "text", "text": "x"}], None, 5],
            stop_sequences=[["x"], "x"], tools=[[_CLAUDE_TOOL]], tool_choice=[{"type": "x"}, {"type": "auto"}],
            thinking=[
                {"type": "enabled"}, {"type": "enabled", "budget_tokens": 10}, {"type": "disabled"}, {"type": "adaptive"},
                None, "x", {"type": "x"},
            ],
            messages=[[], [{"role": "system", "content": "x"}], [{"role": "user", "content": [{"type": "text", "text": "x"}]}]],
        ),
        *_with({"tools": [_CLAUDE_TOOL]}, tool_choice=[{"type": "auto"}, {"type": "any"}]),
        *_with({"max_tokens": 2000}, thinking=[{"type": "enabled", "budget_tokens": budget} for budget in (1024, "1024", 3000)]),
    ],
}  # fmt: skip


def bodies() -> Iterator[tuple[str, Fields, Fields]]:
    """Yield path, body, and what is special about it."""
    for path, base in _BASE.items():
        for fields in (*_EVERYWHERE, *(_OPENAI if path in (COMPLETIONS, CHAT) else ()), *_OWN[path]):
            yield path, base | fields, fields
