"""What is special about ``/v1/messages``. Pure.

References
----------
.. [1] Anthropic API reference, messages and their streaming events, as vLLM serves them: errors of a stream have no code.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eldr_router.api.answers import Word, blames_client, object_of
from eldr_router.api.fields import Fields
from eldr_router.http.errors import bad_request

_LEAST_BUDGET = 1024


class _Object(msgspec.Struct):
    """An object of which two fields count."""

    type: Any = None
    budget_tokens: Any = None


_object = msgspec.json.Decoder(_Object).decode


def _typed(fields: Fields, name: str) -> _Object:
    try:
        return _object(memoryview(fields[name]))
    except (KeyError, msgspec.DecodeError):
        return _Object()  # none, or the engine refuses it


def check(fields: Fields, known: dict[str, Any]) -> tuple[str, ...]:
    """Refuse what only the decode engine would refuse.

    The prefill engine gets another ``max_tokens``, and no budget for thoughts.

    Returns
    -------
    tuple of str
        Fields that a leg of one token does without.
    """
    most = known.get("max_tokens")
    if most is None or most < 1:
        said = "nothing" if most is None else most
        raise bad_request(
            f"max_tokens: expected an integer of at least 1, got {said}; say how many tokens the answer may have",
            "invalid_value",
            "max_tokens",
        )
    thinking = _typed(fields, "thinking")
    if thinking.type != "enabled":
        return ()
    budget = thinking.budget_tokens
    if type(budget) is not int or not _LEAST_BUDGET <= budget < most:
        raise bad_request(
            f"thinking.budget_tokens: expected an integer of at least {_LEAST_BUDGET} and less than max_tokens ({most}), "
            f"got {budget!r:.40}",
            "invalid_value",
            "thinking",
        )
    return ("thinking",)  # it is a limit, and changes no prompt


def why_unsplit(fields: Fields, known: dict[str, Any]) -> str | None:
    """Return why a request cannot be split, besides its prompt.

    With some parsers vLLM reads the arguments of a tool that must be called as JSON, which one token of a prefill is not: a 400.
    """
    if not known.get("tools"):
        return None
    return "tool_choice" if _typed(fields, "tool_choice").type in ("any", "tool") else None


def first_word(data: bytes) -> Word:
    """Return what an event says.

    See :func:`eldr_router.api.answers.first_word`.
    """
    event = object_of(data)
    if event is None:
        return "tokens"
    kind, error = event.get("type"), event.get("error")
    if error or kind == "error":
        return "tokens" if blames_client(error) else "error_event"
    if kind == "message_start":
        return "opening"  # vLLM makes it of a chat's opening chunk, which comes after the pull
    if kind == "ping":
        return "early"
    delta = event.get("delta")
    if kind == "message_delta" and isinstance(delta, dict) and delta.get("stop_reason") is None:
        return "aborted"
    return "tokens"


def is_cut(answer: dict[str, Any]) -> bool:
    """Return whether an answer was cut short: it has no reason to stop."""
    return answer.get("type") == "message" and answer.get("stop_reason") is None
