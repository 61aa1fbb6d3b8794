"""Request bodies: what is split, what each leg gets, what is refused.

Only the fields that the router must understand are parsed; prompts stay the bytes that the client sent, so that a long
one costs neither time nor memory. Every body is written anew, each field once, so that engine and router can never
read two different requests out of one text (duplicate keys, escapes).
"""

from __future__ import annotations

from typing import Any

import msgspec

from eldr.contract import ELDR_KEY, KV_KEY, PULL_BEFORE_KEY
from eldr_router.api.conversation import conversation_prefix
from eldr_router.api.cost import MAX_BODY
from eldr_router.api.fields import FEW_BYTES, check_count, check_objects, read
from eldr_router.api.paths import APIS, CHAT, COMPLETIONS, Api
from eldr_router.http.errors import bad_request

__all__ = ["CHAT", "COMPLETIONS"]
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
_REJECTED = {
    "model": "eldr-frees-a-prefill-result", "prompt": [0], "max_tokens": 1, "stream": True, "use_beam_search": True
}  # fmt: skip
_MARK = b"\xef\xbb\xbf"
"""Of UTF-8, which some clients write before their JSON and engines skip."""
_ONE = msgspec.Raw(b"1")
_NULL = msgspec.Raw(b"null")
_ENCODER = msgspec.json.Encoder()
_BEGINNING = 1 << 18
"""Bytes of instructions that engines are chosen by."""


class Parsed:
    """A client's body.

    Attributes
    ----------
    api : Api
        What it is for.
    fields : dict of str to msgspec.Raw
        Every field as the client sent it.
    known : dict of str to object
        Values of the fields that the router understands, those that are there.
    without : tuple of str
        Fields that a leg of one token does without.
    """

    __slots__ = ("api", "fields", "known", "without")

    def __init__(self, api: Api, fields: dict[str, msgspec.Raw], known: dict[str, Any]) -> None:
        self.api = api
        self.fields = fields
        self.known = known
        self.without = (*api.without, *api.check(fields, known))

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return self.known.get("stream") is True

    @property
    def beginning(self) -> tuple[bytes | memoryview, int]:
        """What a prefill engine is chosen by, and how much turns share.

        As JSON, and the bytes of it that all turns of a conversation begin with.

        That is all up to the first user message's end; 0 where there is none, as in completions.
        """
        prompt = self.prompt
        if not self.api.begins:
            return prompt, 0
        first = bytes(prompt[:1])
        shared = len(prompt) if first == b'"' and first in self.api.begins else conversation_prefix(prompt)
        before = self.fields.get(self.api.instructions)
        if before is None or before == _NULL:
            return prompt, shared
        instructions = bytes(memoryview(before)[:_BEGINNING])
        return instructions + prompt, shared and len(instructions) + shared

    @property
    def prompt(self) -> memoryview:
        """The prompt, or a chat's messages, as JSON; empty if there is none."""
        raw = self.fields.get(self.api.prompt)
        return memoryview(b"") if raw is None else memoryview(raw)

    @property
    def embeds(self) -> memoryview:
        """Prompts as embeddings, as JSON; empty if there are none.

        Engines compute them besides the prompt.
        """
        raw = self.fields.get("prompt_embeds")
        return memoryview(b"") if raw is None or raw == _NULL else memoryview(raw)


def parse(raw: bytes, path: str = COMPLETIONS, max_body: int = MAX_BODY) -> Parsed:
    """Parse a client's body and refuse what must never reach an engine.

    Parameters
    ----------
    raw : bytes
    path : str
    max_body : int
        Bytes that a body may have; the more, the longer one may take here.

    Raises
    ------
    RouterError
        400 if it is no JSON object, a field is beyond its limit, or it carries ``kv_transfer_params``, at the top or
        through ``vllm_xargs``.
    """
    fields, known = read(raw.removeprefix(_MARK), max_body)
    if KV_KEY in fields or KV_KEY in (known.get("vllm_xargs") or ()):
        raise bad_request(
            f"{KV_KEY} is reserved for the router: it names other requests' memory; remove it",
            "reserved",
            KV_KEY,
        )
    api = APIS[path]
    body = Parsed(api, fields, known)
    if api.begins and len(raw) > FEW_BYTES:
        check_objects(api.prompt, body.prompt)
    return body


