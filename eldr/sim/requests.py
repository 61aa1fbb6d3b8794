"""Request bodies of a simulated engine: OpenAI's and Anthropic's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec


class BadRequest(Exception):  # noqa: N818 - named after its HTTP status
    """A request that vLLM would refuse, with the HTTP status.

    It carries the ``kv_transfer_params`` of a body that could be read.
    """

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.kv_transfer_params: dict[str, Any] | None = None


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
    use_beam_search: bool = False


class ChatRequest(_Request, kw_only=True):
    """Body of ``/v1/chat/completions``."""

    messages: list[dict[str, Any]]


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """Body of ``/v1/responses``; tools and thoughts are not simulated."""

    model: str = ""
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    stream: bool = False
    request_id: str = ""
    kv_transfer_params: dict[str, Any] | None = None


class MessagesRequest(msgspec.Struct, kw_only=True):
    """Body of ``/v1/messages``; tools and thoughts are not simulated."""

    model: str = ""
    messages: list[dict[str, Any]]
    max_tokens: Positive
    system: str | list[dict[str, Any]] | None = None
    stream: bool = False
    kv_transfer_params: dict[str, Any] | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """Body of ``/v1/messages/count_tokens``."""

    model: str = ""
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None


Api = Literal["completions", "chat", "responses", "messages"]


class Parsed(msgspec.Struct, kw_only=True, frozen=True):
    """A request as the engine serves it.

    Attributes
    ----------
    prompts : tuple of str
        One text per sequence, ``n`` of each.
    request_id : str
        From the body, where engines do not read the header.
    """

    prompts: tuple[str, ...]
    max_tokens: int
    api: Api
    stream: bool
    kv_transfer_params: dict[str, Any] | None
    include_usage: bool = False
    request_id: str = ""
    instructions: str | None = None


DEFAULT_TOKENS = 16
"""Output tokens where the request names none: OpenAI's default of completions, here for chat as well."""

_decoders: dict[Api, msgspec.json.Decoder[Any]] = {
    "completions": msgspec.json.Decoder(CompletionRequest),
    "chat": msgspec.json.Decoder(ChatRequest),
    "responses": msgspec.json.Decoder(ResponsesRequest),
    "messages": msgspec.json.Decoder(MessagesRequest),
}
_count = msgspec.json.Decoder(CountRequest)


def parse(body: bytes, *, api: Api, model: str) -> Parsed:
    """Parse a request body; BadRequest 400 or 404 if it is refused."""
    request = _decoded(_decoders[api], body)
    try:
        return _parsed(request, api, model)
    except BadRequest as error:
        error.kv_transfer_params = request.kv_transfer_params
        raise


def _parsed(request: Any, api: Api, model: str) -> Parsed:
    if isinstance(request, CompletionRequest) and request.stream and request.use_beam_search:
        raise BadRequest("Streaming is not currently supported with beam search")
    _check_model(request, model)
    rest = {"api": api, "stream": request.stream, "kv_transfer_params": request.kv_transfer_params}
    if isinstance(request, ResponsesRequest):
        said = (
            request.input if isinstance(request.input, list) else [{"role": "user", "content": request.input}]
        )
        return Parsed(
            prompts=(_conversation(request.instructions, said),),
            max_tokens=request.max_output_tokens or DEFAULT_TOKENS,
            request_id=request.request_id,
            instructions=request.instructions,
            **rest,
        )
    if isinstance(request, MessagesRequest):
        prompts = (_conversation(request.system, request.messages),)
        return Parsed(prompts=prompts, max_tokens=request.max_tokens, **rest)
    texts = [_chat_text(request.messages)] if isinstance(request, ChatRequest) else _texts(request.prompt)
    return Parsed(
        prompts=tuple(prompt for prompt in texts for _ in range(request.n)),
        max_tokens=request.max_completion_tokens or request.max_tokens or DEFAULT_TOKENS,
        include_usage=bool((request.stream_options or {}).get("include_usage")),
        **rest,
    )


def conversation(body: bytes, *, model: str) -> str:
    """Return the prompt of a request that counts a message's tokens."""
    request = _decoded(_count, body)
    _check_model(request, model)
    return _conversation(request.system, request.messages)


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise BadRequest(str(error)) from None


def _check_model(request: Any, model: str) -> None:
    if request.model and request.model != model:
        raise BadRequest(f"The model `{request.model}` does not exist.", 404, "NotFoundError")


def _conversation(instructions: str | list[dict[str, Any]] | None, said: list[dict[str, Any]]) -> str:
    return _chat_text([*([{"role": "system", "content": instructions}] if instructions else []), *said])


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
