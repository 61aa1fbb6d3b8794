"""Paths for clients: which are split, and which go whole. Pure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from eldr_router.api import answers, messages, responses
from eldr_router.api.answers import Word
from eldr_router.api.fields import Fields, shown
from eldr_router.api.relay import DONE
from eldr_router.http.errors import bad_request

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
ANY_ENGINE: Mapping[str, str] = MappingProxyType(
    {
        "/v1/models": "GET",
        "/version": "GET",
        "/tokenize": "POST",
        "/detokenize": "POST",
        "/v1/messages/count_tokens": "POST",
        "/v1/embeddings": "POST",
        "/v2/embed": "POST",
        "/pooling": "POST",
        "/classify": "POST",
        "/score": "POST",
        "/v1/score": "POST",
        "/rerank": "POST",
        "/v1/rerank": "POST",
        "/v2/rerank": "POST",
    }
)
"""Paths that go whole to one engine, and their methods. Nothing here may take ``kv_transfer_params``, change an engine, or generate: decode engines have a limit, which these do not count for."""

_ONE, _TRUE, _FALSE, _NULL = (msgspec.Raw(value) for value in (b"1", b"true", b"false", b"null"))
_SEARCH = 1 << 20
Fixed = Mapping[str, Any]


def _check_openai(fields: Fields, known: dict[str, Any]) -> tuple[str, ...]:
    """Refuse what only the decode engine would: the prefill engine gets no ``stream_options``."""
    raw, options = fields.get("stream_options"), known.get("stream_options")
    if raw is None or raw == _NULL:
        return ()
    wrong = None
    if options is None:
        wrong = f": expected an object, got {shown(raw)}"
    elif known.get("stream") is not True:
        wrong = ": it needs stream: true; remove it, or ask for a stream"
    else:
        for name in _STREAM_OPTIONS & options.keys():
            if options[name] not in (_TRUE, _FALSE, _NULL):
                wrong = f".{name}: expected true or false, got {shown(options[name])}"
    if wrong is not None:
        raise bad_request(f"stream_options{wrong}", "invalid_value", "stream_options")
    return ()


def _check_completions(fields: Fields, known: dict[str, Any]) -> tuple[str, ...]:
    """Take a list of one prompt for the prompt itself, as clients send it that know lists only. Empty ones stay lists."""
    prompt = memoryview(fields.get("prompt", msgspec.Raw()))
    if _LISTED.match(prompt):
        with contextlib.suppress(msgspec.ValidationError):
            fields["prompt"] = _only(prompt).prompt.copy()
    return _check_openai(fields, known)


_LISTED = re.compile(rb'\[\s*("[^"]|\[\s*[-0-9])')


class _Only(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A list of one item; decoding ends at the second."""

    prompt: msgspec.Raw


_only = msgspec.json.Decoder(_Only).decode


def _completions_unsplit(fields: Fields, known: dict[str, Any]) -> str | None:  # noqa: ARG001
    if not known.keys() & _MAY_NOT_SPLIT:
        return None
    for name in ("n", "best_of"):
        if known.get(name) not in (None, 1):
            return name
    for name in ("echo", "use_beam_search"):
        if known.get(name):
            return name
    return None if known.get("prompt_logprobs") is None else "prompt_logprobs"


_MAY_NOT_SPLIT = frozenset(("n", "best_of", "echo", "use_beam_search", "prompt_logprobs"))
_NOT_FOR_PREFILL = ("stream_options", "best_of")
_STREAM_OPTIONS = frozenset(("include_usage", "continuous_usage_stats"))


