"""CPU time of one choice of replicas, 256 experts on 8 ranks, and how much fuller greedy's fullest rank is than the optimum.

Every choice is held against its step, and the optimum against maximum flows.

Writes docs/benchmarks/metro.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from eldr.engine.balance.packing import activation_weights, spread
from eldr.sim import traces
from eldr_bench.machine import ROOT, load_before, one_thread, revision
from eldr_bench.page import measured, row, section
from eldr_bench.proof import require
from tests.support.metro import Choice, Placement, exact, exact_loads, greedy, greedy_loads
from tests.support.metro.baselines import active_set, pack

EXPERTS, TOP_K, RANKS = 256, 8, 8
BATCHES = 16, 64, 128, 256, 512
RATIOS = 1.125, 1.5
ROUNDS, STEPS, REPEATS = 7, 40, 3
AIM = 50.0
PAGE = ROOT / "docs" / "benchmarks" / "metro.md"
INTRODUCTION = """# Choosing replicas on the host

`make -C hack/lab bench-metro` writes this page. It times the plain form of METRO's choice (`tests/support/metro`), which engines do not run:
[theirs](../development/metro.md) is in torch and Triton. Every choice is checked in the same run, and the optimum held against maximum flows."""


def tokens(rng: np.random.Generator, batch: int) -> np.ndarray:
    """Return the experts of a batch's tokens: popularity as Zipf's law with exponent 0.8."""
    logit = -0.8 * np.log(np.arange(1, EXPERTS + 1))
    return np.argsort(-(logit + rng.gumbel(size=(batch, EXPERTS))), axis=1)[:, :TOP_K]


def microseconds(call: Callable[[np.ndarray], object], steps: np.ndarray) -> float:
    """Return the CPU time of one call, microseconds."""
    begun = time.process_time_ns()
    for _ in range(REPEATS):
        for active in steps:
            call(active)
    return (time.process_time_ns() - begun) / REPEATS / len(steps) / 1e3


def prove(name: str, choice: Choice, active: np.ndarray, placement: Placement) -> None:
    """Hold a choice against the step: a holder for each active expert, and loads that are their numbers."""
    ranks = choice.rank_of[active]
    held = placement.held[np.flatnonzero(active), ranks]
    require(
        held.all(), f"{name}: {np.count_nonzero(~held)} experts were given to ranks that do not hold them"
    )
    loads = np.bincount(ranks, minlength=placement.ranks).tolist()
    require(loads == choice.load, f"{name}: loads {choice.load} are told of a choice that makes {loads}")


def is_least(top: int, active: np.ndarray, placement: Placement) -> bool:
    """Tell by maximum flows, not by the code that is timed, whether the fullest rank must activate so many experts, and need not more."""
    experts = np.flatnonzero(active)
    n = len(experts)
    source, sink, first = n + placement.ranks, n + placement.ranks + 1, n
    at, rank = np.nonzero(placement.held[experts])
    begin = np.concatenate((np.full(n, source), at, first + np.arange(placement.ranks)))
    end = np.concatenate((np.arange(n), first + rank, np.full(placement.ranks, sink)))

    def placed(most: int) -> int:
        room = np.concatenate((np.ones(n + len(at), int), np.full(placement.ranks, most))).astype(np.int32)
        graph = csr_array((room, (begin, end)), shape=(n + placement.ranks + 2,) * 2)
        return int(maximum_flow(graph, source, sink).flow_value)

    return placed(top) == n and placed(top - 1) < n


def missed(case: str, steps: np.ndarray, placement: Placement) -> np.ndarray:
    """Return the steps on which greedy misses the optimum, after both choices of every step have proved themselves."""
    found = []
    for active in steps:
        near, best = greedy(active, placement), exact(active, placement)
        prove(f"greedy, {case}", near, active, placement)
        prove(f"exact, {case}", best, active, placement)
        top = max(best.load)
        least = is_least(top, active, placement)
        require(least, f"exact, {case}: {top} experts on the fullest rank are not the least possible")
        if max(near.load) > top:
            found.append(active)
    return np.array(found, dtype=np.bool_).reshape(-1, EXPERTS)


def times() -> list[dict[str, object]]:
    """Time choices on both placements, rounds interleaved; what makes exact dear are the steps on which greedy misses the optimum."""
    rng = np.random.default_rng(0)
    sums = np.bincount(tokens(rng, 4000).ravel(), minlength=EXPERTS)
    calls: dict[str, tuple[Callable[[np.ndarray], object], np.ndarray, float | None]] = {}
    for ratio in RATIOS:
        slots = round(EXPERTS * ratio)
        placed = {
            "by tokens": pack(sums, slots, RANKS),
            "by activation": spread(activation_weights(sums, 60), slots, RANKS),
        }
        for kind, where in placed.items():
            placement = Placement(where, EXPERTS, RANKS)
            pool = f"{slots - EXPERTS} redundant experts placed {kind}"
            hard = []
            for batch in BATCHES:
                steps = np.stack([active_set(tokens(rng, batch), EXPERTS) for _ in range(STEPS)])
                case = f"{pool}, batch {batch}"
                hard.append(missed(case, steps, placement))
                calls[f"greedy, {case}"] = partial(greedy, placement=placement), steps, None
                calls[f"exact, {case} (greedy misses {len(hard[-1])} of {STEPS})"] = (
                    partial(exact, placement=placement), steps, AIM,
                )  # fmt: skip
            if len(all_hard := np.concatenate(hard)):
                name = f"exact, {pool}, the {len(all_hard)} steps that greedy misses"
                calls[name] = partial(exact, placement=placement), all_hard, AIM
    require(any("that greedy misses" in name for name in calls), "no step makes exact do more than greedy")
    values: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):  # interleaved, so that a busy moment hits all alike
        for name, (call, steps, _) in calls.items():
            values[name].append(microseconds(call, steps))
    return [
        {"name": name, "unit": "us", "aim": aim, "values": values[name]}
        for name, (_, _, aim) in calls.items()
    ]


def captured() -> tuple[list[np.ndarray], list[Placement]]:
    """Return steps of captured activations, and the placement of each."""
    known = traces.load()
    rng = np.random.default_rng(1)
    records, length = known.decode_experts.shape[:2]
    steps, places = [], []
    for layer in range(known.n_layers):
        chosen = known.decode_experts[:, :, layer]
        sums = np.bincount(chosen.ravel(), minlength=known.n_experts)
        for ranks in (4, 8):
            for ratio in (1.125, 1.25, 1.5):
                for batch in (8, 32, 128):
                    weights = activation_weights(sums, records * length // batch)
                    where = spread(weights, round(known.n_experts * ratio), ranks)
                    places.append(Placement(where, known.n_experts, ranks))
                    drawn = [
                        chosen[rng.integers(0, records, batch), rng.integers(0, length, batch)]
                        for _ in range(60)
                    ]
                    steps.append(np.stack([active_set(ids, known.n_experts) for ids in drawn]))
    return steps, places


def random_steps() -> tuple[list[np.ndarray], list[Placement]]:
    """Return random steps, and the placement of each."""
    rng = np.random.default_rng(2)
    sums = np.bincount(tokens(rng, 4000).ravel(), minlength=EXPERTS)
    steps, places = [], []
    for ranks in (8, 16):
        for ratio in (1.125, 1.25, 1.5):
            for batch in BATCHES[:4]:
                for where in (
                    pack(sums, round(EXPERTS * ratio), ranks),
                    spread(activation_weights(sums, 4000 // batch), round(EXPERTS * ratio), ranks),
                ):
                    places.append(Placement(where, EXPERTS, ranks))
                    steps.append(np.stack([active_set(tokens(rng, batch), EXPERTS) for _ in range(60)]))
    return steps, places


def ratios(name: str, cases: tuple[list[np.ndarray], list[Placement]]) -> list[dict[str, object]]:
    """Return greedy's fullest rank over the optimum's: per setting the mean, and the worst of all."""
    means, worst = [], []
    for steps, placement in zip(*cases, strict=True):
        best = exact_loads(steps, placement).max(1)
        require(
            is_least(int(best[0]), steps[0], placement), f"{name}: {best[0]} is not the optimum of a step"
        )
        ratio = greedy_loads(steps, placement).max(1) / best
        means.append(float(ratio.mean()))
        worst.append(float(ratio.max()))
    title = f"fullest rank, greedy / optimum, {name}"
    return [
        {"name": f"{title}: means", "unit": "x", "aim": None, "values": means},
        {"name": f"{title}: worst", "unit": "x", "aim": None, "values": [max(worst)]},
    ]


def main() -> None:
    """Measure on one core."""
    one_thread()
    conditions = f"{revision()}, {load_before()}"
    figures: list[dict[str, Any]] = [
        *times(),
        *ratios(f"random steps, {EXPERTS} experts", random_steps()),
        *ratios("captured steps, 64 experts", captured()),
    ]
    PAGE.write_text(
        f"{INTRODUCTION}\n\n{section('metro', measured(conditions), [row(one) for one in figures])}\n"
    )


if __name__ == "__main__":
    main()
