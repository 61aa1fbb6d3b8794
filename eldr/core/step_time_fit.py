"""The step-time model of decode engines, learned from their reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.core.step_time import StepTime

Array = npt.NDArray[np.float64]

_ROUNDS = 5
_HUBER = 1.5  # standard deviations beyond which an observation pulls no harder
_LEAST_NOISE = 0.003  # of a step's time: telemetry is never better than that
_SHORTEST = 1e-6  # seconds; no step takes nothing
SPEED_LIMITS = 0.5, 2.0
"""Of an engine's time against the pool's: who is believed to be worse gets nothing to prove the contrary with."""
_DOUBT = 6
"""So many observations of the pool's own speed go with an engine's: a few slow steps, as after a start, say little."""
_MOST = 1e12
"""Sum of a report's numbers: squares of larger ones are not exact."""
_LEAST_CONTEXTS = 40
_SURE = 3.0
"""Observations, and standard errors by which what the term for context saves in held-out ones must lie above 0."""
_BELIEF = 0.3
"""Standard deviation of what is believed of each constant beforehand, as a share of a step: with more, noise alone drives the
cost of experts to zero in one pool of ten whose load hardly varies, and placement by experts ends there."""


class Window(NamedTuple):
    """Means over some consecutive steps of one engine.

    Attributes
    ----------
    seconds : float
        Duration of a step.
    active : float
        Distinct experts, mean over the layers.
    batch : float
        Requests.
    fed : float
        Tokens fed: more than requests where they draft. Fewer mean that none were reported.
    context : float
        Tokens of KV that the requests hold; 0 means that none were reported.
    drafted : float
        Experts of layers that draft, in the same unit as ``active``.
    """

    seconds: float
    active: float
    batch: float
    steps: int
    fed: float = 0.0
    context: float = 0.0
    drafted: float = 0.0


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned.

    Attributes
    ----------
    step_times : dict of str to StepTime
        By engine; all have the pool's proportions, and a speed of their own.
    pool : StepTime
        The step-time model of an engine of the pool's median speed.
    expert_error : float
        Standard error of ``pool.per_expert``, seconds; three tenths of a step's time while the data says nothing.
    noise : float
        Standard deviation of what the step-time model leaves over, as a share of a step's time.
    windows : int
        Observations used.
    context : float
        Tokens of KV that a request holds in the mean; 0 where none were reported.
    """

    step_times: Mapping[str, StepTime]
    pool: StepTime
    expert_error: float
    noise: float
    windows: int
    context: float = 0.0


class _Fit(NamedTuple):
    """Constants of the pool, the standard error of the second one, each engine's speed, and what is left over."""

    constants: Array
    error: float
    speeds: Array
    noise: float


def learn(windows: Mapping[str, Sequence[Window]], default: StepTime) -> Learned:
    """Fit the step-time model to observations of a pool.

    Parameters
    ----------
    windows : mapping of str to sequence of Window
        By engine; those without steps, with numbers that are none or with more experts than there are, are left out.
    default : StepTime
        What is believed beforehand, but for its scale: each constant give or take three tenths of a step. It decides what
        observations cannot distinguish.

    Notes
    -----
    One step-time model for all engines times a speed for each of them, at most twice as slow or as fast: what varies within a pool are
    accelerators and their neighbours, not the model. What a request takes follows the tokens that are fed for it.
    Experts of layers that draft take as long as any others, and count in ``fixed``. The step-time model is the maximum a posteriori of a linear model with Gaussian priors and Huber's loss, no constant
    below zero, by reweighted least squares; the median of the speeds is 1.

    Where all observations report the context, the model gains a term for it if that explains held-out observations significantly better:
    each half is looked at with what the other half teaches. Otherwise the cost of context stays in that of a request.
    """
    rows: list[Window] = []
    owners: list[int] = []
    names = list(windows)
    for owner, name in enumerate(names):
        good = [window for window in windows[name] if _is_good(window, default.n_experts)]
        rows += good
        owners += [owner] * len(good)
    if not rows:
        return Learned(dict.fromkeys(names, default), default, default.per_expert, math.inf, 0)
    fed = [max(window.fed, window.batch) for window in rows]
    table = np.array(
        [(1.0, window.active + window.drafted, tokens) for window, tokens in zip(rows, fed, strict=True)]
    )
    seconds = np.array([window.seconds for window in rows])
    whose = np.array(owners)
    before = np.array([default.fixed, default.per_expert, default.per_request])
    # the pool's own scale first: an accelerator twice as fast has all constants halved
    scale = float(np.median(seconds / (table @ before)))
    before = before * scale
    fit = _fit(table, seconds, whose, before, len(names))
    contexts = np.array([window.context for window in rows])
    if len(rows) >= _LEAST_CONTEXTS and contexts.min() > 0:
        wide, prior = np.column_stack((table, contexts)), np.append(before, default.per_token * scale)
        if _shows(table, wide, seconds, whose, prior, len(names)):
            fit = _fit(wide, seconds, whose, prior, len(names))
    if not (np.isfinite(fit.constants).all() and math.isfinite(fit.error)):
        return Learned(dict.fromkeys(names, default), default, default.per_expert, math.inf, 0)
    requests = math.fsum(window.steps * window.batch for window in rows)
    tokens = math.fsum(window.steps * n for window, n in zip(rows, fed, strict=True))
    held = math.fsum(window.steps * window.context for window in rows)
    fixed, per_expert, per_token_fed, *more = map(float, fit.constants)
    # a step takes these whichever engine a request is placed on
    fixed += per_expert * float(np.mean([window.drafted for window in rows]))
    per_request = per_token_fed * (tokens / requests if requests else 1.0)
    pool = StepTime(fixed, per_expert, per_request, default.n_experts, *more)
    step_times = {name: pool.scaled(float(speed)) for name, speed in zip(names, fit.speeds, strict=True)}
    context = held / requests if requests else 0.0
    return Learned(step_times, pool, fit.error, fit.noise, len(rows), context)


