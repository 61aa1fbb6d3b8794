"""Engines and ranks that cannot count serve all the same, and say why."""

import pytest
import torch

from eldr.engine import worker as worker_half
from eldr.engine.counting import Counting
from eldr.engine.orders import Orders
from eldr.engine.worker import Worker
from tests.engine.fakes import LAYERS, Capture, Slots
from tests.engine.halves import GROUP, TOP_K, config, output, sent, worker_of

ONE = torch.zeros(1, LAYERS, TOP_K, dtype=torch.int32)
"""A token's experts."""


@pytest.mark.parametrize("prompts", [True, False])
def test_after_a_step_whose_slots_are_unknown_nothing_is_counted_any_more(halves, prompts):
    at = halves(prompts=prompts)
    for slots in (None, torch.tensor([4])):
        at.worker.begin(sent(at.half.orders(output(new=[("a", 0, 1)], blocks={"a": [1]}))))
        Slots.slots, Capture.ids = slots, ONE
        assert at.worker.finish().hidden == "a step did not report where its tokens are in the KV cache"


@pytest.mark.parametrize(("prompts", "mib"), [(True, "12.0"), (False, "24.0")])
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate")]
)
def test_an_engine_without_memory_for_the_table_serves_and_says_why(engine, monkeypatch, prompts, mib, error):
    def full(*_, **__):
        raise error

    for name in ("zeros", "empty"):
        monkeypatch.setattr(torch, name, full)
    worker = Worker(config(), GROUP, n_blocks=2**20, prompts=prompts, reports=True)
    for slots in (torch.tensor([4]), None):
        worker.begin(sent(Orders(step=1)))
        Slots.slots = slots
        hidden = worker.finish().hidden
        assert hidden.startswith(f"no memory for the table: {mib} MiB; ")
        assert str(error) in hidden


@pytest.mark.parametrize("said", [["", "no memory for the table"], ["", ""]])
@pytest.mark.parametrize("own_fails", [False, True])
def test_ranks_count_together_or_not_at_all(engine, monkeypatch, said, own_fails):
    """A rank that waits for what another does not know of would wait for ever."""
    shared, asked = [], []
    monkeypatch.setattr(Capture, "share", lambda _: shared.append(True))
    monkeypatch.setattr(worker_half, "union_group", lambda _: "group")
    monkeypatch.setattr(worker_half, "gather", lambda own, group: asked.append(group) or [own, *said[1:]])
    worker, counting = None, Counting("activations")
    if own_fails:
        counting.stop("it could not be made")
    else:
        worker = worker_of(prompts=False, counting=counting)
    worker_half.agree(config(), counting, worker)
    asked.remove("group")
    assert not asked, "once: the other rank waits for it"
    if worker is None:
        assert counting.stopped
        return
    worker.begin(sent(Orders(step=1, requests=1, answers=True)))
    Slots.slots, Capture.ids = torch.tensor([4]), ONE
    assert worker.finish().hidden == said[1]
    assert shared == [True] * (not said[1])


def test_a_rank_whose_slots_are_unknown_has_no_requests_for_the_others(engine, monkeypatch):
    begun, ended = [], []
    monkeypatch.setattr(Capture, "begin", lambda _, requests=0: begun.append(requests))
    monkeypatch.setattr(Capture, "end", lambda _: ended.append(True))
    worker = worker_of(prompts=False)
    for step, slots in ((1, None), (2, torch.tensor([4]))):
        worker.begin(sent(Orders(step=step, requests=3)))
        Slots.slots, Capture.ids = slots, ONE
        assert worker.finish().hidden
    assert (begun, ended) == ([3], [True, True]), "it tells of no step any more"


def test_a_rank_that_does_not_report_counts_nothing(engine):
    for prompts in (True, False):
        assert worker_of(prompts=prompts, reports=False).finish() is None
