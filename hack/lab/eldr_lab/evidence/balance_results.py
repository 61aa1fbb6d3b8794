"""What the study of expert-parallel engines found: experts of the fullest rank, and the times that follow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eldr_lab.evidence.balance_study import BATCHES, FIGURES, LEAST, MODELS, RATIOS
from eldr_lab.evidence.intervals import Interval, changes, interval
from eldr_lab.evidence.layouts import ACTIVATIONS, IN_ORDER

NONE, VLLM = "none, tokens", "tokens, tokens"
GREEDY, EXACT, OURS = "greedy, tokens", "exact, tokens", "exact, activations"
_FREE = (NONE, "none, activations", VLLM, "tokens, activations")
"""Choices that take no time of their own."""

Found = Mapping[str, Any]


def read(figures: Path = FIGURES) -> Found | None:
    """Return what the study found; None if it was not run."""
    if not figures.exists():
        return None
    found: Found = json.loads(figures.read_text())
    return found


def by_layout(found: Found) -> dict[tuple[str, int, int], list[Mapping[str, float]]]:
    """Return the fullest rank's experts without replicas, by layout, of each seed: by model, ranks and batch."""
    every: dict[tuple[str, int, int], list[Mapping[str, float]]] = {}
    for one in found["layouts"]:
        every.setdefault((one["name"], one["ranks"], one["batch"]), []).append(one["fullest"])
    return every


def layout_change(seeds: Sequence[Mapping[str, float]], layout: str) -> Interval:
    """Return by how much a layout changes the fullest rank's experts against those in order, percent."""
    return changes([one[layout] for one in seeds], [one[IN_ORDER] for one in seeds])


def layout_time(name: str, batch: int, seeds: Sequence[Mapping[str, float]], lookup: float) -> Interval:
    """Return by how much experts that EPLB moved by activation change a step's time, percent; vLLM's lookup of places is paid."""
    model = MODELS[name]
    moved = [model.law.seconds(batch, one[ACTIVATIONS]) + model.layers * lookup for one in seeds]
    stayed = [model.law.seconds(batch, one[IN_ORDER]) for one in seeds]
    return changes(moved, stayed)


class Fullest:
    """The fullest rank's experts of every cell, one value for each seed."""

    def __init__(self, found: Found) -> None:
        self.seeds: list[int] = found["seeds"]
        self._cells = {(one["model"], one["batch"], one["ratio"], one["seed"]): one for one in found["cells"]}
        self._greedy: list[dict[str, Any]] = found.get("greedy", [])
        self.ratios = [ratio for ratio in RATIOS if any(key[2] == ratio for key in self._cells)]

    def values(self, name: str, batch: int, ratio: float, choice: str) -> list[float]:
        """Return experts, by seed."""
        return [self._cells[name, batch, ratio, seed]["fullest"][choice] for seed in self.seeds]

    def above(self, choice: str, which: int) -> list[list[float]]:
        """Return mean (0) or largest (1) ratios to the optimum of all cells and of the captured activations, by seed."""
        every = [*self._cells.values(), *self._greedy]
        return [[one["above"][choice][which] for one in every if one["seed"] == seed] for seed in self.seeds]

    def change(self, name: str, batch: int, ratio: float, one: str, other: str) -> Interval:
        """Return the change of experts, percent."""
        return changes(self.values(name, batch, ratio, one), self.values(name, batch, ratio, other))

    def saved(self, name: str, batch: int, ratio: float, one: str, other: str) -> Interval:
        """Return what a layer takes less, microseconds, whatever the choice costs."""
        each = 1e6 * MODELS[name].law.per_expert / MODELS[name].layers
        pairs = zip(self.values(name, batch, ratio, one), self.values(name, batch, ratio, other), strict=True)
        return interval([each * (b - a) for a, b in pairs])

    def times(self, name: str, batch: int, ratio: float, choice: str, exchange: float = LEAST) -> list[float]:
        """Return a step's time by seed; a choice that is not free pays an exchange on each layer. Seconds."""
        ours = MODELS[name]
        cost = 0.0 if choice in _FREE else ours.layers * exchange
        return [ours.law.seconds(batch, one) + cost for one in self.values(name, batch, ratio, choice)]

    def slower(  # noqa: PLR0917 - a cell, two choices, and what one of them costs
        self, name: str, batch: int, ratio: float, one: str, other: str, exchange: float = LEAST
    ) -> Interval:
        """Return the change of a step's time, percent."""
        both = (self.times(name, batch, ratio, choice, exchange) for choice in (one, other))
        return changes(*both)

    def served(self, name: str, ratio: float, one: str, other: str) -> Interval:
        """Return by how much more requests one choice serves within the same time of a step, at most: percent."""
        more = []
        for at in range(len(self.seeds)):
            ours, theirs = (
                np.maximum.accumulate([self.times(name, batch, ratio, choice)[at] for batch in BATCHES])
                for choice in (one, other)
            )
            limits = np.linspace(theirs[0], min(ours[-1], theirs[-1]), 200)
            batches = [np.interp(limits, times, BATCHES) for times in (ours, theirs)]
            more.append(float(100 * (batches[0] / batches[1] - 1).max()))
        return interval(more)
