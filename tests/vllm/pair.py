"""The two-phase protocol spoken to engines directly, without a router: what the plug-in says, word by word."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import httpx

from eldr import contract
from eldr.wire import ExpertCounts, decode_counts

Prompt = str | list[int] | list[dict[str, Any]]
"""A text, token ids, or parts of a chat's message: texts and images."""
Prompts = Prompt | list[list[int]]
_SAMPLING = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request through both engines.

    Attributes
    ----------
    base : str
        Its id, as the decode engine's activations carry it.
    prompt, generated : list of int
        Token ids.
    signature : ExpertCounts or None
        What the prefill engine counted; None where it counts no more, and for a request that the decode engine prefilled itself.
    images : list of str
        Of the prompt, as URLs.
    """

    base: str
    prompt: list[int]
    generated: list[int]
    signature: ExpertCounts | None
    images: list[str] = field(default_factory=list)


def _images(prompt: Prompts) -> list[str]:
    return [part["image_url"]["url"] for part in prompt if isinstance(part, dict) and "image_url" in part]


def _client() -> httpx.Client:
    """Return a client for one request.

    A kept connection may close while its engine stands still, and httpcore, where threads share a client without kept ones,
    closes connections that it has just given out.
    """
    return httpx.Client(timeout=1000, verify=False)


@dataclass(slots=True)
class Pair:
    """A prefill and a decode engine.

    Parameters
    ----------
    prefill, decode : str
        Base URLs.
    model : str
    rank : int or None
        Data-parallel rank of both engines that serves; None: whichever vLLM picks.
    """

    prefill: str
    decode: str
    model: str
    rank: int | None = None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def ask(self, prompt: Prompt, tokens: int, *, chat: bool = False, **fields: Any) -> Exchange:
        """Prefill on one engine, decode on the other; more fields go to both."""
        number = next(self._numbers)
        kv, signature = self._prefill(prompt, number, chat=chat, **fields)
        return self._decode(prompt, tokens, number, chat=chat, kv=kv, signature=signature, **fields)

    def sign(self, prompt: list[int] | list[list[int]]) -> ExpertCounts:
        """Only prefill, and leave the blocks to their lease."""
        _, signature = self._prefill(prompt, next(self._numbers), chat=False)
        assert signature is not None
        return signature

    def _prefill(
        self, prompt: Prompts, number: int, *, chat: bool, **fields: Any
    ) -> tuple[dict[str, Any], ExpertCounts | None]:
        asked = {**self._body(prompt, chat=chat), **fields, "max_tokens": 1, "min_tokens": 1}
        remote = {contract.KV_KEY: {"do_remote_decode": True}}
        answer = self._post(self.prefill, asked | remote, number, 0, chat=chat)
        kv = answer[contract.KV_KEY]
        said = kv.pop(contract.ELDR_KEY)
        return kv, None if "unavailable" in said else decode_counts(said)

    def ask_decode_only(self, prompt: Prompt, tokens: int, *, chat: bool = False) -> Exchange:
        """Let the decode engine do all of it."""
        return self._decode(prompt, tokens, next(self._numbers), chat=chat, kv=None, signature=None)

    def _decode(
        self,
        prompt: Prompt,
        tokens: int,
        number: int,
        *,
        chat: bool,
        kv: dict[str, Any] | None,
        signature: ExpertCounts | None,
        **fields: Any,
    ) -> Exchange:
        more = fields | ({contract.KV_KEY: kv} if kv else {})
        (exchange,) = self._exchanges(prompt, tokens, number, chat=chat, signature=signature, **more)
        return exchange

    def ask_several(self, prompt: list[int] | list[list[int]], tokens: int, **fields: Any) -> list[Exchange]:
        """Let the decode engine do a request of several sequences; they share their base id."""
        return self._exchanges(prompt, tokens, next(self._numbers), chat=False, signature=None, **fields)

    def _exchanges(
        self,
        prompt: Prompts,
        tokens: int,
        number: int,
        *,
        chat: bool,
        signature: ExpertCounts | None,
        **fields: Any,
    ) -> list[Exchange]:
        body = {**self._body(prompt, chat=chat), **fields, "max_tokens": tokens}
        answer = self._post(self.decode, body, number, 1, chat=chat)
        base = contract.request_base("0a1b2c3d", number)
        return [
            Exchange(
                base,
                answer.get("prompt_token_ids") or choice["prompt_token_ids"],
                choice["token_ids"],
                signature,
                _images(prompt),
            )
            for choice in answer["choices"]
        ]

    def _body(self, prompt: Prompts, *, chat: bool) -> dict[str, Any]:
        asked = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        return {"model": self.model, **asked, **_SAMPLING}

    def _post(
        self, url: str, body: dict[str, Any], number: int, attempt: int, *, chat: bool
    ) -> dict[str, Any]:
        path = "/v1/chat/completions" if chat else "/v1/completions"
        headers = {
            contract.HEADER_REQUEST_ID: contract.attempt_id(
                contract.request_base("0a1b2c3d", number), attempt
            )
        }
        if self.rank is not None:
            headers["X-data-parallel-rank"] = str(self.rank)
        with _client() as client:
            answer = client.post(url + path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        value: dict[str, Any] = answer.json()
        return value

    def activations(self) -> dict[str, ExpertCounts]:
        """Return every record that the decode engine keeps, by base id."""
        return dict(self.records())

    def records(self) -> list[tuple[str, ExpertCounts]]:
        """Return the same with each sequence of a request."""
        return [(record["request_id"], decode_counts(record)) for record in self.raw_records()]

    def raw_records(self) -> list[dict[str, Any]]:
        """Return the records as the engine serves them."""
        found: list[dict[str, Any]] = []
        cursor, boot = 0, ""
        while True:
            query = {"after": cursor, "boot": boot, "limit": 256, "prefix": "eldr-0a1b2c3d-"}
            with _client() as client:
                page = client.get(self.decode + contract.PATH_ACTIVATIONS, params=query).json()
            assert page["lost"] == 0
            found += page["records"]
            if page["next"] == cursor:
                return found
            cursor, boot = page["next"], page["boot"]
