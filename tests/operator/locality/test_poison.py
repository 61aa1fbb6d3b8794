"""Logs that lie, or are one client's: real records, real fits, a real API server; the set that serves well goes on serving."""

from __future__ import annotations

import numpy as np
import pytest

from eldr.siglog import Record, pack_counts
from tests.operator.real_fits import OTHER, USUAL, detected, history, verdict
from tests.operator.world import FIT

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]
WRONG = "layers that do not sum to tokens x top-k"


def forged(record: Record) -> Record:
    """Return it with all tokens at the same few experts of one layer: what one would write who wants to be alone there."""
    counts = np.zeros((record.n_layers, record.n_experts), np.uint32)
    counts[0, : record.top_k] = record.prompt_tokens
    return with_fields(record, prefill=pack_counts(counts))


def with_fields(record: Record, **fields):
    return type(record)(**{name: getattr(record, name) for name in record.__struct_fields__} | fields)


def test_records_with_wrong_counts_are_left_out_and_told(world, served):
    one = world.router
    one.spoil = lambda number, record: forged(record) if number % 5 else record
    one.meet(4000)
    one.mix = ()  # the log stands still
    wrong = sum(record.prefill == forged(record).prefill for record in one.records)
    assert wrong > len(one.records) / 2
    world.fit("poisoned")
    report = served("poisoned").finish()
    assert report["skipped"] == {WRONG: wrong}
    assert report["samples"] == len(one.records) - wrong
    assert verdict(world, "poisoned")["reason"] == "Rejected", report["message"]
    assert history(world) == [("x-bootstrap", "Accepted")]
    assert world.active() == "x-bootstrap"


@pytest.mark.costly
def test_a_regime_of_wrong_counts_has_too_few_records_for_a_fit(world, served):
    one = world.router
    one.spoil = lambda number, record: forged(record) if number % 50 else record
    one.mix = OTHER
    detected(world, status="True", reason="Fitting")
    served("x-drift-1").finish()
    found = verdict(world, "x-drift-1")
    assert found["reason"] == "Failed"
    assert "TooFewSamples" in found["message"]
    assert WRONG in found["message"]
    assert history(world) == [("x-bootstrap", "Accepted")]
    detected(world, status="True", reason="CoolDown")


@pytest.mark.costly
@pytest.mark.parametrize("prompts", [1, 30])
def test_what_was_fitted_to_one_clients_flood_goes_with_it(world, served, prompts):
    """Three quarters of all requests are of one client, who asks the same all the time, or one kind of thing."""
    one = world.router
    client = USUAL[-prompts:]
    one.requests, one.mix = 300, [*USUAL, *client * (3 * len(USUAL) // prompts)]
    detected(world, status="True", reason="Fitting")
    report = served("x-drift-1").finish()
    assert report["verdict"] == "Accepted", report["message"]
    assert report["baseline"]["before"]["requests"] > 300
    world.until_active("x-drift-1")
    detected(world, status="False", reason="Quiet")
    one.mix = USUAL
    world.until(lambda: world.active() == "x-bootstrap", "the set before", 120)
    assert history(world) == [
        ("x-bootstrap", "Accepted"),
        ("x-drift-1", "Accepted"),
        ("x-bootstrap", "RolledBack"),
    ]
    detected(world, status="False", reason="Quiet")
    assert [fit["metadata"]["name"] for fit in world.kube.list(FIT)] == ["x-bootstrap", "x-drift-1"]
