"""What the choice of replicas brought, from the worker through the scheduler to Prometheus."""

import numpy as np
import pytest
import torch

from eldr import contract
from eldr.engine import metrics
from eldr.engine.messages import StepReport
from tests.engine.fakes import Prometheus
from tests.engine.halves import output, route, sent, worker_of

FIGURES = torch.tensor([[3, 5, 6, 8], [4, 7, 5, 10]], dtype=torch.int32)


class Chosen:
    """In place of ``Balance``: a test says what a step brought."""

    def __init__(self):
        self.figures = torch.zeros_like(FIGURES)

    def begin(self):
        self.figures.zero_()


@pytest.fixture
def chosen():
    return Chosen()


@pytest.fixture
def at(halves, chosen):
    """Return both halves of a decode engine whose ranks choose replicas."""
    found = halves(prompts=False)
    found.worker = worker_of(prompts=False, balance=chosen)
    found.add("a", 6, [4, 2, 8], kv={"do_remote_prefill": True})
    return found


def step(at, chosen, figures=FIGURES):
    """Run a step; return its report."""
    orders = at.half.orders(output((), [("a", 6, 1)], at.blocks))
    at.worker.begin(sent(orders))
    route((), [("a", 6, 1)], at.blocks)
    assert not chosen.figures.any(), "of the step before"
    chosen.figures.copy_(figures)
    report = at.worker.finish()
    chosen.figures.fill_(99)  # the next step's; a report has its own
    return report and sent(report)


def test_figures_of_a_step_reach_prometheus(at, chosen):
    at.half.update(step(at, chosen))
    at.half.update(step(at, chosen, torch.tensor([[0] * 4, [2, 4, 6, 8]])))
    at.half.update(step(at, chosen, torch.zeros_like(FIGURES)))  # vLLM's choice was kept
    stats = at.half.stats()
    assert stats.data["balance"] == [[3.5, 6.0, 5.5, 9.0], [2.0, 4.0, 6.0, 8.0]]
    prometheus = Prometheus()
    prometheus.observe(stats.to_dict())

    def seen(name, choice):
        return [prometheus.seen(f"{name}_{kind}", choice=choice) for kind in ("sum", "count")]

    assert seen(contract.METRIC_FULLEST_RANK, "balanced") == [5.5, 2]
    assert seen(contract.METRIC_FULLEST_RANK, "vllm") == [11.5, 2]
    assert seen(contract.METRIC_RANKS, "balanced") == [10.0, 2]
    assert seen(contract.METRIC_RANKS, "vllm") == [17.0, 2]


def test_a_rank_that_does_not_report_says_nothing_of_it(at, chosen):
    at.worker = worker_of(prompts=False, balance=chosen, reports=False)
    assert step(at, chosen) is None


def test_without_a_choice_nothing_is_said(at, chosen):
    at.worker = worker_of(prompts=False)
    at.half.update(step(at, chosen))
    assert not at.half.stats().data["balance"]


def test_two_reports_add_up():
    ours, theirs = metrics.EngineStats(), metrics.EngineStats()
    ours.add_balance(FIGURES.numpy())
    theirs.add_balance(FIGURES.numpy())
    together = ours.take().aggregate(theirs.take())
    assert len(together.data["balance"]) == 2
    assert ours.take() is None


def test_a_report_on_its_way_holds_arrays_and_no_tensors(at, chosen):
    report = step(at, chosen)
    assert isinstance(report, StepReport)
    assert {type(value) for value in report._figures.values()} == {np.ndarray}
    assert report.figures()["balance"].tolist() == FIGURES.tolist()