def unsplittable(body: Parsed) -> str | None:
    """Return why a request cannot be split; None if it can.

    The reason is a bounded metric label.
    """
    api = body.api
    why = api.why_unsplit(body.fields, body.known)
    if why is not None:
        return why
    kind = _kind(body.prompt)
    if api.begins:
        return None if kind and kind[:1] in api.begins else api.prompt
    if _kind(body.embeds):
        return "prompt_embeds"
    return None if kind[:1] == b'"' or _is_token_ids(kind) else "prompt"


def sequences(body: Parsed) -> int:
    """Return a request's sequences: its prompts times its choices."""
    if not body.api.several:
        return 1
    choices = max(_count(body.known.get("n")), _count(body.known.get("best_of")))
    if body.api.begins:
        return choices
    return choices * max(1, _prompts(body.prompt) + _prompts(body.embeds))


def _prompts(prompt: memoryview) -> int:
    """Return how many prompts a field holds; an empty text is none."""
    kind = _kind(prompt)
    if kind[:1] != b"[" or _is_token_ids(kind):
        return kind not in (b"", b'""')
    return check_count("prompt", prompt)


def _kind(prompt: memoryview) -> bytes:
    """Return the first two characters that count: what kind of JSON value it is, and what a list begins with."""
    return bytes(prompt[:256]).translate(None, b" \t\r\n")[:2]


def _is_token_ids(kind: bytes) -> bool:
    """Return by its first item whether a list is one prompt; engines refuse a list that is neither."""
    return kind[:1] == b"[" and (kind[1:].isdigit() or kind[1:] == b"-")


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 1 else 1


def longest(body: Parsed) -> int | None:
    """Return how many tokens an answer may have; None: as many as fit."""
    return next((body.known[name] for name in body.api.limits if body.known.get(name)), body.api.usual)


def prefill_body(body: Parsed, request_id: str = "") -> bytes:
    """Return the prefill's body: one token, not streamed, blocks kept."""
    api = body.api
    first: dict[str, Any] = {key: value for key, value in body.fields.items() if key not in body.without}
    for name in api.limits:
        if name in first:
            first[name] = _ONE
    # a null stays: whether it may be one is for the prefill engine to say, before it computes anything
    first.update(
        {name: one for name, one in api.one_token.items() if name in api.limits or first.get(name) != _NULL}
    )
    first.update(_own(api, request_id))
    first[KV_KEY] = _REMOTE_DECODE
    return _ENCODER.encode(first)


def decode_body(
    body: Parsed,
    kv: dict[str, Any] | None,
    pull_before: float | None = None,
    request_id: str = "",
) -> bytes:
    """Return the decode's body: the client's, and the prefill's result.

    Expert counts are left out.

    Parameters
    ----------
    body : Parsed
    kv : dict or None
        What the prefill engine handed over.
    pull_before : float, optional
        Unix time, seconds, until which the blocks may be pulled.
    request_id : str
        Of the attempt, for engines that read it in the body.
    """
    second: dict[str, Any] = {**body.fields, **_own(body.api, request_id)}
    if kv is not None:
        params = {key: value for key, value in kv.items() if key != ELDR_KEY}
        second[KV_KEY] = params if pull_before is None else {**params, PULL_BEFORE_KEY: pull_before}
    return _ENCODER.encode(second)


def freeing_body(kv: dict[str, Any]) -> bytes:
    """Return a completion that decode engines reject, to free blocks.

    vLLM then has the prefill engine free the result's blocks.

    Beams cannot be streamed: vLLM 0.31 to 0.33 check that first, before models, adapters and limits. The model that
    no engine serves is the second reason.
    """
    params = {key: value for key, value in kv.items() if key != ELDR_KEY}
    return _ENCODER.encode({**_REJECTED, KV_KEY: params})


def _own(api: Api, request_id: str) -> dict[str, Any]:
    """Return what engines get whatever the client sent."""
    if not (api.always or api.id_field):
        return {}
    return {**api.always, **({api.id_field: f"resp-{request_id}"} if api.id_field and request_id else {})}