def _fit(table: Array, seconds: Array, whose: npt.NDArray[np.intp], before: Array, engines: int) -> _Fit:
    step_time: Array = before
    speeds = np.ones(engines)
    error, noise = before[1], math.inf
    for _ in range(_ROUNDS):
        expected: Array = np.maximum(table @ step_time, _SHORTEST)
        speeds = _speeds(seconds / expected, whose, engines)
        own = speeds[whose]
        left = seconds / own / expected - 1.0
        noise = max(_LEAST_NOISE, 1.4826 * float(np.median(np.abs(left))))
        weights = np.minimum(1.0, _HUBER / np.maximum(np.abs(left) / noise, 1e-12))
        step_time, error = _solve(table, seconds / own, weights / (noise * expected) ** 2, before)
    return _Fit(step_time, error, speeds, noise)


def _shows(  # noqa: PLR0917
    narrow: Array, wide: Array, seconds: Array, whose: npt.NDArray[np.intp], before: Array, engines: int
) -> bool:
    """Return whether the last column explains held-out observations significantly better."""
    gains: list[Array] = []
    odd = np.arange(len(seconds)) % 2 == 1
    for learned_from in (odd, ~odd):
        left = []
        for table in (narrow, wide):
            prior = before[: table.shape[1]]
            fit = _fit(table[learned_from], seconds[learned_from], whose[learned_from], prior, engines)
            expected = np.maximum(table @ fit.constants, _SHORTEST) * fit.speeds[whose]
            left.append(np.abs(seconds / expected - 1.0)[~learned_from])
        gains.append(left[0] - left[1])
    gain: Array = np.concatenate(gains)
    return bool(gain.mean() > _SURE * gain.std() / math.sqrt(len(gain)))


def _is_good(window: Window, n_experts: int) -> bool:
    return (
        window.steps > 0
        and window.seconds >= _SHORTEST
        and window.active <= n_experts
        and min(window) >= 0
        and sum(window) < _MOST  # nor are they infinite, or no numbers
    )


def _speeds(ratios: Array, whose: npt.NDArray[np.intp], engines: int) -> Array:
    """Return each engine's speed, its median ratio in doubt, the median of them being 1; 1 for one that reported nothing."""
    speeds = np.ones(engines)
    observed = np.unique(whose)
    medians = [np.median(ratios[whose == engine]) for engine in observed]
    middle = float(np.median(medians))
    for engine in observed:
        own = ratios[whose == engine] / middle
        speeds[engine] = np.median(np.append(own, np.ones(_DOUBT)))
    return np.clip(speeds, *SPEED_LIMITS)


def _solve(table: Array, seconds: Array, weights: Array, before: Array) -> tuple[Array, float]:
    """Return the constants, none below zero, and the standard error of the second one.

    The error is that of constants free to be of any sign: one that noise drove to zero is not known the better for it.
    """
    spread = np.average(seconds) / np.maximum(np.average(table, axis=0), _SHORTEST)
    scaled = table * spread  # in units of a whole step, so that the system is well conditioned
    system: Array = (scaled.T * weights) @ scaled + np.eye(len(before)) / _BELIEF**2
    right: Array = (scaled.T * weights) @ seconds + before / spread / _BELIEF**2
    error = math.sqrt(np.linalg.inv(system)[1, 1])
    step_time = np.zeros(len(before))
    free = np.ones(len(before), dtype=np.bool_)
    while free.any():
        step_time[:] = 0.0
        step_time[free] = np.linalg.solve(system[np.ix_(free, free)], right[free])
        negative = step_time < 0
        if not negative.any():
            break
        free &= ~negative
        step_time[negative] = 0.0
    return step_time * spread, float(error * spread[1])
