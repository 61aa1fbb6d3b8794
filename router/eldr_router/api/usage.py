"""Model and tokens of a request and its answer, for telemetry. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

_LONGEST_MODEL = 256
_END = 1 << 16
"""Bytes of an answer's end that are searched: what follows its usage is short, and some answers are long."""
_OBJECT = 1 << 11
_INPUT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,15})')
_OUTPUT = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,15})')


class Usage(NamedTuple):
    """Tokens of prompt and answer; None where the engine reports none."""

    input: int | None = None
    output: int | None = None


UNKNOWN = Usage()


def usage_of(end: bytes) -> Usage:
    """Return the usage that the end of an answer holds: its last one.

    No text within an answer can look like one, as JSON writes its quotes with a backslash.

    Examples
    --------
    >>> usage_of(b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}')
    Usage(input=5, output=7)
    """
    at = end.rfind(b'"usage"', max(0, len(end) - _END))
    if at < 0:
        return UNKNOWN
    usage = end[at : at + _OBJECT]
    return Usage(_number(_INPUT, usage), _number(_OUTPUT, usage))


def model_of(fields: Mapping[str, msgspec.Raw]) -> str:
    """Return the model that a request names, empty if it names none."""
    try:
        name = msgspec.json.decode(memoryview(fields.get("model", b'""'))[: 6 * _LONGEST_MODEL + 2])
    except (msgspec.DecodeError, ValueError):
        return ""
    return name[:_LONGEST_MODEL] if isinstance(name, str) else ""


def _number(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    match = pattern.search(text)
    return None if match is None else int(match[1])
