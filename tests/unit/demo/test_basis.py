"""A phase of the demo fails where most decisions did not rest on what its policy names."""

import time
from types import SimpleNamespace

import pytest

from eldr_demo import basis
from eldr_demo.plan import Measure
from eldr_router.engines.registry import Registry
from eldr_router.telemetry.metrics import Metrics

NONE, UNION, ELDR, PRIOR = (
    Measure("JSQ", "first"), Measure("MarginalUnion", "first", "none yet"),
    Measure("ELDR", "first", "fitted"), Measure("MarginalUnion", "second", "stale"),
)  # fmt: skip


def page(*placed) -> str:
    """Return what a router tells after placements: how many, by which policy and reason, and their similarity."""
    metrics = Metrics(Registry(time.monotonic))
    for times, policy, reason, similarity in placed:
        one = SimpleNamespace(
            policy=policy,
            reason=reason,
            similarity=similarity,
            n_candidates=1,
            endpoint=SimpleNamespace(name="d0"),
        )
        for _ in range(times):
            metrics.place(one)
    return metrics.exposition().decode()


@pytest.mark.parametrize(
    ("step", "placed"),
    [
        (NONE, [(9, "JSQ", "policy", None)]),
        (UNION, [(9, "MarginalUnion", "union", None), (2, "MarginalUnion", "no_signature", None)]),
        (ELDR, [(9, "ELDR", "similarity", 0.9), (1, "JSQ", "zero_vector", None)]),
        (PRIOR, [(9, "MarginalUnion", "union", 0.8)]),
    ],
)
def test_a_phase_that_rests_on_its_policy_passes(step, placed):
    basis.check(step, basis.parse(page(*placed)))


@pytest.mark.parametrize(
    ("step", "placed", "told"),
    [
        (NONE, [(9, "MarginalUnion", "union", None)], "few placements rest on policy: 9 by MarginalUnion: union"),

        (ELDR, [(5, "JSQ", "no_signature", None), (4, "ELDR", "similarity", 0.9)], "few placements"),

        (UNION, [], "few placements rest on union: none"),
        (PRIOR, [(5, "MarginalUnion", "union", None), (4, "MarginalUnion", "union", 0.8)],
         "a similarity to centroids was known for 4 of 9 placements"),
    ],
)  # fmt: skip
def test_a_phase_that_rests_on_something_else_fails(step, placed, told):
    with pytest.raises(RuntimeError, match=f"{step.policy}, .*: {told}"):
        basis.check(step, basis.parse(page(*placed)))
