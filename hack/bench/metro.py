"""CPU time of one choice of replicas, 256 experts on 8 ranks, and how much fuller greedy's fullest rank is than the optimum.

Prints one JSON list of figures, see ``render.py``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np

from eldr.core.metro import Placement, exact, exact_loads, greedy, greedy_loads
from eldr.core.metro.baselines import active_set
from eldr.core.metro.packing import activation_weights, pack, spread
from eldr.sim import traces

EXPERTS, TOP_K, RANKS = 256, 8, 8
BATCHES = 16, 64, 128, 256, 512
RATIOS = 1.125, 1.5
ROUNDS, STEPS, REPEATS = 7, 40, 3
AIM = 50.0


def tokens(rng: np.random.Generator, batch: int) -> np.ndarray:
    """Return the experts of a batch's tokens: popularity as Zipf's law with exponent 0.8."""
    logit = -0.8 * np.log(np.arange(1, EXPERTS + 1))
    return np.argsort(-(logit + rng.gumbel(size=(batch, EXPERTS))), axis=1)[:, :TOP_K]


def seconds(call: Callable[[np.ndarray], object], steps: np.ndarray) -> float:
    """Return the CPU time of one call."""
    begun = time.process_time_ns()
    for _ in range(REPEATS):
        for active in steps:
            call(active)
    return (time.process_time_ns() - begun) / REPEATS / len(steps) / 1e3


def times() -> list[dict[str, object]]:
    """Time choices on both placements, rounds interleaved."""
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
            for batch in BATCHES:
                steps = np.stack([active_set(tokens(rng, batch), EXPERTS) for _ in range(STEPS)])
                case = f"{slots - EXPERTS} redundant experts placed {kind}, batch {batch}"
                calls[f"greedy, {case}"] = lambda active, place=placement: greedy(active, place), steps, None
                calls[f"exact, {case}"] = lambda active, place=placement: exact(active, place), steps, AIM
    values: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):  # interleaved, so that a busy moment hits all alike
        for name, (call, steps, _) in calls.items():
            values[name].append(seconds(call, steps))
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
        ratio = greedy_loads(steps, placement).max(1) / exact_loads(steps, placement).max(1)
        means.append(float(ratio.mean()))
        worst.append(float(ratio.max()))
    title = f"fullest rank, greedy / optimum, {name}"
    return [
        {"name": f"{title}: means", "unit": "x", "aim": None, "values": means},
        {"name": f"{title}: worst", "unit": "x", "aim": None, "values": [max(worst)]},
    ]


def main() -> None:
    """Measure on one core."""
    if os.environ.get("OMP_NUM_THREADS") != "1":  # before NumPy starts its threads
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_NUM_THREADS": "1"})
    figures = [
        *times(),
        *ratios(f"random steps, {EXPERTS} experts", random_steps()),
        *ratios("captured steps, 64 experts", captured()),
    ]
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
