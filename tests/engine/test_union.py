"""The experts of a step over ranks that have requests of their own."""

import pytest
import torch

from eldr.engine.capture import union
from eldr.engine.capture.kernels import active_of
from eldr.engine.capture.union import FAILED, GroupUnion
from eldr.engine.counting import Counting
from tests.engine.fakes import Ranks, on_all

EXPERTS, LAYERS = 12, (3, 5, 8)


def test_every_rank_sees_what_all_have_and_forgets_the_step_before():
    """A rank without requests is told by nobody that a step begins; the first that has some tells of the step."""
    group = Ranks(3)
    found = [
        GroupUnion(
            LAYERS, EXPERTS, group.add(rank), torch.device("cpu"), Counting("a step"), rank=rank, ranks=3
        )
        for rank in range(3)
    ]
    generator = torch.Generator().manual_seed(1)
    for step, busy in enumerate([(0, 2), (0, 1, 2), (1, 2), (2,)]):
        # a rank without requests runs a dummy token; padding is -1
        ids = [
            torch.randint(-1, EXPERTS, (tokens, len(LAYERS), 2), generator=generator)
            for tokens in (4, 1, 1 + step)
        ]

        def run(rank, union, ids=ids, busy=busy):
            if rank in busy:
                union.begin(rank + 2)
                assert not union.counts.any()
            for row, layer in enumerate(LAYERS):
                union.take(layer, ids[rank][:, row])
            union.end()
            return union.counts.tolist(), int(union.requests), bool(union.tells)

        every = torch.cat(ids)
        wanted = [
            len({e for e in every[:, row].reshape(-1).tolist() if e >= 0}) for row in range(len(LAYERS))
        ]
        requests = sum(rank + 2 for rank in busy)
        assert on_all(found, run) == [(wanted, requests, rank == busy[0]) for rank in range(3)]


@pytest.mark.parametrize("where", ["in the forward pass", "elsewhere"])
def test_a_rank_that_fails_takes_part_and_all_know(monkeypatch, where):
    group, states = Ranks(2), [Counting(f"rank {rank}") for rank in range(2)]
    found = [
        GroupUnion(LAYERS, EXPERTS, group.add(rank), torch.device("cpu"), states[rank], rank=rank, ranks=2)
        for rank in range(2)
    ]
    ids = [torch.tensor([[0, 1]]), torch.tensor([[2, 3]])]

    def run(rank, one):
        one.begin(rank + 1)
        for layer in LAYERS:
            one.take(layer, ids[rank])
        one.end()
        return int(one.told())

    assert on_all(found, run) == [3, 0]
    if where == "elsewhere":
        states[1].stop("out of memory")
    else:
        monkeypatch.setattr(
            union, "active_of", lambda said, n: 1 / 0 if said is ids[1] else active_of(said, n)
        )
    for _ in range(2):
        assert on_all(found, run) == [FAILED, FAILED]
        monkeypatch.undo()  # once failed, it stays so
    assert not states[0].stopped
    assert states[1].stopped
