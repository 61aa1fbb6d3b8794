"""Says of each body on standard input what this vLLM's own models say of it: null, or why they refuse it.

A line is ``{"path": ..., "body": ...}``, the body as it is on the wire. Runs in the environment of an engine, without one.
"""

from __future__ import annotations

import json
import logging
import sys

logging.disable(logging.CRITICAL)

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.entrypoints.openai.completion.protocol import CompletionRequest  # noqa: E402
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest  # noqa: E402

MODELS = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": AnthropicMessagesRequest,
}
for line in sys.stdin:
    asked = json.loads(line)
    try:
        MODELS[asked["path"]].model_validate(json.loads(asked["body"]))
        said = None
    except Exception as error:  # noqa: BLE001 - whatever it is, the engine would answer 400
        said = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(said) + "\n")
