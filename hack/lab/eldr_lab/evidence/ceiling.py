"""How much any placement could bring: the best schedule found by a search that knows what no router can know.

It knows all arrivals, the true activations of every request, and how long each stays. Simulated annealing over the engines of
all requests lowers the time of the steps that tokens see; the schedule is then replayed in the simulator, like a policy. The
search is local, so that the true optimum is at least as good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.core.policy import Choice, Situation
from eldr.core.signature import Floats
from eldr.core.step_time import StepTime
from eldr.simulate.population import Ints
from eldr.simulate.workload import Workload
from eldr_bench.proof import require
from eldr_lab.pool.witness import answered
from eldr_lab.synthetic.measures import Measures
from eldr_lab.synthetic.population import Population
from eldr_lab.synthetic.run import Pool, Run, simulate
from eldr_lab.synthetic.study import Load

_SLOT = 1.0
"""Seconds that the search takes for one: engines change little within them."""
_TEMPERATURES = (1e-2, 5e-3, 3e-3, 2e-3, 1e-3, 0.0, 0.0)
"""Of each sweep over all requests, in mean steps."""
_ROUNDS = 2
"""Searches, each with the times that the schedule before it had."""
_LEAST_LOG = -7.0
"""An expert that a request uses nearly always: its part in a union must be divided out again."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A policy that sends each request to the engine that a schedule says.

    Attributes
    ----------
    schedule : sequence of int
        Engines, in the order in which requests are placed.
    """

    schedule: Sequence[int]
    name: str = "Clairvoyant"

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:  # noqa: ARG002
        """Return the engine that the schedule names."""
        return Choice(self.schedule[situation.turn], 1)


def best_schedule(pool: Pool, population: Population, load: Load, start: Run, *, seed: int) -> Measures:
    """Search from a policy's run on, and return what the best schedule measures when it is replayed.

    Parameters
    ----------
    pool : Pool
    population : Population
    load : Load
    start : Run
        Of the policy that the search begins with; it is never worse than that in the mean.
    seed : int
    """
    rng = np.random.default_rng([seed, 21])
    best = run = start
    for _ in range(_ROUNDS):
        schedule = _Search(pool.step_times, population, load.workload, run).found(rng)
        policy = Replayed(schedule.tolist())
        run = simulate(pool, population, load.workload, load.window, policy, seed=seed)
        prove(policy, load.workload, run)
        best = min(best, run, key=lambda one: one.measures.tpot_mean)
    return best.measures


def prove(policy: Replayed, workload: Workload, run: Run) -> None:
    """End the program unless every request that was placed is where the schedule has it, and all measured ones were answered."""
    elsewhere = int(((run.worker >= 0) & (run.worker != np.array(policy.schedule))).sum())
    require(not elsewhere, f"{policy.name}: {elsewhere} requests are elsewhere than in the schedule")
    answered(policy.name, workload, run)


class _Search:
    """Engines in slots of time: who is in each batch, and which experts it leaves alone."""

    def __init__(
        self, laws: Sequence[StepTime], population: Population, workload: Workload, run: Run
    ) -> None:
        self._laws = [
            np.array([getattr(law, name) for law in laws])[:, None]
            for name in ("fixed", "per_expert", "per_request")
        ]
        self._n_layers = population.n_layers
        self._engine = run.worker.copy()
        self._placed = np.flatnonzero(run.worker >= 0)
        stays = float(np.nanmean(run.end - workload.ready))
        end = np.where(np.isnan(run.end), workload.ready + stays, run.end)
        self._from = np.floor(workload.ready / _SLOT).astype(np.int64)
        self._to = np.maximum(np.ceil(end / _SLOT).astype(np.int64), self._from + 1)
        self._logs = population.logs
        self._record = workload.record
        n_slots = int(self._to[self._placed].max())
        self._survival: Floats = np.ones((len(laws), n_slots, population.logs.shape[1]), dtype=np.float32)
        self._batch = np.zeros((len(laws), n_slots))
        self._active = np.zeros((len(laws), n_slots))

    def found(self, rng: np.random.Generator) -> Ints:
        """Return an engine for each request; those that the run did not place go anywhere."""
        for temperature in _TEMPERATURES:
            self._count()
            self._sweep(temperature * self._step(), rng)
        schedule = self._engine
        schedule[schedule < 0] = rng.integers(0, len(self._batch), int((schedule < 0).sum()))
        return schedule

    def _left_alone(self, request: np.int64) -> Floats:
        """Return the logarithms of how likely a request leaves each expert alone, shape (cells,)."""
        logs: Floats = np.maximum(self._logs[self._record[request]], _LEAST_LOG)
        return logs

    def _count(self) -> None:
        """Add up who is where: what sweeps multiply and divide collects rounding errors."""
        self._survival[:] = 0.0
        self._batch[:] = 0.0
        for request in self._placed:
            at = self._engine[request], slice(self._from[request], self._to[request])
            self._survival[at] += self._left_alone(request)
            self._batch[at] += 1.0
        np.exp(self._survival, out=self._survival)
        n_cells = self._survival.shape[2]
        self._active = (n_cells - self._survival.sum(axis=2, dtype=np.float64)) / self._n_layers

    def _step(self) -> float:
        """Return the time of the steps that tokens see, mean, seconds."""
        fixed, per_expert, per_request = self._laws
        seconds = fixed + per_expert * self._active + per_request * self._batch
        return float((self._batch * seconds).sum() / self._batch.sum())

    def _sweep(self, temperature: float, rng: np.random.Generator) -> None:
        """Take every request out once, in any order, and put it where it costs all others and itself least."""
        for request in rng.permutation(self._placed):
            stay = slice(self._from[request], self._to[request])
            logs = self._left_alone(request)
            alone = np.exp(logs)
            here = self._engine[request]
            self._survival[here, stay] /= alone
            self._batch[here, stay] -= 1.0
            added = self._survival[:, stay] @ (1.0 - alone) / self._n_layers
            self._active[here, stay] -= added[here]
            cost = self._cost(stay, added)
            if temperature:
                cost += temperature * rng.gumbel(size=len(cost))
            there = int(cost.argmin())
            self._survival[there, stay] *= alone
            self._batch[there, stay] += 1.0
            self._active[there, stay] += added[there]
            self._engine[request] = there

    def _cost(self, stay: slice, added: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """Return what a request more costs each engine's tokens, its own included, mean over its slots, seconds.

        The growth of ``B T(B, A)`` when B grows by one and A by what is added.
        """
        fixed, per_expert, per_request = self._laws
        batch, active = self._batch[:, stay], self._active[:, stay]
        growth = per_expert * added + per_request
        own = fixed + per_expert * (active + added) + per_request * (batch + 1.0)
        cost: npt.NDArray[np.float64] = (own + batch * growth).mean(axis=1)
        return cost
