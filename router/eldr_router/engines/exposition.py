"""Metrics of decode engines: steps, KV caches, answers. Pure.

Only a handful of sums is wanted of some hundred kilobytes, so the text is searched, not parsed. Of the data-parallel ranks of an
engine one reports each step, with the whole engine's batch and experts: so what they report adds up.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from eldr.contract import (
    BATCH_BUCKETS,
    INFO_UNTESTED,
    METRIC_ACTIVE_EXPERTS,
    METRIC_BATCH_SIZE,
    METRIC_CONTEXT_TOKENS,
    METRIC_COUNTING,
    METRIC_DRAFT_EXPERTS,
    METRIC_FED_TOKENS,
    METRIC_INFO,
    METRIC_STEP_SECONDS,
)
from eldr.core.saving import Batches
from eldr.core.step_time_fit import Window
from eldr_router.engines.kv_room import Answers, KvCache

_WANTED = {
    f"{METRIC_STEP_SECONDS}_count": "steps",
    f"{METRIC_STEP_SECONDS}_sum": "seconds",
    f"{METRIC_ACTIVE_EXPERTS}_sum": "active",
    f"{METRIC_BATCH_SIZE}_sum": "batch",
}
_OPTIONAL = {
    f"{METRIC_FED_TOKENS}_total": "fed",
    f"{METRIC_CONTEXT_TOKENS}_total": "context",
    f"{METRIC_DRAFT_EXPERTS}_total": "drafted",
}
_SUMS = {**_WANTED, **_OPTIONAL}
# a name, labels whose values may hold anything but a quote, the value, perhaps a time stamp; no pattern takes longer than its
# text is long, whatever an engine says
_BUCKET = re.compile(rb"^%b_bucket\{([^\n]*)\} ([^\s]+)(?: \d+)?$" % METRIC_BATCH_SIZE.encode(), re.MULTILINE)
_BOUND = re.compile(rb'(?:^|,)le="([^"]+)"')
_LINE = re.compile(
    rb"^(%b)(?:\{[^\n]*\})? ([^\s]+)(?: \d+)?$" % "|".join(map(re.escape, _SUMS)).encode(),
    re.MULTILINE,
)
_INFO = re.compile(rb"^%b\{([^\n]*)\} 1(?:\.0)?$" % METRIC_INFO.encode(), re.MULTILINE)
_STOPPED = re.compile(rb"^%b(?:\{[^\n]*\})? 0(?:\.0)?$" % METRIC_COUNTING.encode(), re.MULTILINE)
_CACHE = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\} 1(?:\.0)?$", re.MULTILINE)
_USED = re.compile(rb"^vllm:kv_cache_usage_perc(?:\{[^\n]*\})? ([^\s]+)$", re.MULTILINE)
_ANSWERS = re.compile(
    rb"^vllm:(generation_tokens|request_success)_total(?:\{[^\n]*\})? ([^\s]+)(?: \d+)?$", re.MULTILINE
)
# without the last plus, each character of a value takes 170 bytes
_LABEL = re.compile(rb'(?:^|,) *(\w+)="((?:[^"\\]|\\.)*+)"')
_MOST = float(1 << 53)
"""Of anything that is counted: sums of what is larger are not exact, and overflow in the end."""

_BOUNDS = tuple(map(float, BATCH_BUCKETS))


class Sums(NamedTuple):
    """Totals since an engine's start."""

    steps: float = 0.0
    seconds: float = 0.0
    active: float = 0.0
    batch: float = 0.0
    fed: float = 0.0
    context: float = 0.0
    drafted: float = 0.0


def read_steps(text: bytes, sums: Sums) -> Batches | None:
    """Return an engine's steps by batch size; None without the metrics.

    Batches larger than the contract's buckets count in the last.
    """
    below: dict[float, float] = {}
    for labels, value in _BUCKET.findall(text):
        try:
            (bound,) = _BOUND.findall(labels)
            limit, number = float(bound), float(value)
        except ValueError:
            return None
        below[limit] = number + below.get(limit, 0.0)
    if not below.keys() >= set(_BOUNDS) or not all(abs(number) <= _MOST for number in below.values()):
        return None
    cumulative = [0.0, *(below[bound] for bound in _BOUNDS)]
    sizes = [high - low for low, high in pairwise(cumulative)]
    sizes[-1] += max(0.0, sums.steps - cumulative[-1])
    return Batches(sums.active, tuple(sizes), sums.batch, sums.fed)


def read_sums(text: bytes) -> Sums | None:
    """Return the totals in a text exposition, or None if it holds no steps."""
    totals: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        try:
            number = float(value)
        except ValueError:
            return None
        key = _SUMS[name.decode()]
        totals[key] = number + totals.get(key, 0.0)
    totals.setdefault("fed", totals.get("batch", 0.0))  # an engine that does not report what it fed
    if not totals.keys() >= set(_WANTED.values()) or not all(
        abs(total) <= _MOST for total in totals.values()
    ):
        return None
    return Sums(**totals)


def read_untested(text: bytes) -> str:
    """Return an engine's version if the plug-in was not tested with it.

    Else an empty text.
    """
    for labels in _INFO.findall(text):
        info: dict[bytes, bytes] = dict(_LABEL.findall(labels))
        if info.get(b"tested") == INFO_UNTESTED.encode():
            return info.get(b"vllm", b"").decode(errors="replace")
    return ""


def read_counting(text: bytes) -> bool:
    """Return whether an engine counts on all its ranks."""
    return _STOPPED.search(text) is None


def read_cache(text: bytes) -> KvCache | None:
    """Return an engine's KV cache; None if its size is not reported.

    Of several ranks each reports its own tokens, but all of them report the blocks of all together.
    """
    ranks = [dict(_LABEL.findall(labels)) for labels in _CACHE.findall(text)]
    try:
        sizes = [int(rank[b"kv_cache_size_tokens"]) for rank in ranks]
    except (KeyError, ValueError):
        try:
            sizes = [int(rank[b"num_gpu_blocks"]) * int(rank[b"block_size"]) // len(ranks) for rank in ranks]
        except (KeyError, ValueError):
            return None
    if not sizes or min(sizes) <= 0 or sum(sizes) > _MOST:
        return None
    used = _numbers(_USED.findall(text))
    return KvCache(sum(sizes), max(sizes), min(1.0, sum(used) / len(used)) if used else None)


def read_answers(text: bytes) -> Answers | None:
    """Return tokens and requests since an engine's start, or None."""
    samples = _ANSWERS.findall(text)
    totals = [
        _numbers(n for name, n in samples if name == key)
        for key in (b"generation_tokens", b"request_success")
    ]
    return Answers(sum(totals[0]), sum(totals[1])) if all(totals) else None


def _numbers(values: Iterable[bytes]) -> list[float]:
    """Return what is a number among values, and none below 0 or too large to count with."""
    numbers = []
    for value in values:
        with contextlib.suppress(ValueError):
            numbers.append(float(value))
    return [number for number in numbers if 0 <= number <= _MOST]


def window(before: Sums, after: Sums, least: int) -> Window | None:
    """Return means of the steps between two totals; None if too few."""
    steps, seconds, active, batch, *others = (b - a for a, b in zip(before, after, strict=True))
    if steps < least or min(seconds, active, batch, *others) < 0:
        return None
    means = (total / steps for total in others)
    return Window(seconds / steps, active / steps, batch / steps, int(steps), *means)
