"""One run: a workload, a policy, a pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eldr.core.policy import Policy
from eldr.core.signature import Floats
from eldr.core.step_time import StepTime
from eldr.simulate import run
from eldr.simulate.drafts import NO_DRAFTS, Drafts
from eldr.simulate.engine import Engine, Limits
from eldr.simulate.workload import Window, Workload
from eldr_lab.synthetic.active import active_experts
from eldr_lab.synthetic.measures import Measures, Tally
from eldr_lab.synthetic.population import Population
from eldr_lab.synthetic.routers import Exchange, InTurn, Knowledge, Router


@dataclass(frozen=True, slots=True)
class Pool:
    """Decode engines.

    Attributes
    ----------
    step_times : tuple of StepTime
        One per engine.
    sampled : bool
        Whether the active experts are those of single steps, or expected ones.
    """

    step_times: tuple[StepTime, ...]
    limits: Limits
    sampled: bool
    drafts: Drafts = NO_DRAFTS


@dataclass(frozen=True, slots=True, eq=False)
class Run(run.Run):
    """What happened."""

    measures: Measures


def simulate(
    pool: Pool,
    population: Population,
    workload: Workload,
    window: Window,
    policy: Policy,
    *,
    similarity: Floats | None = None,
    unions: bool = False,
    learns: bool = False,
    seed: int = 0,
) -> Run:
    """Simulate one router before a pool until every measured request has ended.

    Parameters
    ----------
    similarity : ndarray of float32, shape (n_records, n_engines), optional
        For policies that look at centroids.
    unions : bool
        Whether the policy looks at expected unions.
    learns : bool
        Whether the router learns the policy's prior while it places.
    seed : int
        Of the policy's own choices.
    """
    router = Router("r0", policy, Knowledge(population, pool.step_times, similarity, unions, learns), seed)
    fed = pool.drafts.fed(population)  # of which routers know single tokens
    if pool.sampled and fed is not population:
        raise ValueError("drafts: their single steps are not known; use expected unions")
    engines = [
        Engine(step_time, pool.limits, active_experts(fed, sampled=pool.sampled))
        for step_time in pool.step_times
    ]
    return serve(engines, [router], workload, window)


def serve(
    engines: Sequence[Engine],
    routers: Sequence[Router],
    workload: Workload,
    window: Window,
    exchange: Exchange | None = None,
) -> Run:
    """Let routers, in turn, send a workload to engines until every measured request has ended."""
    tally = Tally(window)
    ran = run.serve(engines, InTurn(routers, exchange), workload, tally)
    measures = tally.measures(workload, ran.first, ran.end)
    return Run(measures, ran.engine, ran.first, ran.end)
