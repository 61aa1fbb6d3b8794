"""What a session measures first: how fast the machine is, how long steps take, and what routers know of them beforehand."""

from __future__ import annotations

import hashlib
import statistics
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from eldr.core.step_time_fit import Window
from eldr_lab.steps.engines import Engine
from eldr_lab.steps.law import mean_window
from eldr_lab.steps.traffic import Traffic

_FIRST = 25
_EVERY = 6
_LATEST = 3
_DRAWS = 3
_STEPS = 12
_SIZES = (1 / 3, 2 / 3, 1.0, 4 / 3, 5 / 3)
"""Of batches, as shares of the wanted one."""


class Pace:
    """Turns seconds on a machine whose speed changes into seconds at one speed.

    Parameters
    ----------
    reference : callable
        Does work that is always the same, and returns the seconds that it took.
    usual : float, optional
        Seconds that it takes at the speed at which times are told; None: what it takes at first.
    """

    def __init__(self, reference: Callable[[], float], usual: float | None = None) -> None:
        self._reference = reference
        for _ in range(3):  # the first ones fill caches
            reference()
        self.usual = usual or statistics.median(reference() for _ in range(_FIRST))
        self._latest = deque([self.usual] * _LATEST, maxlen=_LATEST)
        self._asked = 0
        self.factors: list[float] = []
        """Times as slow as usual, over the run."""

    def __call__(self, seconds: float) -> float:
        """Return what they would have been at the usual speed."""
        if self._asked % _EVERY == 0:
            self._latest.append(self._reference())
            self.factors.append(statistics.median(self._latest) / self.usual)
        self._asked += 1
        return seconds / self.factors[-1]


class Start(NamedTuple):
    """What all traces begin with; those of a later session, too.

    Attributes
    ----------
    usual : float
        Seconds of the reference step at the speed at which times are told.
    step : float
        Seconds of a step with the wanted batch.
    known : list of Window
        What a router that has seen such engines before knows of their steps.
    traffic : str
        Digest of what the requests did when they ran alone.
    """

    usual: float
    step: float
    known: list[Window]
    traffic: str

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return self._asdict() | {"known": [list(window) for window in self.known]}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Start:
        """Return it from JSON."""
        return cls(**told | {"known": [Window(*window) for window in told["known"]]})


def begin(engine: Engine, traffic: Traffic, batch: int, pace: Pace, seed: int) -> Start:
    """Run batches of all kinds of requests, smaller and larger than the wanted one, on a fork of an engine."""
    rng = np.random.default_rng(seed)
    known = []
    with engine.forks(1) as (fork,):
        for number, size in enumerate(_DRAWS * [max(2, round(share * batch)) for share in _SIZES]):
            for at, record in enumerate(rng.choice(len(traffic.prompts), size, replace=False).tolist()):
                fork.add(f"{number}-{at}", traffic.prompts[record], _STEPS, at)
            steps = [fork.step() for _ in range(_STEPS)]
            known.append(
                mean_window(
                    [pace(step.seconds) for step in steps],
                    [step.active for step in steps],
                    [step.rows for step in steps],
                )
            )
    step = statistics.median(window.seconds for window in known if window.batch == batch)
    return Start(pace.usual, step, known, digest(traffic))


def digest(traffic: Traffic) -> str:
    """Return a digest of what its requests did."""
    made_of = hashlib.sha256()
    population = traffic.population
    for part in (
        traffic.calibration.prefill,
        traffic.calibration.decode,
        population.prefill,
        population.steps,
    ):
        made_of.update(np.ascontiguousarray(part).tobytes())
    return made_of.hexdigest()[:12]
