"""METRO's choice on the host and in Triton (interpreted) against an independent one, table for table."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from eldr.engine.balance import choose_host, choose_triton
from eldr.engine.balance.choose_host import Layer
from eldr.engine.balance.packing import activation_weights, spread
from eldr.engine.figures import N_FIGURES
from tests.support.metro import Placement, exact
from tests.support.metro.baselines import active_set, pack

GEOMETRIES = [(64, 96, 2), (128, 144, 8), (128, 192, 8), (256, 288, 8), (60, 72, 12), (40, 80, 5)]


@pytest.fixture(params=[choose_host, choose_triton])
def form(request):
    return request.param


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


def layer_of(table, count, per_rank, ranks):
    """Return a layer of which nothing was decided yet; what a step leaves out must show."""
    return Layer(
        table,
        count,
        torch.arange(per_rank * ranks, dtype=torch.int32),
        torch.full((N_FIGURES,), -7, dtype=torch.int32),
        per_rank,
        ranks,
    )


def heard(used):
    """Return what all ranks say: how many of them use each place, and what does not count."""
    return torch.from_numpy(np.append(used, 7).astype(np.int32))


def run(form, active, placement, width=None, dtype=torch.int64):
    """Decide by a form on maps as vLLM has them: more columns than replicas, and -1 or what an earlier map left behind.

    Return the place that each expert's tokens go to, from whichever of its replicas.
    """
    table, count = placement.maps()
    wide = np.full((len(table), width or table.shape[1] + 3), -1)
    wide[:, : table.shape[1]] = table
    behind = np.arange(wide.shape[1]) >= count[:, None]
    wide[behind & (np.arange(wide.shape[1]) % 2 == 0)] = 0
    layer = layer_of(
        torch.from_numpy(wide).to(dtype),
        torch.from_numpy(count).to(dtype),
        placement.per_rank,
        placement.ranks,
    )
    before, where = layer.table.clone(), placement.physical_to_logical
    used = np.zeros(len(where), dtype=int)
    last = np.array([row[n - 1] for row, n in zip(table, count, strict=True)])
    used[last[active]] = 1  # by vLLM's choice, any replica
    form.decide(heard(used), layer)
    assert torch.equal(layer.table, before)
    places = layer.places.numpy()
    assert (places[where >= 0] == places[last][where[where >= 0]]).all()
    for begin, mine in ((0, places[last[active]]), (2, last[active])):
        loads = np.bincount(np.unique(mine) // placement.per_rank, minlength=1)
        assert layer.figures[begin : begin + 2].tolist() == [loads.max(), loads.sum()]
    return places[last]


@pytest.mark.parametrize("seed", range(36))
def test_every_form_gives_the_table_of_the_host(form, seed):
    active, placement = case(seed)
    expected = placement.physical_ids(exact(active, placement).rank_of)
    assert (run(form, active, placement) == expected).all()


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


def test_the_columns_of_vllm_and_int32_maps_make_no_difference(form):
    active, placement = case(1)
    expected = run(form, active, placement)
    assert (run(form, active, placement, width=1024) == expected).all()
    assert (run(form, active, placement, dtype=torch.int32) == expected).all()


def test_without_a_choice_there_is_none(form):
    placement = Placement(np.arange(12), 12, 4)
    assert run(form, np.ones(12, dtype=bool), placement).tolist() == list(range(12))
    one = Placement([0, 1, 0, 2], 3, 1)
    assert run(form, np.ones(3, dtype=bool), one).tolist() == [0, 1, 3]
    twice = Placement([1, 0, 0, 2], 3, 2)  # expert 0 on both
    assert run(form, np.zeros(3, dtype=bool), twice).tolist() == [1, 0, 3]


def test_a_place_that_no_map_names_stays(form):
    layer = layer_of(torch.tensor([[0, -1], [2, 3], [1, -1]]), torch.tensor([1, 2, 0]), 2, 2)
    form.decide(heard(np.ones(4)), layer)
    assert layer.places.tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("shape", [(1, 1), (3, 4), (64, 4), (71, 8)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_go_where_their_place_is_computed_and_padding_stays(form, shape, dtype):
    chance = np.random.default_rng(shape[0])
    places = torch.from_numpy(chance.permutation(40).astype(np.int32))
    ids = torch.from_numpy(chance.integers(-2, 40, shape)).to(dtype)
    found = form.remap(ids, places)
    assert found.dtype == dtype
    assert found.tolist() == [[int(places[i]) if i >= 0 else i for i in row] for row in ids.tolist()]


COMPILE = """
import inspect
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from eldr.engine.balance import choose_triton
from eldr.engine.capture import kernels_triton

NUMBERS = {"padded_experts": 256, "padded_ranks": 8, "padded_per_rank": 64, "padded_tail": 16, "padded_k": 8, "top_k": 8}
OF_A_STEP = {"n_tokens", "n_ids"}
POINTERS = {"logical_to_physical": "*i64", "replica_count": "*i64", "report": "*i64", "ids": "*i64", "remapped": "*i64"}
POINTERS |= dict.fromkeys(["said", "places", "figures", "expert_ids", "layers", "tail"], "*i32")
POINTERS |= dict.fromkeys(["counts", "latest", "positions", "used"], "*i32") | {"slots": "*i64", "owner": "*i64", "table": "*u8"}
for target in (GPUTarget("hip", "gfx942", 64), GPUTarget("cuda", 90, 32)):
    for kernel in (
        *(choose_triton._decide, choose_triton._remap, kernels_triton._flag_experts, kernels_triton._sum_up_step),
        *(kernels_triton._count_blocks, kernels_triton._count_requests),
    ):
        names = list(inspect.signature(kernel.fn).parameters)
        sizes = {name: NUMBERS[name] for name in names if name in NUMBERS}
        signature = {name: "constexpr" if name in sizes else POINTERS.get(name, "i32") for name in names}
        source = ASTSource(fn=kernel, signature=signature, constexprs=sizes)
        again = [one.name for one in kernel.params if one.name in OF_A_STEP and not one.do_not_specialize]
        assert not again, f"{kernel.fn.__name__}: a step would wait for the compiler, as {again} are of a step"
        print(target.arch, len(compile(source, target=target, options={"num_warps": 1}).kernel) > 0)
"""


def test_the_kernels_compile_for_gpus():
    """What the interpreter takes, a compiler may not; it needs no GPU."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["gfx942", "True"] * 6 + ["90", "True"] * 6
