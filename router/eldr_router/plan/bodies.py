"""Request bodies: what may be split, what each leg gets, what is refused. Pure.

Only the fields that the router must understand are parsed; prompts stay the bytes that the client sent, so that a long
one costs neither time nor memory. Every body is written anew, each field once, so that engine and router can never
read two different requests out of one text (duplicate keys, escapes).
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from eldr.contract import ELDR_KEY, KV_KEY, PULL_BEFORE_KEY
from eldr_router.http.errors import bad_request
from eldr_router.plan.cost import MAX_BODY
from eldr_router.plan.fields import FEW_BYTES, check_count, check_objects, read
from eldr_router.plan.steps import Form

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_SHORT_ANSWER = 1024
"""Tokens. A whole answer of at most so many is there long before a lease of the usual length is over."""
_NOT_FOR_PREFILL = ("stream_options", "logprobs", "top_logprobs", "prompt_logprobs", "best_of")
_REMOTE_DECODE = msgspec.Raw(
    msgspec.json.encode(
        {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }
    )
)
_MAY_NOT_SPLIT = frozenset(("n", "best_of", "echo", "use_beam_search", "prompt_logprobs"))
_ONE, _TRUE, _FALSE = msgspec.Raw(b"1"), msgspec.Raw(b"true"), msgspec.Raw(b"false")
_NULL = msgspec.Raw(b"null")
_ENCODER = msgspec.json.Encoder()
_MESSAGE = json.JSONDecoder()
_STEM_BYTES, _STEM_MESSAGES = 1 << 16, 256
_BETWEEN = re.compile(r"[ \t\r\n,]*")


class Parsed:
    """A client's body.

    Attributes
    ----------
    fields : dict of str to msgspec.Raw
        Every field as the client sent it.
    known : dict of str to object
        Values of the fields that the router understands, those that are there.
    """

    __slots__ = ("fields", "known", "path")

    def __init__(self, path: str, fields: dict[str, msgspec.Raw], known: dict[str, Any]) -> None:
        self.path = path
        self.fields = fields
        self.known = known

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return self.known.get("stream") is True

    @property
    def stem(self) -> int:
        """How many bytes of :attr:`prompt` all turns of a conversation begin with: those up to the first user message's end.

        0 where there is none, as in completions.
        """
        return _stem(self.prompt) if self.path == CHAT else 0

    @property
    def prompt(self) -> memoryview:
        """The prompt, or a chat's messages, as JSON; empty if there is none."""
        raw = self.fields.get("messages" if self.path == CHAT else "prompt")
        return memoryview(b"") if raw is None else memoryview(raw)

    @property
    def embeds(self) -> memoryview:
        """Prompts as embeddings, as JSON; engines compute them besides the prompt. Empty if there are none."""
        raw = self.fields.get("prompt_embeds")
        return memoryview(b"") if raw is None or raw == _NULL else memoryview(raw)


def parse(raw: bytes, path: str = COMPLETIONS, max_body: int = MAX_BODY) -> Parsed:
    """Parse a client's body and refuse what must never reach an engine.

    Parameters
    ----------
    max_body : int
        Bytes that a body may have; the more, the longer one may take here.

    Raises
    ------
    RouterError
        400 if it is no JSON object, a field is beyond its limit, or it carries ``kv_transfer_params``, at the top or
        through ``vllm_xargs``.
    """
    fields, known = read(raw, max_body)
    if KV_KEY in fields or KV_KEY in (known.get("vllm_xargs") or ()):
        raise bad_request(
            f"{KV_KEY} is reserved for the router: it names other requests' memory; remove it",
            "reserved",
            KV_KEY,
        )
    body = Parsed(path, fields, known)
    if path == CHAT and len(raw) > FEW_BYTES:
        check_objects("messages", body.prompt)
    return body


def unsplittable(body: Parsed) -> str | None:
    """Return why a request cannot be split into prefill and decode, or None if it can.

    The reason is a bounded metric label.
    """
    known = body.known
    if known.keys() & _MAY_NOT_SPLIT:
        for name in ("n", "best_of"):
            if known.get(name) not in (None, 1):
                return name
        for name in ("echo", "use_beam_search"):
            if known.get(name):
                return name
        logprobs = known.get("prompt_logprobs")
        if logprobs is not None and logprobs is not False:
            return "prompt_logprobs"
    kind = _kind(body.prompt)
    if body.path == CHAT:
        return None if kind[:1] == b"[" else "messages"
    if _kind(body.embeds):
        return "prompt_embeds"
    return None if kind[:1] == b'"' or _is_token_ids(kind) else "prompt"


