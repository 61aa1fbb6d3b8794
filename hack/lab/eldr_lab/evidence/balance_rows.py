"""The METRO paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from eldr_lab.evidence import published
from eldr_lab.evidence.balance_results import GREEDY, NONE, VLLM, Found, Fullest
from eldr_lab.evidence.balance_study import BATCHES, LEAST, MODELS
from eldr_lab.evidence.intervals import Interval, interval
from eldr_lab.evidence.names import model
from eldr_lab.evidence.rows import Row, row
from eldr_lab.evidence.verdicts import Verdict, judge

_LOADS = (16, 32, 64, 128, 256)
"""Batches at which times are compared: smaller ones hardly load an engine, larger ones load all experts."""
_PAPERS = ("qwen3-30b", "qwen3-235b")
"""Models that the paper measured."""
_LAW = "the step-time model is Qwen3-30B's of MI300X by bytes: launches and overheads that no choice changes weigh more in it than on the paper's chips"
_SYNTHETIC = "preferences of experts are ours, set for ELDR's workloads; the paper's requests and batches are not published"
_DEAR = f"{1e6 * LEAST:.0f} us a layer are more than is saved where an expert is read in 3.45 us; the paper's GPUs read slower than MI300X"
_ORDER = "few counts make large ratios, and an arbitrary order meets worse ones: experts with few holders have to come first"
_FLAT = "a step hardly takes longer once all experts are active, so that a small gain in time is a large one in batch; the step-time model is ours"


def rows(found: Found) -> Iterator[Row]:
    """Yield the paper's numbers beside ours."""
    fullest = Fullest(found)
    yield from _choices(fullest)
    yield from _steps(fullest)


def _extreme(
    fullest: Fullest,
    change: Callable[[str, int, float, str, str], Interval],
    other: str,
    batches: Sequence[int],
    names: Sequence[str],
) -> tuple[tuple[Interval, str], tuple[Interval, str]]:
    """Return the least and the largest change by the greedy choice of all cells, and where they are."""
    every = [
        (
            change(name, batch, ratio, GREEDY, other),
            f"{model(name)}, batch {batch}, {ratio:g} physical experts per expert",
        )
        for name in names
        for batch in batches
        for ratio in fullest.ratios
    ]
    ordered = sorted(every, key=lambda one: one[0].mean)
    return ordered[0], ordered[-1]


def _choices(fullest: Fullest) -> Iterator[Row]:
    number = published.METRO_GREEDY
    # as the paper prints it; the orders that engines run stand in the tables
    ours = interval([100 * (max(values) - 1) for values in fullest.above("as printed, tokens", 0)])
    held = judge(ours, 0.0, number) is Verdict.REPRODUCED
    yield Row(
        "METRO greedy as printed: fullest rank above the optimum, mean of the worst setting", ours, 0.0, number,
        f"at most {number:+.1f} (METRO)", Verdict.REPRODUCED if held else Verdict.NOT, "" if held else _ORDER,
    )  # fmt: skip
    (best, where), _ = _extreme(fullest, fullest.change, VLLM, BATCHES, list(MODELS))
    number = published.METRO_FEWER
    yield row(
        f"METRO greedy: experts of the fullest rank against EPLB, at most ({where})", best, number, number,
        f"{number:+.1f} (METRO)", dict.fromkeys(Verdict, _SYNTHETIC) | {Verdict.REPRODUCED: ""},
    )  # fmt: skip
    values = [fullest.change("qwen3-30b", batch, max(fullest.ratios), VLLM, NONE) for batch in _LOADS]
    number = published.EPLB_EXPERTS
    yield row(
        "Qwen3-30B, 8 ranks, EPLB at 1.5 physical experts per expert: experts of the fullest rank against none, mean over batches",
        _mean(values), number, number, f"{number:+.1f} (METRO)", dict.fromkeys(Verdict, _SYNTHETIC) | {Verdict.REPRODUCED: ""},
    )  # fmt: skip


def _steps(fullest: Fullest) -> Iterator[Row]:
    why = dict.fromkeys(Verdict, _LAW) | {Verdict.REPRODUCED: ""}
    values = [fullest.slower("qwen3-30b", batch, max(fullest.ratios), VLLM, NONE) for batch in _LOADS]
    number = published.EPLB_TIME
    yield row(
        "Qwen3-30B, 8 ranks, EPLB at 1.5 physical experts per expert: TPOT against none, mean over batches",
        _mean(values), number, number, f"{number:+.1f} (METRO)", why,
    )  # fmt: skip
    least, most = _extreme(fullest, fullest.slower, VLLM, _LOADS, _PAPERS)
    for (ours, where), number, name, reason in zip(
        (least, most), published.METRO_TIME, ("largest", "smallest"), (_LAW, _DEAR), strict=True
    ):
        yield row(
            f"METRO greedy, TPOT against EPLB, {name} gain ({where})", ours, number, number, f"{number:+.1f} (METRO)",
            dict.fromkeys(Verdict, reason) | {Verdict.REPRODUCED: ""},
        )  # fmt: skip
    (ours, where), _ = _extreme(fullest, fullest.slower, NONE, _LOADS, _PAPERS)
    low, high = published.METRO_NONE
    yield row(
        f"METRO greedy, TPOT against no replicas, largest gain ({where})",
        ours,
        low,
        high,
        f"{low:+.1f} .. {high:+.1f} (METRO)",
        why,
    )
    every = {
        (name, ratio): fullest.served(name, ratio, GREEDY, VLLM)
        for name in MODELS
        for ratio in fullest.ratios
    }
    (name, ratio), ours = max(every.items(), key=lambda one: one[1].mean)
    low, high = published.METRO_THROUGHPUT
    yield row(
        f"METRO greedy, throughput within the same TPOT against EPLB, at most ({model(name)}, {ratio:g} physical experts per expert)",
        ours, low, high, f"{low:+.1f} .. {high:+.1f} (METRO, simulated B200)",
        why | {Verdict.OVERSTATED: _FLAT},
    )  # fmt: skip


def _mean(values: Sequence[Interval]) -> Interval:
    """Return the mean of intervals over the same seeds, with their mean width."""
    return Interval(
        float(np.mean([one.mean for one in values])), float(np.mean([one.half for one in values]))
    )
