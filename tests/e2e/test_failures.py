"""Kill -9 under traffic, on the real control plane."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from eldr import contract
from eldr_demo.arrivals import Poisson
from eldr_demo.load import Outcome
from tests.e2e.conftest import System, kill, process, traffic
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]


async def disturbed(system: System, event: Callable[[], None]) -> list[Outcome]:
    """Send requests, let something happen amid them, send on until all is Ready again."""
    async with traffic(system, Poisson(15.0), logged=True) as load:
        while len(load.outcomes) < 20 or load.in_flight < 8:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(event)
        after = len(load.outcomes)
        while len(load.outcomes) < after + 60:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(wait_for, system.ready, "EldrDeployment Ready again", 120.0)
    return load.outcomes


def streams(system: System, address: str) -> int:
    """Return how many requests routers have at an engine."""
    engines = [engine for state in system.states() for engine in state["decode"]]
    return sum(engine["in_flight"] for engine in engines if f"//{address}:" in engine["url"])


async def test_a_killed_decode_engine_costs_only_the_streams_it_had_started(system: System):
    victim = system.addresses(contract.ROLE_DECODE)[1]

    def event() -> None:
        wait_for(lambda: streams(system, victim) >= 3, "the engine to have streams")
        kill(victim, "decode")

    outcomes = await disturbed(system, event)
    errors = [outcome.error for outcome in outcomes if outcome.error]
    assert errors, "the killed engine had streams"
    assert all(error.startswith("error event") for error in errors), errors
    assert len(errors) < len(outcomes) / 3
    wait_for(system.idle, "in-flight counts back to zero")


async def test_a_killed_router_costs_only_its_own_streams(system: System):
    victim = system.addresses(contract.ROLE_PREFILL)[0]
    outcomes = await disturbed(system, lambda: kill(victim, "router"))
    errors = [outcome.error for outcome in outcomes if outcome.error]
    assert errors, "the killed router had streams"
    assert not any("wrong tokens" in error for error in errors), errors
    assert len(errors) < len(outcomes) / 2
    wait_for(system.idle, "in-flight counts back to zero")


@pytest.mark.costly
async def test_a_stopped_router_costs_nothing_but_its_own_streams(system: System):
    """SIGSTOP: Kubernetes calls it NotReady, the others serve on, and what it does when it goes on harms nobody."""
    victim = system.addresses(contract.ROLE_PREFILL)[0]
    stopped = process(victim, "router")
    assert stopped is not None

    async with traffic(system, Poisson(15.0), logged=True) as load:
        while len(load.outcomes) < 20:
            await asyncio.sleep(0.05)
        os.kill(stopped, signal.SIGSTOP)
        try:
            await asyncio.to_thread(wait_for, lambda: len(system.routers()) == 1, "it to be NotReady", 90)
            begun = len(load.outcomes) + load.in_flight
            while len(load.outcomes) < begun + 60:
                await asyncio.sleep(0.05)
            alone = load.outcomes[begun:]
        finally:
            os.kill(stopped, signal.SIGCONT)
        await asyncio.to_thread(wait_for, lambda: len(system.routers()) == 2, "both to be Ready", 90)
        await asyncio.to_thread(wait_for, system.ready, "EldrDeployment Ready again", 120.0)
    assert not [outcome.error for outcome in alone if outcome.error]
    errors = [outcome.error for outcome in load.outcomes if outcome.error]
    assert not any("wrong tokens" in error for error in errors), errors
    assert len(errors) < len(load.outcomes) / 3
    wait_for(system.idle, "in-flight counts back to zero")


async def test_a_killed_prefill_engine_costs_no_wrong_token(system: System):
    victim = system.addresses(contract.ROLE_PREFILL)[1]
    outcomes = await disturbed(system, lambda: kill(victim, "prefill"))
    errors = [outcome.error for outcome in outcomes if outcome.error]
    assert errors == [], "prefill is retried elsewhere, pulled blocks are not needed any more"
    wait_for(system.idle, "in-flight counts back to zero")
