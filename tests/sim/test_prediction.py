"""The pool simulator against what it simulates: the real router, engines that take the time of every step, and the router's own log."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

from eldr import centroids
from eldr.cli import main
from eldr.core.step_time import QWEN3_30B_MI300X, StepTime
from eldr.fit.pipeline import FitSettings, fit
from eldr.sim import traces
from eldr.simulate.drafts import NO_DRAFTS, Drafts
from eldr.simulate.workload import Window
from eldr_demo import load as demo
from eldr_demo.arrivals import Poisson
from eldr_demo.simulated import replay
from eldr_demo.telemetry import Sampler
from tests.support.captured import calibration
from tests.support.processes import engine, wait_for
from tests.support.router import Router, router

pytestmark = [pytest.mark.timeout(300), pytest.mark.process]

KINDS = ("fr", "ru", "manual", "legal")
POLICIES = "JSQ", "ELDR", "MarginalUnion"
N_ENGINES, SPEED, TOKENS = 4, 5.0, 48
RATES = {NO_DRAFTS: 14.0, Drafts(1, 0.85): 20.0}
"""Requests per second, so that batches are about as large with drafts as without."""
SETTLE, MEASURE = 7.0, 14.0
ATTEMPTS = 5
BUSY = 1.1  # times the step-time model, 1.00 where nothing else runs: on a machine that is slower, or stands still, a phase is measured again
ARRIVALS = 6  # seed of a draw that is even throughout, so that its rate says how many are there
STEP_TIME = QWEN3_30B_MI300X.for_experts(64).scaled(SPEED)
CLEAR = 0.07  # times that differ by less have no order: each is the mean of one window of seconds, a draw by itself


@dataclass(frozen=True)
class Phase:
    """What a policy did; seconds since the first arrival. ``slowness``: its steps took so many times what the step-time model says."""

    arrival: np.ndarray
    window: Window
    active: float
    tpot: float
    slowness: float

    @property
    def measured(self) -> np.ndarray:
        return (self.arrival >= self.window.warmup) & (self.arrival < self.window.end)


@dataclass(frozen=True)
class Live:
    """A run of the real router."""

    phases: Mapping[str, Phase]
    log: Path
    drafts: Drafts


@pytest.fixture(scope="module", params=RATES, ids=["no drafts", "one draft"])
def live(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Live:
    """Every policy under the same arrivals of the same requests, logged."""
    return served(tmp_path_factory.mktemp("live"), request.param)


def served(folder: Path, drafts: Drafts) -> Live:
    """Serve each policy; skip the test where no attempt at a phase kept the time."""
    fitted = fit(calibration(traces.load(), KINDS), FitSettings(k=N_ENGINES, model="m"), now=0.0)
    (folder / "set.eldr").write_bytes(centroids.dump(fitted.centroids))
    with contextlib.ExitStack() as stack:
        speed = ("--speed", str(SPEED))
        engines = {f"p{n}": stack.enter_context(engine("prefill", *speed)).url for n in range(2)}
        speed += ("--drafts", str(drafts.tokens), "--accepted", str(drafts.accepted))
        engines |= {f"d{n}": stack.enter_context(engine("decode", *speed)).url for n in range(N_ENGINES)}
        options = ("--centroids", str(folder / "set.eldr"))
        process = stack.enter_context(router(folder, engines, *options, policy="JSQ", sample_rate=1.0))
        phases = asyncio.run(serve(process, engines, drafts))
    if phases.keys() != {*POLICIES}:
        pytest.skip("other programs keep this machine too busy to measure anything")
    return Live(phases, folder / "log", drafts)


async def serve(process: Router, engines: Mapping[str, str], drafts: Drafts) -> dict[str, Phase]:
    records = traces.load().split(KINDS)[1]
    spans: dict[str, Span] = {}
    async with traffic(process, engines, RATES[drafts]) as (load, sampler):
        for policy in POLICIES:
            process.configure(engines, policy=policy)
            await asyncio.to_thread(wait_for, lambda p=policy: process.state()["policy"] == p, policy)
            for attempt in range(ATTEMPTS):
                load.switch(demo.Workload(f"{policy} {attempt}", replay(records), logged=True))
                span = await measured(sampler, f"{policy} {attempt}", drafts.slowed(STEP_TIME))
                if span.slowness < BUSY:
                    spans[policy] = span
                    break
    assert [outcome.error for outcome in load.outcomes if outcome.error] == []
    answered = len(load.outcomes)
    await asyncio.to_thread(wait_for, lambda: process.state()["samples"] == answered, "all to be logged")
    return {policy: phase_of(span, load.outcomes) for policy, span in spans.items()}


@contextlib.asynccontextmanager
async def traffic(
    process: Router, engines: Mapping[str, str], rate: float
) -> AsyncIterator[tuple[demo.Load, Sampler]]:
    load = demo.Load(lambda: [process.url], "m", Poisson(rate, seed=ARRIVALS), TOKENS)
    sampler = Sampler(lambda: [url for name, url in engines.items() if name[0] == "d"])
    load.switch(demo.Workload("before", replay(traces.load().split(KINDS)[1]), logged=True))
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(load.run(stop)), group.create_task(sampler.run(stop))]
        try:
            yield load, sampler
        finally:
            stop.set()
            await asyncio.wait(tasks)


class Span(NamedTuple):
    """When a phase was measured, on the loop's clock, and what its steps told."""

    name: str
    begun: float
    ended: float
    active: float
    slowness: float