class Api(NamedTuple):
    """A path whose requests are split.

    Attributes
    ----------
    prompt : str
        The field that holds the prompt.
    begins : bytes
        What a prompt that can be split begins with, as JSON; empty where :mod:`eldr_router.api.bodies` looks closer.
    one_token : mapping
        What a leg of one token sets.
    limits : tuple of str
        Fields that bound the answer's tokens, the one that counts first.
    check : callable
        Refuses what an engine should not see; returns fields that a leg of one token does without.
    why_unsplit : callable
        Why a request cannot be split, besides its prompt: a bounded metric label.
    first_word, is_cut : callable
        How answers read: the data of an event, and a whole answer.
    hint : bytes
        Stands in every whole answer that was cut short.
    done : tuple of bytes
        How the last event of a stream begins, one of them.
    without : tuple of str
        Fields that a leg of one token does without.
    instructions : str
        A field that comes before the prompt, for what prompts have in common.
    usual : int or None
        Tokens of an answer whose request names no limit; None: as many as fit.
    several : bool
        Whether one request may run several sequences.
    always : mapping
        What engines get, whatever the client sent.
    id_field : str
        The field that takes the request's id where engines read no header.
    named : bool
        Whether events have names.
    echoes : bool
        Whether events before the first token repeat fields of the request.
    operation : str
        What OpenTelemetry calls it.
    """

    prompt: str
    begins: bytes
    one_token: Fixed
    limits: tuple[str, ...]
    check: Callable[[Fields, dict[str, Any]], tuple[str, ...]]
    why_unsplit: Callable[[Fields, dict[str, Any]], str | None]
    first_word: Callable[[bytes], Word]
    is_cut: Callable[[dict[str, Any]], bool]
    done: tuple[bytes, ...]
    hint: bytes = b""
    without: tuple[str, ...] = ()
    instructions: str = ""
    usual: int | None = None
    several: bool = False
    always: Fixed = MappingProxyType({})
    id_field: str = ""
    named: bool = False
    echoes: bool = False
    operation: str = "chat"

    def search(self, body: int) -> int:
        """Return how many bytes of a stream to search for its first word."""
        return _SEARCH + 8 * body if self.echoes else _SEARCH


# min_tokens: a prompt whose first token is an end token would else stop without handing its blocks over
_OPENAI_TOKEN = {"stream": _FALSE, "max_tokens": _ONE, "min_tokens": _ONE, "n": _ONE}
APIS: Mapping[str, Api] = MappingProxyType(
    {
        COMPLETIONS: Api(
            prompt="prompt", begins=b"", one_token=_OPENAI_TOKEN, without=_NOT_FOR_PREFILL,
            limits=("max_completion_tokens", "max_tokens"), usual=16, several=True, operation="text_completion",
            check=_check_completions, why_unsplit=_completions_unsplit,
            first_word=answers.first_word, is_cut=answers.has_aborted, hint=b'"abort"', done=(DONE,),
        ),
        CHAT: Api(
            prompt="messages", begins=b"[", one_token={**_OPENAI_TOKEN, "max_completion_tokens": _ONE},
            limits=("max_completion_tokens", "max_tokens"), without=_NOT_FOR_PREFILL, several=True,
            check=_check_openai, why_unsplit=_completions_unsplit,
            first_word=answers.first_word, is_cut=answers.has_aborted, hint=b'"abort"', done=(DONE,),
        ),
        RESPONSES: Api(
            prompt="input", begins=b'["', instructions="instructions",
            one_token={"stream": _FALSE, "max_output_tokens": _ONE, "ignore_eos": _TRUE}, limits=("max_output_tokens",),
            always={"store": _FALSE}, id_field="request_id", named=True, echoes=True,
            check=responses.check, why_unsplit=responses.why_unsplit,
            first_word=responses.first_word, is_cut=responses.is_cut, done=tuple(b"event: " + kind.encode() for kind in sorted(responses.ENDS)),
        ),
        MESSAGES: Api(
            prompt="messages", begins=b"[", instructions="system",
            one_token={"stream": _FALSE, "max_tokens": _ONE}, limits=("max_tokens",), named=True,
            check=messages.check, why_unsplit=messages.why_unsplit,
            first_word=messages.first_word, is_cut=messages.is_cut, done=(b"event: message_stop",),
        ),
    }
)  # fmt: skip
