"""What the choice of replicas brought, from the worker through the scheduler to Prometheus; and that trouble ends the engine."""

import pickle
from collections import deque
from types import SimpleNamespace

import pytest
import torch

from eldr import contract
from eldr.engine import metrics
from eldr.engine import worker as worker_half
from eldr.engine.capture.cache import CacheGroup
from eldr.engine.counting import Counting
from eldr.engine.errors import RanksDisagreeError
from eldr.engine.messages import StepReport
from eldr.engine.orders import Orders
from eldr.engine.scheduler import Scheduler, _Step
from eldr.engine.worker import Worker
from tests.engine.fakes import LAYERS, Capture, Prometheus, Slots

FIGURES = torch.tensor([[3, 5, 6, 8], [4, 7, 5, 10]], dtype=torch.int32)


class Chosen:
    """In place of ``Balance``: a test says what a step brought."""

    def __init__(self):
        self.figures = torch.zeros_like(FIGURES)
        self.trouble = torch.zeros((), dtype=torch.bool)

    def begin(self):
        self.figures.zero_()


@pytest.fixture
def chosen():
    return Chosen()


@pytest.fixture
def worker(monkeypatch, chosen):
    monkeypatch.setattr(worker_half, "RoutingCapture", Capture)
    monkeypatch.setattr(worker_half, "StepSlots", Slots)
    Capture.ids = torch.zeros(1, LAYERS, 2, dtype=torch.int32)
    Slots.slots = torch.tensor([-1])
    config = SimpleNamespace(
        model_config=SimpleNamespace(get_num_experts=lambda: 16),
        scheduler_config=SimpleNamespace(max_num_seqs=2),
        parallel_config=SimpleNamespace(data_parallel_size=1),
    )
    group = CacheGroup(0, "layer", 4)
    return lambda **given: Worker(
        config, group, n_blocks=4, prompts=False, **{"reports": True, "balance": chosen, **given}
    )


@pytest.fixture
def scheduler():
    half = Scheduler.__new__(Scheduler)
    half._counting = Counting("activations")
    half._stats, half._ended, half._empty, half._experts = metrics.EngineStats(), {}, [], 16
    half._prompts, half._last_update, half._nothing = None, 0.0, None
    half._begun = deque(_Step(1, 0.0, 1, 1, 1) for _ in range(3))
    return half


def step(worker, chosen, figures=FIGURES, *, trouble=False):
    worker.begin(Orders(step=1, answers=True))
    assert not chosen.figures.any(), "of the step before"
    chosen.figures.copy_(figures)
    chosen.trouble.fill_(trouble)
    report = worker.finish()
    chosen.figures.fill_(99)  # the next step's; a report has its own
    return report and pickle.loads(pickle.dumps(report))


def test_figures_of_a_step_reach_prometheus(worker, chosen, scheduler):
    scheduler.update(step(worker(), chosen))
    scheduler.update(step(worker(), chosen, torch.tensor([[0] * 4, [2, 4, 6, 8]])))
    scheduler.update(step(worker(), chosen, torch.zeros_like(FIGURES)))  # vLLM's choice was kept
    stats = scheduler.stats()
    assert stats.data["balance"] == [[3.5, 6.0, 5.5, 9.0], [2.0, 4.0, 6.0, 8.0]]
    prometheus = Prometheus()
    prometheus.observe(stats.to_dict())

    def seen(name, choice):
        return [prometheus.seen(f"{name}_{kind}", choice=choice) for kind in ("sum", "count")]

    assert seen(contract.METRIC_FULLEST_RANK, "balanced") == [5.5, 2]
    assert seen(contract.METRIC_FULLEST_RANK, "vllm") == [11.5, 2]
    assert seen(contract.METRIC_RANKS, "balanced") == [10.0, 2]
    assert seen(contract.METRIC_RANKS, "vllm") == [17.0, 2]


def test_a_rank_that_does_not_report_says_nothing_of_it(worker, chosen):
    assert step(worker(reports=False), chosen) is None


def test_without_a_choice_nothing_is_said(worker, chosen, scheduler):
    scheduler.update(step(worker(balance=None), chosen))
    assert not scheduler.stats().data["balance"]


def test_a_step_in_which_ranks_disagreed_ends_the_engine_before_its_tokens_leave(worker, chosen, scheduler):
    report = step(worker(), chosen, trouble=True)
    with pytest.raises(RanksDisagreeError, match="the engine ends"):
        scheduler.update(report)


def test_a_worker_that_cannot_see_the_routing_still_tells_of_trouble(worker, chosen, scheduler, monkeypatch):
    blind = worker()
    blind._counting.stop("hidden")
    with pytest.raises(RanksDisagreeError):
        scheduler.update(step(blind, chosen, trouble=True))


def test_two_reports_add_up():
    ours, theirs = metrics.EngineStats(), metrics.EngineStats()
    ours.add_balance(FIGURES.numpy())
    theirs.add_balance(FIGURES.numpy())
    together = ours.take().aggregate(theirs.take())
    assert len(together.data["balance"]) == 2
    assert ours.take() is None


def test_a_report_on_its_way_holds_arrays_and_no_tensors(worker, chosen):
    report = step(worker(), chosen)
    assert isinstance(report, StepReport)
    found = report.balance()
    assert found.figures.tolist() == FIGURES.tolist()
    assert found.trouble is False
