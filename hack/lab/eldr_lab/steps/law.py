"""What steps of a real engine say of the step-time model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.core.step_time_fit import Window, learn

Floats = npt.NDArray[np.float64]
_RESAMPLES = 1000
_TOGETHER = 10
_OUTLIER = 6.0  # median absolute deviations


class Row(NamedTuple):
    """A step.

    Attributes
    ----------
    plan : int
        The batch that it belongs to.
    kind : str
        What the batch's requests have in common.
    batch : int
        Requests.
    seconds : float
    active : float
        Distinct experts, mean over the layers.
    reference : float
        Seconds that a step that is always the same took at that time.
    """

    plan: int
    kind: str
    batch: int
    seconds: float
    active: float
    reference: float


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Steps of one engine; arrays have the shape (n_steps,).

    Attributes
    ----------
    seconds, batch, active : ndarray of float64
        Duration, requests, distinct experts (mean over the layers).
    plan : ndarray of int
        The batch that a step belongs to.
    kinds : list of str
        What each plan's requests had in common, by plan.
    """

    seconds: Floats
    batch: Floats
    active: Floats
    plan: npt.NDArray[np.intp]
    kinds: list[str]


@dataclass(frozen=True, slots=True)
class Law:
    """``seconds = constants @ (1, active, batch)``.

    Attributes
    ----------
    constants : tuple of float
        Fixed, per expert, per request; seconds.
    intervals : tuple of (float, float)
        95 %, by bootstrap over batches: steps of one batch are much alike.
    r2, r2_batch, r2_medians : float
        Share of the variance that the law explains, that batch alone explains, and that the law explains of the batches' medians.
    steps, left_out : int
    """

    constants: tuple[float, float, float]
    intervals: tuple[tuple[float, float], ...]
    r2: float
    r2_batch: float
    r2_medians: float
    steps: int
    left_out: int


def read(rows: Sequence[Row]) -> Steps:
    """Return steps as arrays, at the machine's median speed.

    A machine that others share changes its speed by two within parts of a second: steps are as long as they would have been at the
    median one, by what steps that are always the same took beside them.
    """
    references = np.array([row.reference for row in rows])
    names = {row.plan: row.kind for row in rows}
    order = sorted(names)
    return Steps(
        seconds=np.array([row.seconds for row in rows]) * np.median(references) / references,
        batch=np.array([row.batch for row in rows], dtype=np.float64),
        active=np.array([row.active for row in rows]),
        plan=np.array([order.index(row.plan) for row in rows]),
        kinds=[names[plan] for plan in order],
    )


def fit(steps: Steps, seed: int = 0) -> Law:
    """Fit the law by least squares, without the steps in which the machine did something else."""
    table = _table(steps.active, steps.batch)
    good = _usual(table, steps.seconds)
    table, seconds, plan = table[good], steps.seconds[good], steps.plan[good]
    constants = _solve(table, seconds)
    rng = np.random.default_rng(seed)
    of_plan = [np.flatnonzero(plan == which) for which in np.unique(plan)]
    drawn = []
    for _ in range(_RESAMPLES):
        picked = np.concatenate([of_plan[at] for at in rng.integers(0, len(of_plan), len(of_plan))])
        drawn.append(_solve(table[picked], seconds[picked]))
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    medians = np.array([[*np.median(table[part], axis=0), np.median(seconds[part])] for part in of_plan])
    return Law(
        constants=tuple(float(c) for c in constants),  # type: ignore[arg-type]  # three of them
        intervals=tuple((float(a), float(b)) for a, b in zip(low, high, strict=True)),
        r2=_explained(table, seconds),
        r2_batch=_explained(table[:, [0, 2]], seconds),
        r2_medians=_explained(medians[:, :3], medians[:, 3]),
        steps=int(good.sum()),
        left_out=int((~good).sum()),
    )


def as_routers_learn_it(steps: Steps, n_experts: int) -> tuple[float, float]:
    """Return what a router would learn that an expert costs, and its standard error.

    Routers see means over some seconds, as differences of an engine's sums; here over ten steps of one batch.
    """
    parts = [
        part
        for which in np.unique(steps.plan)
        for mine in [np.flatnonzero(steps.plan == which)]
        for part in np.array_split(mine, max(1, len(mine) // _TOGETHER))
    ]
    windows = [mean_window(steps.seconds[part], steps.active[part], steps.batch[part]) for part in parts]
    learned = learn({"engine": windows}, QWEN3_30B_MI300X.for_experts(n_experts))
    return learned.step_times["engine"].per_expert, learned.expert_error


def mean_window(
    seconds: Floats | Sequence[float], active: Floats | Sequence[float], batch: Floats | Sequence[float]
) -> Window:
    """Return what a router sees of some steps of one engine."""
    return Window(float(np.mean(seconds)), float(np.mean(active)), float(np.mean(batch)), len(seconds))


def medians(steps: Steps) -> dict[tuple[int, str], tuple[float, float]]:
    """Return active experts and seconds, medians by batch size and kind of batch."""
    names = np.array(steps.kinds)[steps.plan]
    found = {}
    for batch in np.unique(steps.batch):
        for kind in dict.fromkeys(sorted(steps.kinds)):
            mine = (steps.batch == batch) & (names == kind)
            if mine.any():
                found[int(batch), kind] = (
                    float(np.median(steps.active[mine])),
                    float(np.median(steps.seconds[mine])),
                )
    return found


def _table(active: Floats, batch: Floats) -> Floats:
    return np.column_stack([np.ones_like(active), active, batch])


def _usual(table: Floats, seconds: Floats) -> npt.NDArray[np.bool_]:
    left = seconds - table @ _solve(table, seconds)
    off = np.abs(left - np.median(left))
    usual: npt.NDArray[np.bool_] = off <= _OUTLIER * 1.4826 * np.median(off)
    return usual


def _solve(table: Floats, seconds: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(table, seconds, rcond=None)[0], dtype=np.float64)


def _explained(table: Floats, seconds: Floats) -> float:
    left = seconds - table @ _solve(table, seconds)
    return float(1.0 - left @ left / np.square(seconds - seconds.mean()).sum())
