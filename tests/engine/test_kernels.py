"""Counting kernels: torch against plain Python, Triton (interpreted) against torch, bit for bit."""

import numpy as np
import pytest
import torch

from eldr.engine.capture import kernels, kernels_triton
from tests.support.metro.baselines import active_set

BLOCKS, LAYERS = 12, 3
SHAPES = [(16, 20, 3), (32, 64, 4), (128, 128, 8), (255, 32, 1), (256, 16, 2)]


@pytest.fixture(params=[kernels, kernels_triton])
def module(request):
    return request.param


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


class Requests:
    """Requests that generate, each position's latest experts, and the rows that should hold the same.

    A step computes one to DRAFTS + 1 positions of a request, from the last one on that is known; which of them are accepted, chance
    decides. A later one may begin before that is known to the scheduler, but never before the device knows it.
    """

    DRAFTS, N = 2, 4
    WINDOW = 2 * (1 + DRAFTS)

    def __init__(self, module, block_size, experts, top_k, seed):
        self.module, self.block_size, self.experts, self.top_k = module, block_size, experts, top_k
        self.chance = np.random.default_rng(seed)
        self.rows = kernels.request_rows(
            *(self.N, BLOCKS),
            window=self.WINDOW,
            layers=LAYERS,
            experts=experts,
            top_k=top_k,
            block_size=block_size,
        )
        self.prompts = [int(n) for n in self.chance.integers(1, 2 * block_size, self.N)]
        self.computed = [n - 1 for n in self.prompts]
        self.latest = [{} for _ in range(self.N)]
        owned = zip(self.chance.permutation(BLOCKS).reshape(self.N, -1).tolist(), self.prompts, strict=True)
        self.blocks = []
        for row, (blocks, prompt) in enumerate(owned):
            self.blocks.append(blocks)
            for index in range(prompt // block_size, len(blocks)):
                self.rows.owner[blocks[index]] = torch.tensor([row, index * block_size, prompt])

    def slot(self, row, position):
        return self.blocks[row][position // self.block_size] * self.block_size + position % self.block_size

    def step(self):
        """Compute positions of some requests, with padding between them, and hold the active experts against the choices."""
        fed = []
        for row, computed in enumerate(self.computed):
            n = int(self.chance.integers(0, self.DRAFTS + 2))
            fed += [
                (row, p) for p in range(computed, min(computed + n, len(self.blocks[row]) * self.block_size))
            ]
            fed.append((row, None))
            if n:
                self.computed[row] = computed + 1 + int(self.chance.integers(0, n))
        ids = torch.from_numpy(
            self.chance.random((len(fed), LAYERS, self.experts))
            .argsort(-1)[..., : self.top_k]
            .astype(np.int32)
        )
        ids[torch.from_numpy(self.chance.random(ids.shape) < 0.05)] = self.experts  # no expert's
        slots = torch.tensor([-1 if position is None else self.slot(row, position) for row, position in fed])
        active = self.module.count_step(self.rows, ids, slots)
        real = ids[slots >= 0]
        for layer in range(LAYERS):
            assert active[layer] == len(set(known(real[:, layer].flatten(), self.experts)))
        for (row, position), chosen in zip(fed, ids, strict=True):
            if position is not None and position >= self.prompts[row]:
                self.latest[row][position] = chosen

    def room(self):
        return all(
            computed + self.DRAFTS < len(blocks) * self.block_size
            for computed, blocks in zip(self.computed, self.blocks, strict=True)
        )

    def check(self):
        """End all requests some positions before what was computed last."""
        last = [
            max(prompt, computed) - int(self.chance.integers(0, 2)) - 1
            for prompt, computed in zip(self.prompts, self.computed, strict=True)
        ]
        found = kernels.take_requests(self.rows, torch.arange(self.N), torch.tensor(last))
        for row in range(self.N):
            plain = torch.zeros(LAYERS, self.experts, dtype=torch.int32)
            for position, chosen in self.latest[row].items():
                for layer in range(LAYERS):
                    for expert in known(chosen[layer], self.experts) if position <= last[row] else ():
                        plain[layer, expert] += 1
            assert torch.equal(found[row], plain), (self.module.__name__, row)
        assert not self.rows.counts[: self.N].any()
        assert (self.rows.positions[: self.N] == -1).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("block_size", "experts", "top_k"), [(4, 20, 3), (16, 64, 4), (32, 128, 8), (16, 16, 1)]
)
def test_what_was_computed_last_at_a_position_counts_once(module, seed, block_size, experts, top_k):
    requests = Requests(module, block_size, experts, top_k, seed)
    for _ in range(20):
        if requests.room():
            requests.step()
    requests.check()


def test_a_step_of_nothing_but_padding_changes_nothing(module):
    ids, slots = torch.zeros(5, LAYERS, 2, dtype=torch.int32), torch.full((5,), -1)
    table = torch.ones(BLOCKS + 1, LAYERS, 8, dtype=torch.uint8)
    module.count_blocks(table, ids, slots, 16)
    assert (table[:BLOCKS] == 1).all()
    rows = kernels.request_rows(2, BLOCKS, window=2, layers=LAYERS, experts=8, top_k=2, block_size=16)
    assert module.count_step(rows, ids, slots).tolist() == [0] * LAYERS
    assert not rows.counts[:2].any()
    assert (rows.positions[:2] == -1).all()


@pytest.mark.parametrize(("tokens", "size"), [(255, 1), (256, 2), (1056, 2)])
def test_a_full_block_does_not_overflow(tokens, size):
    """1056 tokens: a block of a model whose linear layers need large pages."""
    ids, slots = torch.zeros(tokens, LAYERS, 1, dtype=torch.int32), torch.arange(tokens)
    for module in (kernels, kernels_triton):
        table = torch.full((2, LAYERS, 4), 7, dtype=kernels.cell_type(tokens))
        assert table.itemsize == size
        module.count_blocks(table, ids, slots, tokens)
        assert table[0, :, 0].tolist() == [tokens] * LAYERS


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("tokens", "experts", "top_k", "layers"), [
    (1, 12, 1, [0]), (40, 150, 4, [0, 1, 2]), (70, 96, 3, [0, 2]), (129, 33, 8, [1])
])  # fmt: skip
def test_ids_of_any_layers_name_the_same_experts_as_on_the_host(
    module, dtype, tokens, experts, top_k, layers
):
    ids = np.random.default_rng(tokens).integers(-2, experts + 2, (tokens, LAYERS, top_k))
    tail = torch.tensor([7, 8, 9, 10, 11], dtype=torch.int32)
    said = torch.full((len(layers) * experts + len(tail),), 5, dtype=torch.int32)
    numbers = torch.tensor(layers, dtype=torch.int32)
    module.flag_experts(said, torch.from_numpy(ids).to(dtype), numbers, tail)
    expected = [active_set(ids[:, layer], experts) for layer in layers]
    assert said[: -len(tail)].tolist() == np.concatenate(expected).astype(int).tolist()
    assert torch.equal(said[-len(tail) :], tail)
