"""Whether a world under one policy did what its row in a table says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from eldr_bench.proof import Unproven, require
from eldr_lab.pool.contenders import Contender
from eldr_lab.pool.witness import FEWEST, UNION, Witness, prove_basis
from eldr_lab.steps.machine import N_EXPERTS, TOP_K
from eldr_lab.steps.world import Request, World


def prove(
    contender: Contender,
    witness: Witness,
    world: World,
    trace: Sequence[Request],
    *,
    numbers: Sequence[int],
    n_layers: int,
    in_flight: int | None,
) -> str:
    """Return what every decision of a world rested on.

    Parameters
    ----------
    contender : Contender
        The policy that its row names.
    witness : Witness
    world : World
        At its end.
    trace : sequence of Request
    numbers : sequence of int
        The requests that count.
    n_layers : int
    in_flight : int or None
        How many it had to hold in flight.

    Raises
    ------
    Unproven
        If it did something else than its row names.
    """
    name, served, basis = contender.text, world.served, prove_basis(contender, witness, routers=1)
    decisions = witness.reasons.total()
    require(decisions == len(served), f"{name}: {decisions} decisions placed {len(served)} requests")
    # unions alone may agree with load throughout; centroids that never matter are none
    differs = {FEWEST: witness.unlike == 0, UNION: True}.get(basis, witness.unlike > 0)
    require(differs, f"{name}: JSQ would have made {witness.unlike} decisions otherwise")
    require(world.learned, f"{name}: the step-time model of the router is none that it learned")
    _answered(name, world, trace, numbers, held=in_flight is not None)
    for step in world.steps:
        least, most = TOP_K, min(N_EXPERTS, TOP_K * step.batch)
        require(
            step.layers == n_layers and least <= step.active <= most,
            f"{name}: a step of {step.batch} told of {step.active:g} experts in {step.layers} layers",
        )
    if in_flight:
        held = _in_flight(world, numbers)
        require(held == {in_flight}, f"{name}: {held} in flight, not {in_flight}")
    return basis


def _answered(
    name: str, world: World, trace: Sequence[Request], numbers: Sequence[int], *, held: bool
) -> None:
    for number in numbers:
        one, asked = world.served.get(number), trace[number]
        if one is None or math.isnan(one.last):
            raise Unproven(f"{name}: request {number} was not answered")
        require(
            one.tokens == asked.tokens,
            f"{name}: request {number} got {one.tokens} tokens of {asked.tokens}",
        )
        require(held or one.at == asked.at, f"{name}: request {number} came at another time")


def _in_flight(world: World, numbers: Sequence[int]) -> set[int]:
    """Return how many were in flight whenever one of these requests came."""
    ends = np.sort([one.last for one in world.served.values() if not math.isnan(one.last)])
    starts = np.sort([one.at for one in world.served.values()])
    times = np.array([world.served[number].at for number in numbers])
    return set((np.searchsorted(starts, times, "right") - np.searchsorted(ends, times, "right")).tolist())
