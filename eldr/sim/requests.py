"""The OpenAI request bodies that a simulated engine understands, and the answers it gives."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec


class BadRequest(Exception):  # noqa: N818 - named after its HTTP status
    """A request that vLLM would refuse; carries the HTTP status."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


Positive = Annotated[int, msgspec.Meta(ge=1)]


class _Request(msgspec.Struct, kw_only=True):
    model: str = ""
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] = 1
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None


class CompletionRequest(_Request, kw_only=True):
    """Body of ``/v1/completions``."""

    prompt: str | list[str | int | list[int]]
    echo: bool = False


class ChatRequest(_Request, kw_only=True):
    """Body of ``/v1/chat/completions``."""

    messages: list[dict[str, Any]]


class Parsed(msgspec.Struct, kw_only=True, frozen=True):
    """A request as the engine serves it.

    Attributes
    ----------
    prompts : tuple of str
        One text per sequence, ``n`` of each.
    """

    prompts: tuple[str, ...]
    max_tokens: int
    chat: bool
    stream: bool
    include_usage: bool
    kv_transfer_params: dict[str, Any] | None


DEFAULT_TOKENS = 16
"""Output tokens where the request names none: OpenAI's default of completions, here for chat as well."""

_completion = msgspec.json.Decoder(CompletionRequest).decode
_chat = msgspec.json.Decoder(ChatRequest).decode


def parse(body: bytes, *, chat: bool, model: str) -> Parsed:
    """Parse a request body; BadRequest if the body is malformed (400) or names another model (404)."""
    try:
        request: CompletionRequest | ChatRequest = _chat(body) if chat else _completion(body)
    except msgspec.MsgspecError as error:
        raise BadRequest(str(error)) from None
    if request.model and request.model != model:
        raise BadRequest(f"The model `{request.model}` does not exist.", 404, "NotFoundError")
    prompts = [_chat_text(request.messages)] if isinstance(request, ChatRequest) else _texts(request.prompt)
    options = request.stream_options or {}
    return Parsed(
        prompts=tuple(prompt for prompt in prompts for _ in range(request.n)),
        max_tokens=request.max_completion_tokens or request.max_tokens or DEFAULT_TOKENS,
        chat=chat,
        stream=request.stream,
        include_usage=bool(options.get("include_usage")),
        kv_transfer_params=request.kv_transfer_params,
    )


def _chat_text(messages: list[dict[str, Any]]) -> str:
    if not messages:
        raise BadRequest("messages: at least one is needed")
    return "\n".join(f"{message.get('role')}: {_content(message.get('content'))}" for message in messages)


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _texts(prompt: str | list[Any]) -> list[str]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadRequest("prompt: at least one is needed")
    if len({type(item) for item in prompt}) > 1:
        raise BadRequest("prompt: expected one text, texts, token ids or lists of token ids, not a mixture")
    if isinstance(prompt[0], int):
        return [" ".join(str(token) for token in prompt)]
    return [item if isinstance(item, str) else " ".join(str(token) for token in item) for item in prompt]


def error_body(message: str, kind: str, code: int) -> dict[str, Any]:
    """Return vLLM's error object."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


class Answer:
    """Builds the response objects of one request.

    Parameters
    ----------
    request_id : str
        With vLLM's prefix.
    created : int
        Unix time, seconds.
    """

    def __init__(self, request_id: str, model: str, *, chat: bool, created: int) -> None:
        self._chat = chat
        self._head = {"id": request_id, "created": created, "model": model}

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the chunk that opens a streamed chat choice; completions have none."""
        if not self._chat:
            return None
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def chunk(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        """Return the chunk of one streamed token."""
        payload = {"delta": {"content": text}} if self._chat else {"text": text}
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {
            **self._head,
            "object": kind,
            "choices": [{"index": index, **payload, "logprobs": None, "finish_reason": finish}],
        }

    def usage_chunk(self, prompt_tokens: int, tokens: int) -> dict[str, Any]:
        """Return the last chunk of a stream with ``include_usage``."""
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": [], "usage": usage(prompt_tokens, tokens)}

    def whole(
        self, texts: list[str], prompt_tokens: int, tokens: int, kv_transfer_params: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Return the answer of a request that was not streamed."""
        choices = [
            {
                "index": index,
                **({"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}),
                "logprobs": None,
                "finish_reason": "length",
            }
            for index, text in enumerate(texts)
        ]
        return {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": choices,
            "usage": usage(prompt_tokens, tokens),
            "kv_transfer_params": kv_transfer_params,
        }


def usage(prompt_tokens: int, tokens: int) -> dict[str, int]:
    """Return the ``usage`` object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
    }
