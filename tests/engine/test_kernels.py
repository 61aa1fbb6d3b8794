"""Counting kernels: torch against plain Python, Triton (interpreted) against torch, bit for bit."""

import numpy as np
import pytest
import torch

from eldr.engine.capture import kernels, kernels_triton
from eldr.engine.capture.kernels import RequestRows
from tests.support.metro.baselines import active_set

BLOCKS, LAYERS = 12, 3
SHAPES = [(16, 20, 3), (32, 64, 4), (128, 128, 8), (255, 32, 1), (256, 16, 2)]


def step(seed, block_size, experts, top_k):
    """Return expert ids and slots of a step: runs of some blocks, with padding between and after them."""
    generator = torch.Generator().manual_seed(seed)

    def below(n):
        return int(torch.randint(n, (), generator=generator))

    slots = []
    for block in torch.randperm(BLOCKS, generator=generator)[:5].tolist():
        first = below(block_size) if below(2) else 0
        slots += [block * block_size + first + i for i in range(1 + below(min(40, block_size - first)))]
        slots += [-1] * below(2)
    slots += [-1] * below(4)
    tokens = len(slots)
    choice = torch.rand(tokens, LAYERS, experts, generator=generator).topk(top_k).indices
    # a layer that captured nothing, and ids that are no expert's
    choice[torch.rand(tokens, LAYERS, generator=generator) < 0.1] = kernels.NO_EXPERT
    choice[torch.rand(choice.shape, generator=generator) < 0.05] = experts
    return choice.to(torch.int32), torch.tensor(slots)


def known(ids, experts):
    return [expert for expert in ids.tolist() if 0 <= expert < experts]


def count_blocks_plainly(table, ids, slots, block_size):
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        if slot % block_size == 0:
            table[slot // block_size] = 0
        for layer in range(LAYERS):
            for expert in known(ids[token, layer], table.shape[2]):
                table[slot // block_size, layer, expert] += 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("block_size", "experts", "top_k"), SHAPES)
def test_blocks_are_counted_and_cleared_at_their_first_token(seed, block_size, experts, top_k):
    ids, slots = step(seed, block_size, experts, top_k)
    stale = torch.randint(0, 100, (BLOCKS + 1, LAYERS, experts), dtype=kernels.cell_type(block_size))
    plain, by_torch, by_triton = stale.clone(), stale.clone(), stale.clone()
    count_blocks_plainly(plain, ids, slots, block_size)
    kernels.count_blocks(by_torch, ids, slots, block_size)
    kernels_triton.count_blocks(by_triton, ids, slots, block_size)
    assert torch.equal(by_torch[:BLOCKS], plain[:BLOCKS])
    assert torch.equal(by_triton[:BLOCKS], plain[:BLOCKS])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("block_size", "experts", "top_k"), SHAPES)
def test_requests_are_counted_from_their_first_generated_token(seed, block_size, experts, top_k):
    ids, slots = step(seed, block_size, experts, top_k)
    generator = torch.Generator().manual_seed(seed)
    n_rows = 4

    def rows():
        return RequestRows(
            torch.zeros(n_rows + 1, LAYERS, experts, dtype=torch.int32),
            torch.tensor([*zip(owners, offsets, strict=True), (n_rows, 0)]),
            block_size,
        )

    owners = torch.randint(0, n_rows + 1, (BLOCKS,), generator=generator).tolist()
    offsets = torch.randint(0, block_size, (BLOCKS,), generator=generator).tolist()
    plain = torch.zeros(n_rows, LAYERS, experts, dtype=torch.int32)
    union = [set() for _ in range(LAYERS)]
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        for layer in range(LAYERS):
            union[layer].update(known(ids[token, layer], experts))
            block, offset = divmod(slot, block_size)
            if owners[block] < n_rows and offset >= offsets[block]:
                for expert in known(ids[token, layer], experts):
                    plain[owners[block], layer, expert] += 1
    for module in (kernels, kernels_triton):
        counted = rows()
        active = module.count_step(counted, ids, slots)
        assert torch.equal(counted.counts[:n_rows], plain), module.__name__
        assert active.tolist() == [len(used) for used in union], module.__name__


@pytest.mark.parametrize("module", [kernels, kernels_triton])
def test_a_step_of_nothing_but_padding_changes_nothing(module):
    ids, slots = torch.zeros(5, LAYERS, 2, dtype=torch.int32), torch.full((5,), -1)
    table = torch.ones(BLOCKS + 1, LAYERS, 8, dtype=torch.uint8)
    module.count_blocks(table, ids, slots, 16)
    assert (table[:BLOCKS] == 1).all()
    rows = RequestRows(
        torch.zeros(3, LAYERS, 8, dtype=torch.int32),
        kernels.unowned(BLOCKS, 0),
        16,
    )
    assert module.count_step(rows, ids, slots).tolist() == [0] * LAYERS
    assert not rows.counts[:2].any()


@pytest.mark.parametrize(("tokens", "size"), [(255, 1), (256, 2), (1056, 2)])
def test_a_full_block_does_not_overflow(tokens, size):
    """1056 tokens: a block of a model whose linear layers need large pages."""
    ids, slots = torch.zeros(tokens, LAYERS, 1, dtype=torch.int32), torch.arange(tokens)
    for module in (kernels, kernels_triton):
        table = torch.full((2, LAYERS, 4), 7, dtype=kernels.cell_type(tokens))
        assert table.itemsize == size
        module.count_blocks(table, ids, slots, tokens)
        assert table[0, :, 0].tolist() == [tokens] * LAYERS


def test_ids_name_the_same_experts_as_on_the_host():
    assert kernels.active_of(torch.tensor([[3, -1], [0, 4]]), 4).tolist() == [True, False, False, True]
    ids = np.random.default_rng(0).integers(-2, 150, (40, 4))
    for dtype in torch.int32, torch.int64:
        named = kernels.active_of(torch.from_numpy(ids).to(dtype), 144)
        assert named.tolist() == active_set(ids, 144).tolist()
