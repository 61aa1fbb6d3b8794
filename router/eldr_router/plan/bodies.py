"""Request bodies: what may be split, what each leg gets, what is refused. Pure.

Bodies are parsed once and always re-serialised, so that engine and router can never read two different requests out of
one text (duplicate keys, escapes, odd encodings).
"""

from __future__ import annotations

from typing import Any

import orjson

from eldr.contract import ELDR_KEY, KV_KEY
from eldr_router.http.errors import bad_request

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PREFIX_BYTES = 1024
_PREFIX_TOKENS = 256
_NOT_FOR_PREFILL = ("stream_options", "logprobs", "top_logprobs", "prompt_logprobs", "best_of")
_REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}

Body = dict[str, Any]


def parse(raw: bytes) -> Body:
    """Parse a client's body and refuse what must never reach an engine.

    Raises
    ------
    RouterError
        400 if it is no JSON object or carries ``kv_transfer_params``, at the top or through ``vllm_xargs``.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the request body is not JSON: {error}", "invalid_json") from None
    if not isinstance(body, dict):
        raise bad_request(
            f"the request body must be a JSON object, got {type(body).__name__}", "invalid_json"
        )
    extra = body.get("vllm_xargs")
    if KV_KEY in body or (isinstance(extra, dict) and KV_KEY in extra):
        raise bad_request(
            f"{KV_KEY} is reserved for the router: it names other requests' memory; remove it",
            "reserved",
            KV_KEY,
        )
    _check_overridden(body)
    return body


def _check_overridden(body: Body) -> None:
    """Refuse bad values of the fields that the prefill body overrides.

    The prefill engine never sees them: it would compute the prompt and hold its blocks for a request that the decode
    engine refuses.
    """
    least = 0 if body.get("echo") else 1
    for name, low in (("max_tokens", least), ("max_completion_tokens", least), ("min_tokens", 0), ("n", 1)):
        value = body.get(name)
        if value is not None and (type(value) is not int or value < low):
            raise bad_request(
                f"{name}: expected an integer of at least {low}, got {value!r:.40}", "invalid_value", name
            )
    for name, kind in (("stream", bool), ("stream_options", dict)):
        value = body.get(name)
        if value is not None and not isinstance(value, kind):
            expected = "true or false" if kind is bool else "an object"
            raise bad_request(f"{name}: expected {expected}, got {value!r:.40}", "invalid_value", name)


def unsplittable(body: Body, path: str) -> str | None:
    """Return why a request cannot be split into prefill and decode, or None if it can.

    The reason is a bounded metric label.
    """
    for name in ("n", "best_of"):
        if body.get(name) not in (None, 1):
            return name
    for name in ("echo", "use_beam_search"):
        if body.get(name):
            return name
    logprobs = body.get("prompt_logprobs")
    if logprobs is not None and logprobs is not False:
        return "prompt_logprobs"
    if path == CHAT:
        return None if isinstance(body.get("messages"), list) else "messages"
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return None
    return None if _is_token_ids(prompt) else "prompt"


def sequences(body: Body, path: str) -> int:
    """Return how many sequences an engine runs for a request: its prompts times its choices."""
    choices = max(_count(body.get("n")), _count(body.get("best_of")))
    prompt = None if path == CHAT else body.get("prompt")
    if isinstance(prompt, list) and prompt and not _is_token_ids(prompt):
        return choices * len(prompt)
    return choices


def _is_token_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 1 else 1


def prefill_body(body: Body, path: str) -> bytes:
    """Return the first leg: one token, not streamed, the blocks kept for a decode engine."""
    first = {key: value for key, value in body.items() if key not in _NOT_FOR_PREFILL}
    # min_tokens: a prompt whose first token is an end token would else stop without handing its blocks over
    first.update(stream=False, max_tokens=1, min_tokens=1, n=1)
    if path == CHAT or "max_completion_tokens" in first:
        first["max_completion_tokens"] = 1
    first[KV_KEY] = _REMOTE_DECODE
    return _dump(first)


def decode_body(body: Body, kv: dict[str, Any] | None) -> bytes:
    """Return the second leg: the client's body with the prefill's parameters, without the expert counts."""
    if kv is None:
        return _dump(body)
    return _dump({**body, KV_KEY: {key: value for key, value in kv.items() if key != ELDR_KEY}})


def _dump(body: Body) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:  # it writes fewer levels than it reads
        raise bad_request(f"the request body cannot be forwarded: {error}", "invalid_json") from None


def prefix(body: Body, path: str) -> bytes:
    """Return the first bytes of the prompt's text, which requests with a shared prefix have in common."""
    if path != CHAT:
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return prompt[:PREFIX_BYTES].encode()[:PREFIX_BYTES]
        if isinstance(prompt, list):
            return b" ".join(b"%d" % token for token in prompt[:_PREFIX_TOKENS] if type(token) is int)[
                :PREFIX_BYTES
            ]
        return b""
    parts: list[bytes] = []
    size = 0
    for text in _texts(body.get("messages")):
        parts.append(text[: PREFIX_BYTES - size].encode())
        size += len(parts[-1])
        if size >= PREFIX_BYTES:
            break
    return b"\n".join(parts)[:PREFIX_BYTES]


def _texts(messages: object) -> list[str]:
    texts: list[str] = []
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            texts.append(content)
        elif isinstance(content, list):
            texts += [
                part["text"]
                for part in content
                if isinstance(part, dict) and isinstance(part.get("text"), str)
            ]
    return texts
