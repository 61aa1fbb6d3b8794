"""Asks a router by litellm, in an environment that has it; prints what came back as JSON."""

import asyncio
import json
import sys

import litellm

SAID = [{"role": "user", "content": "hi"}]


def joined(parts) -> str:
    return "".join(part.choices[0].delta.content or "" for part in parts)


async def by_async(asked: dict) -> str:
    parts = await litellm.acompletion(messages=SAID, stream=True, **asked)
    return joined([part async for part in parts])


def refusal(**asked) -> list:
    try:
        litellm.completion(messages=SAID, **asked)
    except Exception as error:  # noqa: BLE001 - which one, the test asks
        return [type(error).__name__, getattr(error, "status_code", None)]
    return []


def main(url: str, tokens: int) -> dict:
    common = {"api_key": "x", "max_retries": 0}
    gpt = {"api_base": f"{url}/v1", **common}
    claude = {"api_base": url, **common}
    chat = {"model": "openai/m", "max_tokens": tokens, **gpt}
    whole = litellm.completion(messages=SAID, **chat)
    message = litellm.completion(messages=SAID, model="anthropic/m", max_tokens=tokens, **claude)
    response = litellm.responses(model="openai/m", input=SAID, max_output_tokens=tokens, **gpt)
    return {
        "chat": whole.choices[0].message.content,
        "finish": whole.choices[0].finish_reason,
        "tokens": whole.usage.completion_tokens,
        "stream": joined(litellm.completion(messages=SAID, stream=True, **chat)),
        "async": asyncio.run(by_async(chat)),
        "hosted": litellm.completion(messages=SAID, **chat | {"model": "hosted_vllm/m"})
        .choices[0]
        .message.content,
        "text": litellm.text_completion(
            model="text-completion-openai/m", prompt="hi", max_tokens=tokens, **gpt
        )
        .choices[0]
        .text,
        "message": message.choices[0].message.content,
        "streamed message": joined(
            litellm.completion(messages=SAID, model="anthropic/m", max_tokens=tokens, stream=True, **claude)
        ),
        "response": "".join(
            part.text for item in response.output for part in getattr(item, "content", None) or ()
        ),
        "unknown model": refusal(model="openai/other", max_tokens=1, **gpt),
        "mistake": refusal(**chat | {"max_tokens": -1}),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
