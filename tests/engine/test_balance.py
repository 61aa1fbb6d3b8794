"""METRO's choice in torch and in Triton (interpreted) against the host's, table for table."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from eldr.engine.balance import choose_torch, choose_triton
from eldr.engine.balance.packing import activation_weights, spread
from eldr.engine.capture.kernels import active_of
from tests.support.metro import Placement, exact
from tests.support.metro.baselines import active_set, pack

FORMS = [choose_torch.choose, choose_triton.choose]
GEOMETRIES = [(64, 96, 2), (128, 144, 8), (128, 192, 8), (256, 288, 8), (60, 72, 12), (40, 80, 5)]


def tokens(rng, n_experts, batch):
    logit = -0.8 * np.log(np.arange(1, n_experts + 1))
    return np.argsort(-(logit + rng.gumbel(size=(batch, n_experts))), axis=1)[:, :4]


def case(seed):
    """A step on a placement by tokens, by activation, or by chance."""
    rng = np.random.default_rng(seed)
    n_experts, n_physical, ranks = GEOMETRIES[seed % len(GEOMETRIES)]
    sums = np.bincount(tokens(rng, n_experts, 300).ravel(), minlength=n_experts)
    where = (
        pack(sums, n_physical, ranks),
        spread(activation_weights(sums, 10), n_physical, ranks),
        rng.permutation(np.r_[np.arange(n_experts), rng.integers(0, n_experts, n_physical - n_experts)]),
    )[seed // len(GEOMETRIES) % 3]
    batch = int(rng.choice([4, 16, 64]))
    return active_set(tokens(rng, n_experts, batch), n_experts), Placement(where, n_experts, ranks)


def run(form, active, placement, width=None):
    """Call a form on maps as vLLM has them: more columns than replicas, and -1 or what an earlier map left behind."""
    table, count = placement.maps()
    wide = np.full((len(table), width or table.shape[1] + 3), -1)
    wide[:, : table.shape[1]] = table
    behind = np.arange(wide.shape[1]) >= count[:, None]
    wide[behind & (np.arange(wide.shape[1]) % 2 == 0)] = 0
    before = wide.copy()
    maps = torch.from_numpy(wide), torch.from_numpy(count)
    chosen = form(torch.from_numpy(active), *maps, placement.per_rank, placement.ranks)
    assert (maps[0].numpy() == before).all()
    assert chosen.dtype == torch.int64
    return chosen.numpy()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(36))
def test_every_form_gives_the_table_of_the_host(form, seed):
    active, placement = case(seed)
    expected = placement.physical_ids(exact(active, placement).rank_of)
    assert (run(form, active, placement) == expected).all()


@pytest.mark.parametrize("form", FORMS)
def test_relief_paths_of_several_edges_are_the_same(form):
    """Chains of experts that two neighbours hold: what greedy fills at one end leaves only at the other."""
    walked = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        ranks = 6
        held = [[r, r + 1] for r in range(ranks - 1) for _ in range(3)]
        rows = [[e for e, holders in enumerate(held) if r in holders] for r in range(ranks)]
        fixed = rng.integers(0, 4, ranks)
        n_experts = len(held)
        for r, n in enumerate(fixed):
            rows[r] += range(n_experts, n_experts + n)
            n_experts += int(n)
        slots = max(map(len, rows))
        placement = Placement(
            np.array([row + [-1] * (slots - len(row)) for row in rows]).ravel(), n_experts, ranks
        )
        active = rng.random(n_experts) < 0.8
        chosen = exact(active, placement)
        walked += (chosen.rank_of != placement.home)[active].sum()
        assert (run(form, active, placement) == placement.physical_ids(chosen.rank_of)).all()
    assert walked


@pytest.mark.parametrize("form", FORMS)
def test_the_columns_of_vllm_and_int32_maps_make_no_difference(form):
    active, placement = case(1)
    expected = run(form, active, placement)
    assert (run(form, active, placement, width=1024) == expected).all()
    table, count = placement.maps()
    maps = torch.from_numpy(table).to(torch.int32), torch.from_numpy(count).to(torch.int32)
    chosen = form(torch.from_numpy(active), *maps, placement.per_rank, placement.ranks)
    assert (chosen.numpy() == expected).all()


@pytest.mark.parametrize("form", FORMS)
def test_without_a_choice_there_is_none(form):
    placement = Placement(np.arange(12), 12, 4)
    assert run(form, np.ones(12, dtype=bool), placement).tolist() == list(range(12))
    one = Placement([0, 1, 0, 2], 3, 1)
    assert run(form, np.ones(3, dtype=bool), one).tolist() == [0, 1, 3]
    twice = Placement([1, 0, 0, 2], 3, 2)  # expert 0 on both
    assert run(form, np.zeros(3, dtype=bool), twice).tolist() == [1, 0, 3]


@pytest.mark.parametrize("form", FORMS)
def test_an_expert_without_a_replica_gets_none(form):
    table = torch.tensor([[0, -1], [2, 3], [1, -1]])
    chosen = form(torch.ones(3, dtype=torch.bool), table, torch.tensor([1, 2, 0]), 2, 2)
    assert chosen.tolist() == [0, 2, -1]


@pytest.mark.parametrize("seed", range(18))
def test_as_many_rounds_as_there_are_redundant_experts_are_enough(seed):
    """On an accelerator their number must not depend on data; those that find nothing to relieve change nothing."""
    active, placement = case(seed)
    maps = (torch.from_numpy(array) for array in placement.maps())
    physical = choose_torch.lowest_ids(*maps, placement.per_rank, placement.ranks)
    state = choose_torch._place(torch.from_numpy(active), physical, placement.per_rank)
    for _ in range(len(placement.physical_to_logical) - placement.n_experts):
        state.relieve()
    assert (state.rank_of.numpy() == exact(active, placement).rank_of).all()


def test_torchs_form_asks_a_gpu_for_no_value_and_has_static_shapes():
    """Fake tensors have neither values nor shapes that depend on them."""
    with FakeTensorMode():
        active = torch.ones(64, dtype=torch.bool, device="cuda")
        table = torch.zeros(64, 1024, dtype=torch.int64, device="cuda")
        chosen = choose_torch.choose(active, table, table[:, 0], 9, 8)
        assert chosen.shape == (64,)
        assert active_of(chosen, 72).shape == (72,)
        with pytest.raises(DataDependentOutputException):
            bool(active.any())


def test_more_ranks_than_bits_are_refused():
    with pytest.raises(ValueError, match="ranks: 33"):
        choose_triton.choose(torch.ones(33).bool(), torch.arange(33)[:, None], torch.ones(33).int(), 1, 33)


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from eldr.engine.balance import choose_triton

arguments = {"active": "*u8", "logical_to_physical": "*i64", "replica_count": "*i64", "chosen": "*i64"}
numbers = dict.fromkeys(["row", "columns", "n_experts", "per_rank", "ranks"], "i32")
sizes = {"padded_experts": 256, "padded_ranks": 8}
source = ASTSource(
    fn=choose_triton._choose,
    signature=arguments | numbers | dict.fromkeys(sizes, "constexpr"),
    constexprs=sizes,
)
for target in (GPUTarget("hip", "gfx942", 64), GPUTarget("cuda", 90, 32)):
    print(target.arch, len(compile(source, target=target, options={"num_warps": 1}).kernel) > 0)
"""


def test_the_kernel_compiles_for_gpus():
    """What the interpreter takes, a compiler may not; it needs no GPU."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["gfx942", "True", "90", "True"]
