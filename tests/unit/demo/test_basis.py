"""A phase of the demo fails where most decisions did not rest on what its policy names."""

import io
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console

from eldr_demo import basis
from eldr_demo.plan import Measure
from eldr_demo.run import Demo
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
            candidates=1,
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
        (ELDR, [(9, "JSQ", "no_centroids", None)], "few placements rest on similarity: 9 by JSQ: no_centroids"),
        (ELDR, [(5, "JSQ", "no_signature", None), (4, "ELDR", "similarity", 0.9)], "few placements"),
        (UNION, [(9, "JSQ", "no_signature", None), (1, "MarginalUnion", "union", None)], "few placements rest on union"),
        (UNION, [], "few placements rest on union: none"),
        (PRIOR, [(5, "MarginalUnion", "union", None), (4, "MarginalUnion", "union", 0.8)],
         "a similarity to centroids was known for 4 of 9 placements"),
    ],
)  # fmt: skip
def test_a_phase_that_rests_on_something_else_fails(step, placed, told):
    with pytest.raises(RuntimeError, match=f"{step.policy}, .*: {told}"):
        basis.check(step, basis.parse(page(*placed)))


@pytest.mark.parametrize(
    ("placed", "shown"), [((3, "JSQ", "policy", None), 1), ((3, "JSQ", "whole", None), 0)]
)
async def test_a_phase_is_shown_only_if_it_rests_on_its_policy(monkeypatch, placed, shown):
    told = iter(
        [
            basis.parse(page((4, "ELDR", "similarity", 0.9))),
            basis.parse(page((4, "ELDR", "similarity", 0.9), placed)),
        ]
    )

    async def read(urls):
        assert urls == ["http://admin"]
        return next(told)

    async def get(kind):
        return {"status": {}}

    monkeypatch.setattr(basis, "read", read)
    engines = SimpleNamespace(
        settings=SimpleNamespace(settle=0.0, measure=0.0), workload=lambda *told, logged: None
    )
    demo = Demo(SimpleNamespace(get=get), engines, Console(file=io.StringIO()))
    demo._policy, demo._admins, demo.load = (
        "JSQ",
        ["http://admin"],
        SimpleNamespace(switch=lambda workload: None),
    )
    with nullcontext() if shown else pytest.raises(RuntimeError, match="few placements rest on policy"):
        await demo._measure(NONE)
    assert len(demo.phases) == shown