def sequences(body: Parsed) -> int:
    """Return how many sequences an engine runs for a request: its prompts times its choices."""
    choices = max(_count(body.known.get("n")), _count(body.known.get("best_of")))
    if body.path == CHAT:
        return choices
    return choices * max(1, _prompts(body.prompt) + _prompts(body.embeds))


def _prompts(prompt: memoryview) -> int:
    """Return how many prompts a field holds; an empty text is none."""
    kind = _kind(prompt)
    if kind[:1] != b"[" or _is_token_ids(kind):
        return kind not in (b"", b'""')
    return check_count("prompt", prompt)


def _stem(messages: memoryview) -> int:
    """Read messages one by one: long conversations are not read to their end."""
    try:
        text = str(messages[:_STEM_BYTES], "utf-8", "replace")
        at = 1
        for _ in range(_STEM_MESSAGES):
            message, at = _MESSAGE.raw_decode(text, _BETWEEN.match(text, at).end())  # type: ignore[union-attr]
            if isinstance(message, dict) and message.get("role") == "user":
                return len(text[:at].encode())
    except (ValueError, RecursionError):
        pass  # none within so many bytes, or none at all
    return 0


def _kind(prompt: memoryview) -> bytes:
    """Return the first two characters that count: what kind of JSON value it is, and what a list begins with."""
    return bytes(prompt[:256]).translate(None, b" \t\r\n")[:2]


def _is_token_ids(kind: bytes) -> bool:
    """Tell by its first item whether a list is one prompt; engines refuse a list that is neither."""
    return kind[:1] == b"[" and (kind[1:].isdigit() or kind[1:] == b"-")


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 1 else 1


def forms(body: Parsed, *, split: bool) -> tuple[Form, Form | None]:
    """Return how a decode engine is to answer, and how after a lease ran out over a whole answer.

    The moment of a pull is known from a stream's first event, but only from the end of a whole answer. So long answers
    are streamed by the engine even for clients that want them whole, except where a stream may say other things than
    the whole answer would: with tools, whose calls engines parse by different rules in each.
    """
    if body.streams:
        return Form.STREAM, None
    if not split or body.known.get("tools") or body.known.get("functions"):
        return Form.WHOLE, None
    most = body.known.get("max_completion_tokens") or body.known.get("max_tokens")
    if most is None and body.path == COMPLETIONS:
        most = 16  # what the API, and vLLM, take for it
    short = most is not None and most <= _SHORT_ANSWER
    return (Form.WHOLE if short else Form.ASSEMBLE), Form.ASSEMBLE


def prefill_body(body: Parsed) -> bytes:
    """Return the first leg: one token, not streamed, the blocks kept for a decode engine."""
    return _one_token(body, _REMOTE_DECODE)


def decode_body(
    body: Parsed, kv: dict[str, Any] | None, form: Form = Form.WHOLE, pull_before: float | None = None
) -> bytes:
    """Return the second leg: the client's body with the prefill's parameters, without the expert counts.

    Parameters
    ----------
    kv : dict or None
        What the prefill engine handed over.
    pull_before : float, optional
        Unix time, seconds, until which the blocks may be pulled.
    """
    second: dict[str, Any] = dict(body.fields)
    if form is Form.ASSEMBLE:
        second["stream"] = _TRUE
        second["stream_options"] = {"include_usage": True}
    if kv is not None:
        params = {key: value for key, value in kv.items() if key != ELDR_KEY}
        second[KV_KEY] = params if pull_before is None else {**params, PULL_BEFORE_KEY: pull_before}
    return _ENCODER.encode(second)


def freeing_body(body: Parsed, kv: dict[str, Any]) -> bytes:
    """Return a second leg that ends as soon as it has pulled: its blocks are then free at the prefill engine."""
    return _one_token(body, {key: value for key, value in kv.items() if key != ELDR_KEY})


def _one_token(body: Parsed, kv: object) -> bytes:
    first: dict[str, Any] = {key: value for key, value in body.fields.items() if key not in _NOT_FOR_PREFILL}
    # min_tokens: a prompt whose first token is an end token would else stop without handing its blocks over
    first.update(stream=_FALSE, max_tokens=_ONE, min_tokens=_ONE, n=_ONE)
    if body.path == CHAT or "max_completion_tokens" in first:
        first["max_completion_tokens"] = _ONE
    first[KV_KEY] = kv
    return _ENCODER.encode(first)
