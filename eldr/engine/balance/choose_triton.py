"""An exchange's decision as one GPU program, number for number that of :mod:`eldr.engine.balance.choose_host`; and what follows it.

One program decides in one order, so that all ranks decide alike: threads that took experts as they came would not. Shapes are static and nothing waits for
the host, so a graph can capture it; it reads EPLB's maps where they lie, and so follows their rearrangements.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from eldr.engine.balance.choose_host import Layer, columns_of
from eldr.engine.figures import ALL, ALL_VLLM, FULLEST, FULLEST_VLLM

_FAR = tl.constexpr(1 << 30)
_FULLEST, _ALL = tl.constexpr(FULLEST), tl.constexpr(ALL)
_FULLEST_VLLM, _ALL_VLLM = tl.constexpr(FULLEST_VLLM), tl.constexpr(ALL_VLLM)
_IDS = tl.constexpr(256)  # that a program of _remap takes
_WIDE = 512
"""Experts that one warp holds in its registers; no barriers between threads then."""


@triton.jit
def _or(left, right):
    return left | right


@triton.jit
def _decide(
    said,
    logical_to_physical,
    replica_count,
    places,
    figures,
    row,
    columns,
    n_experts,
    per_rank,
    ranks,
    padded_experts: tl.constexpr,
    padded_ranks: tl.constexpr,
    padded_per_rank: tl.constexpr,
):
    expert = tl.arange(0, padded_experts)
    rank = tl.arange(0, padded_ranks)
    inside = expert < n_experts
    replicas = tl.load(replica_count + expert, mask=inside, other=0).to(tl.int32)
    most = tl.minimum(tl.max(replicas, axis=0), columns)
    total = per_rank * ranks
    ids = logical_to_physical + expert.to(tl.int64) * row

    # what vLLM's choice would load
    slot = tl.arange(0, padded_per_rank)
    fullest, every = total * 0, total * 0
    for index in range(ranks):
        flags = tl.load(said + index * per_rank + slot, mask=slot < per_rank, other=0)
        loaded = tl.sum((flags > 0).to(tl.int32), axis=0)
        fullest = tl.maximum(fullest, loaded)
        every += loaded
    tl.store(figures + _FULLEST_VLLM, fullest)
    tl.store(figures + _ALL_VLLM, every)

    used = inside & (expert < 0)
    held = tl.zeros((padded_experts,), tl.int64)  # ranks that hold each expert, as bits
    for column in range(most):
        physical = tl.load(ids + column, mask=inside & (column < replicas), other=-1).to(tl.int64)
        known = (physical >= 0) & (physical < total)
        bit = tl.full((padded_experts,), 1, tl.int64) << tl.where(known, physical // per_rank, 0)
        held = held | tl.where(known, bit, 0)
        used = used | (known & (tl.load(said + physical, mask=known, other=0) > 0))
    holders = tl.zeros((padded_experts,), tl.int32)
    rank_of = tl.zeros((padded_experts,), tl.int32)
    for index in range(ranks):
        here = ((held >> index) & 1) != 0
        rank_of = tl.where(here & (holders == 0), index, rank_of)
        holders += here.to(tl.int32)
    movable = used & (holders > 1)
    load = tl.zeros((padded_ranks,), tl.int32)
    for index in range(ranks):
        fixed = tl.sum((used & (holders == 1) & (rank_of == index)).to(tl.int32), axis=0)
        load = tl.where(rank == index, fixed, load)
    placed = tl.sum((used & (holders > 0)).to(tl.int32), axis=0)
    bound = tl.maximum((placed + ranks - 1) // ranks, tl.max(load, axis=0))

    # every expert with a choice to its least loaded holder, those with few holders first
    order = tl.where(movable, holders * padded_experts + expert, _FAR)
    first = tl.min(order, axis=0)
    while first < _FAR:
        this = expert == first % padded_experts
        holds = (tl.sum(tl.where(this, held, 0), axis=0) >> rank.to(tl.int64)) & 1
        best = tl.min(tl.where(holds != 0, load * padded_ranks + rank, _FAR), axis=0) % padded_ranks
        load += (rank == best).to(tl.int32)
        rank_of = tl.where(this, best, rank_of)
        order = tl.where(this, _FAR, order)
        first = tl.min(order, axis=0)

    # from the fullest rank to the nearest that has room for two less, one expert per edge, until there is none
    top = tl.max(load, axis=0)
    while top > bound:
        source = tl.min(tl.where(load == top, rank, _FAR), axis=0)
        distance = tl.where(rank == source, 0, _FAR)
        level = tl.sum(
            tl.where(rank == source, tl.full((padded_ranks,), 1, tl.int64) << rank.to(tl.int64), 0), axis=0
        )
        reached = level
        step = top * 0
        best = step + _FAR
        while (level != 0) & (best == _FAR):
            step += 1
            leaving = movable & (((level >> rank_of.to(tl.int64)) & 1) != 0)
            level = tl.reduce(tl.where(leaving, held, 0), 0, _or) & ~reached
            reached = reached | level
            arrived = ((level >> rank.to(tl.int64)) & 1) != 0
            distance = tl.where(arrived, step, distance)
            best = tl.min(tl.where(arrived & (load <= top - 2), load * padded_ranks + rank, _FAR), axis=0)
        if best < _FAR:
            goal = best % padded_ranks
            load += (rank == goal).to(tl.int32) - (rank == source).to(tl.int32)
            while step > 0:
                step -= 1
                near = tl.full((padded_ranks,), 1, tl.int64) << rank.to(tl.int64)
                before = tl.sum(tl.where(distance == step, near, 0), axis=0)
                able = movable & (((before >> rank_of.to(tl.int64)) & (held >> goal.to(tl.int64)) & 1) != 0)
                key = tl.min(tl.where(able, rank_of * padded_experts + expert, _FAR), axis=0)
                rank_of = tl.where(expert == key % padded_experts, goal, rank_of)
                goal = key // padded_experts
            top = tl.max(load, axis=0)
        else:
            top = bound

    lowest = tl.full((padded_experts,), total, tl.int64)
    for column in range(most):
        physical = tl.load(ids + column, mask=inside & (column < replicas), other=-1).to(tl.int64)
        here = (physical >= 0) & (physical < total) & (physical // per_rank == rank_of)
        lowest = tl.where(here & (physical < lowest), physical, lowest)
    tl.store(figures + _FULLEST, tl.max(load, axis=0))
    tl.store(figures + _ALL, tl.sum(load, axis=0))
    for column in range(most):
        physical = tl.load(ids + column, mask=inside & (column < replicas), other=-1).to(tl.int64)
        known = (physical >= 0) & (physical < total)
        tl.store(places + physical, lowest.to(tl.int32), mask=known)


@triton.jit(do_not_specialize=["n_ids"])  # see kernels_triton
def _remap(ids, places, remapped, n_ids):
    i = tl.program_id(0) * _IDS + tl.arange(0, _IDS)
    place = tl.load(ids + i, mask=i < n_ids, other=-1)
    real = place >= 0
    computed = tl.load(places + place, mask=real, other=0).to(place.dtype)
    tl.store(remapped + i, tl.where(real, computed, place), mask=i < n_ids)


def decide(said: torch.Tensor, layer: Layer) -> None:
    """Do what :func:`eldr.engine.balance.choose_host.decide` does, for up to ``MOST_RANKS`` ranks."""
    experts = len(layer.table)
    padded = {
        "padded_experts": experts,
        "padded_ranks": layer.ranks,
        "padded_per_rank": layer.experts_per_rank,
    }
    sizes = {name: triton.next_power_of_2(n) for name, n in padded.items()}
    warps = 1 if sizes["padded_experts"] <= _WIDE else 4
    tensors = said, layer.table, layer.count, layer.places, layer.figures
    row, columns = layer.table.stride(0), columns_of(layer.table, layer.total)
    numbers = row, columns, experts, layer.experts_per_rank, layer.ranks
    _decide[(1,)](*tensors, *numbers, **sizes, num_warps=warps)


def remap(ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Do what :func:`eldr.engine.balance.choose_host.remap` does; ids must lie in a row."""
    remapped = torch.empty_like(ids)
    _remap[(triton.cdiv(ids.numel(), _IDS.value),)](ids, places, remapped, ids.numel())
    return remapped
