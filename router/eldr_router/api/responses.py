"""What is special about ``/v1/responses``. Pure.

Nothing is kept between two requests, as in a vLLM without a store: that one ignores ``store``, which clients leave out and
which means true then. Here a request that asks for it in so many words is refused, since its answer could not be found again.

References
----------
.. [1] OpenAI API reference, responses and their streaming events; vLLM adds ``include_reasoning`` and ``request_id``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eldr_router.api.answers import Word, blames_client, object_of
from eldr_router.api.fields import Fields, check_integer, scalar, too_much
from eldr_router.http.errors import bad_request

_NONE, _FALSE = b"null", b"false"
_STATEFUL = {
    "store": (_FALSE, "no response is stored; leave it out, or send false"),
    "background": (_FALSE, "nothing runs when its client has left; leave it out, or send false"),
    "previous_response_id": (_NONE, "no response is stored; send the conversation so far in input"),
    "conversation": (_NONE, "no conversation is stored; send it in input"),
    "prompt": (_NONE, "no prompt template is stored; send its text in instructions or input"),
}
_UNBOUNDED = frozenset(("input", "instructions", "tools"))
_LONGEST_ECHO = 1 << 20
"""Bytes of a field that is no prompt, but stands in each of the events before the first token."""
_SPLIT_TOOLS = frozenset(("function", "custom"))
ENDS = frozenset(("response.completed", "response.incomplete", "response.failed"))
"""What ends a stream. vLLM says ``response.incomplete`` from 0.33 on, and calls that completed before."""


class _Tool(msgspec.Struct):
    type: str = ""


_tools = msgspec.json.Decoder(list[_Tool]).decode


def check(fields: Fields, known: dict[str, Any]) -> tuple[str, ...]:
    """Refuse what needs memory of earlier requests, or escapes the prefill.

    Returns
    -------
    tuple of str
        Fields that a leg of one token does without.
    """
    for name, (harmless, why) in _STATEFUL.items():
        raw = fields.get(name)
        if raw is not None and bytes(memoryview(raw)[:5]) not in (_NONE, harmless):
            shown = str(memoryview(raw)[:40], "utf-8", "replace")
            raise bad_request(f"{name}: {shown} is not served: {why}", "stateful", name)
    for name in ("max_output_tokens", "ignore_eos"):
        if name in fields:
            known[name] = scalar(name, fields[name])
    check_integer("max_output_tokens", known.get("max_output_tokens"), least=1)
    if not isinstance(known.get("ignore_eos", False), bool):
        raise bad_request(
            f"ignore_eos: expected true or false, got {known['ignore_eos']!r}", "invalid_value", "ignore_eos"
        )
    for name, raw in fields.items():
        view = memoryview(raw)
        if name not in _UNBOUNDED and len(view) > _LONGEST_ECHO:
            raise too_much(name, view, f"a value of {len(view)} bytes", f"send at most {_LONGEST_ECHO}")
    return ()


def why_unsplit(fields: Fields, known: dict[str, Any]) -> str | None:
    """Return why a request cannot be split, besides its prompt.

    An engine that runs tools itself generates several times from one set of parameters: it would pull once more what it has
    pulled. And one that hides the thoughts says nothing after its pull until they are over, so that the pull's moment is unknown.
    """
    if known.get("tools"):
        try:
            types = {tool.type for tool in _tools(memoryview(fields["tools"]))}
        except msgspec.DecodeError:
            return "tools"  # the engine refuses them
        if not types <= _SPLIT_TOOLS:
            return "tools"
    shown = fields.get("include_reasoning")
    return None if shown is None or bytes(memoryview(shown)[:5]) in (b"true", _NONE) else "include_reasoning"


def first_word(data: bytes) -> Word:
    """Return what an event says.

    See :func:`eldr_router.api.answers.first_word`.

    ``early`` are the events that come before the engine has begun, and so before the pull. The ones of unknown names that
    show the response as it stands count as such.
    """
    event = object_of(data)
    if event is None:
        return "tokens"
    kind, error = event.get("type"), event.get("error")
    if error or kind in ("error", "response.failed"):
        return "tokens" if blames_client(error) else "error_event"
    response = event.get("response")
    if not isinstance(response, dict):
        return "tokens"
    if kind not in ENDS:
        return "early"
    return "aborted" if is_cut(response) else "tokens"


def is_cut(answer: dict[str, Any]) -> bool:
    """Return whether a whole answer was cut short by the engine's end.

    vLLM calls it completed all the same, except for some models. So only one without a token can be seen.
    """
    if answer.get("status") == "cancelled":
        return True
    usage = answer.get("usage")
    return isinstance(usage, dict) and usage.get("output_tokens") == 0