async def measured(sampler: Sampler, name: str, step_time: StepTime) -> Span:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(SETTLE)
    begun = loop.time()
    await asyncio.sleep(MEASURE)
    ended = loop.time()
    inside = [sample for sample in sampler.samples if begun <= sample[0] <= ended]
    (first, before), (last, after) = inside[0], inside[-1]
    seen = after - before
    # engines are never idle at this rate
    slowness = N_ENGINES * (last - first) / (seen.steps * step_time.seconds(seen.batch, seen.active_experts))
    return Span(name, begun, ended, seen.experts_per_token, slowness)


def phase_of(span: Span, outcomes: Sequence[demo.Outcome]) -> Phase:
    mine = sorted((o for o in outcomes if o.phase == span.name), key=lambda o: o.number)
    first = mine[0].started
    return Phase(
        np.array([o.started - first for o in mine]),
        Window(span.begun - first, span.ended - first, 0.0),
        span.active,
        float(np.mean([o.tpot for o in mine if o.first_token >= span.begun and o.ended <= span.ended])),
        span.slowness,
    )


def same_order(live: Live, simulated: Mapping[str, float]) -> None:
    """Times that differ clearly differ alike."""
    for one in POLICIES:
        for other in POLICIES:
            if simulated[one] < simulated[other] * (1 - CLEAR):
                assert live.phases[one].tpot < live.phases[other].tpot, f"{one} is faster than {other}"


def predicted(live: Live, policy: str) -> Mapping[str, float]:
    """Ask the command about a phase: its rate, and the step-time model at the speed that the machine had then."""
    phase = live.phases[policy]
    options = {
        "--log": live.log,
        "--engines": N_ENGINES,
        "--rate": phase.measured.sum() / (phase.window.end - phase.window.warmup),
        "--step-time": ",".join(
            str(phase.slowness * one)
            for one in (STEP_TIME.fixed * 1e3, STEP_TIME.per_expert * 1e6, STEP_TIME.per_request * 1e6)
        ),
        "--drafts": live.drafts.tokens,
        "--accepted": live.drafts.accepted,
        "--seconds": 60,
        "--policy": policy,
        "--json": "-",
    }
    done = CliRunner().invoke(main, ["simulate", *(str(part) for pair in options.items() for part in pair)])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["policies"][-1]


@pytest.mark.long
@pytest.mark.alone
def test_the_routers_log_predicts_what_policies_do(live):
    found = {policy: predicted(live, policy) for policy in POLICIES}
    active = {policy: row["active_per_token"] for policy, row in found.items()}
    assert active == pytest.approx({policy: phase.active for policy, phase in live.phases.items()}, rel=0.05)
    assert active["MarginalUnion"] < 0.95 * active["JSQ"], "there is something to predict"
    same_order(live, {policy: row["tpot_mean"] for policy, row in found.items()})
