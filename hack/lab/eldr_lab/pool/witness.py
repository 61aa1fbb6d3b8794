"""What every decision of a run rested on, and whether that is what the policy's name says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from eldr import contract
from eldr.core.balancers import JSQ
from eldr.core.band import BandJSQ
from eldr.core.marginal import MarginalUnion
from eldr.core.policy import Choice, Policy, Situation, within
from eldr.core.step_time import StepTime
from eldr.simulate.workload import Workload
from eldr_bench.proof import require
from eldr_lab.pool.contenders import Contender
from eldr_lab.synthetic.run import Run

FEWEST, BAND, UNION, PRIOR = "fewest in flight", "band", "union", "union and prior"
_RULES = {"JSQ": FEWEST, contract.POLICY_ELDR: BAND}
_JSQ = JSQ()
_SAME = 1e-3
"""Costs that differ by a smaller share differ by nothing."""
_SHARED = 2.0
"""Requests per step and router from which on unions must decide otherwise than JSQ."""


class Witness:
    """A policy that counts why it chose what it chose.

    Parameters
    ----------
    policy : Policy
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name = policy.name
        self.reasons: Counter[str] = Counter()
        self.unlike = 0
        """Decisions that JSQ would have made otherwise."""

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose as the policy does."""
        choice = self._policy.choose(situation, rng)
        self.reasons[reason(self._policy, situation, choice.position)] += 1
        self.unlike += choice.position != _JSQ.choose(situation, rng).position
        return choice


def reason(policy: Policy, situation: Situation, chosen: int) -> str:
    """Return what speaks for a choice by the policy's own rule, or what it lacks.

    Balancers are known by their names alone; their rules have tests in the product.
    """
    match policy:
        case JSQ():
            loads = situation.in_flight
            return FEWEST if loads[chosen] == min(loads) else "not the fewest in flight"
        case BandJSQ():
            return _band(policy, situation, chosen)
        case MarginalUnion():
            return _union(policy, situation, chosen)
        case _:
            return policy.name


def _band(policy: BandJSQ, situation: Situation, chosen: int) -> str:
    scores = situation.similarity
    if scores is None or math.isnan(sum(scores)):
        return "no similarity"
    allowed = within(situation, policy.max_load) if policy.max_load < math.inf else range(len(scores))
    known = sorted((scores[at] for at in allowed), reverse=True)
    floor = min(known[0] - policy.tau, known[min(policy.min_candidates, len(known)) - 1])
    return BAND if chosen in allowed and scores[chosen] >= floor else "outside of the band"


def _union(policy: MarginalUnion, situation: Situation, chosen: int) -> str:
    if situation.outlook is None:
        return "no outlook"
    costs = policy.costs(situation)
    allowed = within(situation, policy.max_load)
    least = min(costs[at] for at in allowed)
    if chosen not in allowed or not costs[chosen] <= least + _SAME * abs(least):
        return "not the cheapest"
    return PRIOR if policy.prior and situation.similarity is not None else UNION


def wanted(contender: Contender) -> str:
    """Return what every decision of a policy has to rest on."""
    if contender.unions:
        return PRIOR if contender.centroids or contender.learns else UNION
    return _RULES.get(contender.base.name, contender.base.name)


def prove_basis(contender: Contender, witness: Witness, *, routers: int) -> str:
    """Return what every decision rested on; end the program if one rested on anything else.

    Raises
    ------
    Unproven
    """
    basis = wanted(contender)
    # a router that learns its prior knows nothing before its first request, or after it has lost it
    begun = contender.learns and witness.reasons[UNION] <= 2 * routers
    found = {*witness.reasons} - ({UNION} if begun else set())
    told = dict(witness.reasons)
    require(found == {basis}, f"{contender.text}: decisions rest on {told}, not on {basis}")
    return basis


def prove(contender: Contender, witness: Witness, laws: Sequence[StepTime], workload: Workload, run: Run, *, routers: int) -> None:  # fmt: skip
    """End the program unless a simulated run did what its policy's name says.

    Parameters
    ----------
    contender : Contender
    witness : Witness
        The policy that all routers ran.
    laws : sequence of StepTime
        What they knew of the engines.
    workload : Workload
    run : Run
    routers : int

    Raises
    ------
    Unproven
        If a decision rested on something else, if centroids or unions never mattered, or if a measured request was not answered.
    """
    name, basis = contender.text, prove_basis(contender, witness, routers=routers)
    answered(name, workload, run)
    decisions, placed = witness.reasons.total(), int((run.engine >= 0).sum())
    require(decisions == placed, f"{name}: {decisions} decisions placed {placed} requests")
    costs = any(law.per_expert for law in laws)
    shared = run.measures.batch >= _SHARED * routers
    # a band of everybody is JSQ, and so are unions where experts cost nothing or hardly two requests meet
    differs = {
        BAND: dict(contender.base.options).get("tau", 0.0) < 1.0,
        PRIOR: costs,
        UNION: costs and shared and not contender.blind,
    }
    require(witness.unlike > 0 or not differs.get(basis), f"{name}: JSQ would have made no decision otherwise")  # fmt: skip
    require(basis != FEWEST or witness.unlike == 0, f"{name}: JSQ would have made {witness.unlike} decisions otherwise")  # fmt: skip


def answered(name: str, workload: Workload, run: Run) -> None:
    """End the program unless every measured request was placed and got its last token after its first."""
    measured = workload.measured
    whole = (run.engine >= 0) & (run.first >= workload.ready) & (run.end >= run.first)
    left = int((measured & ~whole).sum())
    require(not left, f"{name}: {left} of {int(measured.sum())} measured requests were not answered")
    require(run.measures.requests == measured.sum(), f"{name}: {run.measures.requests} of {int(measured.sum())} measured requests count")  # fmt: skip
