"""The experts of a step over ranks that have requests of their own."""

import torch

from eldr.engine.capture.union import GroupUnion
from tests.engine.fakes import Ranks, on_all

EXPERTS, LAYERS = 12, (3, 5, 8)


def test_every_rank_sees_what_all_have_and_forgets_the_step_before():
    """A rank without requests is told by nobody that a step begins; the first that has some tells of the step."""
    group = Ranks(3)
    found = [
        GroupUnion(LAYERS, EXPERTS, group.add(rank), torch.device("cpu"), rank=rank, ranks=3)
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
