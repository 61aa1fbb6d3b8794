"""The experts of a step over ranks that have requests of their own."""

import torch

from eldr.engine.union import GroupUnion
from tests.engine.fakes import Ranks, on_all

EXPERTS, LAYERS = 12, (3, 5, 8)


def test_every_rank_sees_what_all_have_and_forgets_the_step_before():
    """The second rank has no requests: nobody tells it that a step begins."""
    group = Ranks(3)
    found = [GroupUnion(LAYERS, EXPERTS, group.add(rank), torch.device("cpu")) for rank in range(3)]
    generator = torch.Generator().manual_seed(1)
    for step in range(3):
        # a rank without requests runs a dummy token; padding is -1
        ids = [
            torch.randint(-1, EXPERTS, (tokens, len(LAYERS), 2), generator=generator)
            for tokens in (4, 1, step)
        ]

        def run(rank, union, ids=ids):
            if rank != 1:
                union.begin(rank + 2)
                assert not union.counts.any()
            for row, layer in enumerate(LAYERS):
                union.take(layer, ids[rank][:, row])
            union.end()
            return union.counts.tolist(), int(union.requests)

        every = torch.cat(ids)
        wanted = [
            len({e for e in every[:, row].reshape(-1).tolist() if e >= 0}) for row in range(len(LAYERS))
        ]
        assert on_all(found, run) == [(wanted, 2 + 4)] * 3
