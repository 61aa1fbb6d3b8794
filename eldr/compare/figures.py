"""Routers' and engines' metrics -> what a window measured. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

_GAPS: Final = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
"""Histogram of the time between tokens: the newer name, and the older one."""
_FIRST: Final = "vllm:time_to_first_token_seconds_count"
_TOKENS: Final = "vllm:generation_tokens_total"
_TTFT: Final = "eldr_router_first_byte_seconds"
_REQUEST: Final = "eldr_router_request_seconds_bucket"
_TYPICAL: Final = 0.9
_LONGEST: Final = 600.0
NO_TRAFFIC: Final = "there was no traffic"
"""Why a window measured nothing."""


class FiguresError(Exception):
    """A page of metrics lacks what it should hold."""


class Totals(NamedTuple):
    """What a pod has counted since its start; 0 where it does not count it.

    Attributes
    ----------
    gap_seconds : float
        Times between tokens, summed.
    firsts : float
        Tokens that were the first of their answer on a decode engine.
    ttft_seconds, ttfts : float
        Times to the first token as routers see them, summed, and how many.
    """

    tokens: float = 0.0
    gap_seconds: float = 0.0
    firsts: float = 0.0
    ttft_seconds: float = 0.0
    ttfts: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """All pods' totals at a moment.

    Attributes
    ----------
    epoch : int or None
        Of the centroids in effect.
    """

    at: float
    pods: Mapping[str, Totals]
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a window measured; seconds, tokens per second."""

    tpot: float
    ttft: float
    throughput: float
    requests: int


def of_engine(page: str) -> Totals:
    """Read a decode engine's metrics; FiguresError without its tokens."""
    sums = _sums(page, (_TOKENS, _FIRST, *(f"{name}_sum" for name in _GAPS)))
    gaps = next((sums[f"{name}_sum"] for name in _GAPS if f"{name}_sum" in sums), None)
    if gaps is None or _TOKENS not in sums:
        raise FiguresError(
            f"it has no {_GAPS[0]} or no {_TOKENS}; is it a vLLM engine with --disable-log-stats?"
        )
    return Totals(tokens=sums[_TOKENS], gap_seconds=gaps, firsts=sums.get(_FIRST, 0.0))


def of_router(page: str) -> Totals:
    """Read a router's metrics; FiguresError without its times."""
    sums = _sums(page, (f"{_TTFT}_sum", f"{_TTFT}_count"))
    if len(sums) < 2:
        raise FiguresError(f"it has no {_TTFT}; is it a router of this version?")
    return Totals(ttft_seconds=sums[f"{_TTFT}_sum"], ttfts=sums[f"{_TTFT}_count"])


def window(opened: Reading, closed: Reading) -> Figures | str:
    """Return what was measured between two readings, or why nothing was."""
    if opened.epoch != closed.epoch:
        return "the centroid set changed"
    if opened.pods.keys() != closed.pods.keys():
        return "engines or routers came or went"
    grown = [_difference(opened.pods[pod], closed.pods[pod]) for pod in opened.pods]
    if any(value < 0 for totals in grown for value in totals):
        return "an engine or router restarted"
    total = Totals(*(math.fsum(values) for values in zip(*grown, strict=True)))
    later = total.tokens - total.firsts
    if later <= 0 or total.ttfts <= 0 or total.gap_seconds <= 0:
        return NO_TRAFFIC
    seconds = closed.at - opened.at
    # with drafts an engine counts one gap a step, and several tokens
    return Figures(
        tpot=total.gap_seconds / later,
        ttft=total.ttft_seconds / total.ttfts,
        throughput=total.tokens / seconds,
        requests=round(total.ttfts),
    )


def typical_seconds(pages: Iterable[str]) -> float | None:
    """Return how long nine tenths of requests last at most, by the routers' histograms; None without requests."""
    counts: dict[float, float] = {}
    for page in pages:
        for name, labels, value in _samples(page):
            if name == _REQUEST:
                bound = float(labels["le"])
                counts[bound] = counts.get(bound, 0.0) + value
    total = counts.get(math.inf, 0.0)
    if not total:
        return None
    bound = min(bound for bound, count in counts.items() if count >= _TYPICAL * total)
    return min(bound, _LONGEST)


def _difference(opened: Totals, closed: Totals) -> Totals:
    return Totals(*(after - before for before, after in zip(opened, closed, strict=True)))


def _sums(page: str, names: Iterable[str]) -> dict[str, float]:
    wanted, sums = set(names), dict[str, float]()
    for name, _, value in _samples(page):
        if name in wanted:
            sums[name] = sums.get(name, 0.0) + value
    return sums


def _samples(page: str) -> Iterable[tuple[str, Mapping[str, str], float]]:
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise FiguresError(f"its metrics cannot be read: {error}") from None
