"""The counting kernels for GPUs, bit for bit those of :mod:`eldr.engine.capture.kernels`.

A step's tokens of one block are neighbours, and no two requests write into one block in the same step. So the program
at the first token of such a run owns the block: it needs no atomics, which small types do not have.

Triton compiles a kernel anew where a number becomes 1 or a multiple of 16, unless it is exempt. Those that change from step to step
are: no step may wait for a compiler.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from eldr.engine.capture.kernels import FAILED, RequestRows

_FAILED = tl.constexpr(FAILED)
_IDS, _EXPERTS = tl.constexpr(128), tl.constexpr(32)  # that a program of _flag_experts compares at once


@triton.jit(do_not_specialize=["n_tokens"])
def _count_blocks(
    table,
    expert_ids,
    slots,
    n_tokens,
    n_layers,
    n_experts,
    block_size,
    top_k: tl.constexpr,
    padded_k: tl.constexpr,
    padded_experts: tl.constexpr,
):
    token = tl.program_id(0)
    layer = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        block = slot // block_size
        before = tl.load(slots + token - 1, mask=token > 0, other=-1).to(tl.int64)
        if (before < 0) | (before // block_size != block):
            experts = tl.arange(0, padded_experts)
            row = table + (block * n_layers + layer) * n_experts + experts
            inside = experts < n_experts
            # offset 0 clears: what an earlier owner of the block left does not count
            counts = tl.load(row, mask=inside & (slot % block_size != 0), other=0).to(tl.int32)
            choice = tl.arange(0, padded_k)
            same = slot >= 0
            while same:
                ids = tl.load(
                    expert_ids + (token * n_layers + layer) * top_k + choice, mask=choice < top_k, other=-1
                )
                counts += tl.sum((ids[:, None] == experts[None, :]).to(tl.int32), axis=0)
                token += 1
                following = tl.load(slots + token, mask=token < n_tokens, other=-1).to(tl.int64)
                same = (following >= 0) & (following // block_size == block)
            tl.store(row, counts.to(table.dtype.element_ty), mask=inside)


@triton.jit
def _count_requests(
    counts,
    latest,
    positions,
    used,
    expert_ids,
    slots,
    owner,
    n_rows,
    window,
    n_layers,
    n_experts,
    block_size,
    top_k: tl.constexpr,
    padded_k: tl.constexpr,
):
    token = tl.program_id(0)
    layer = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        choice = tl.arange(0, padded_k)
        inside = choice < top_k
        ids = tl.load(expert_ids + (token * n_layers + layer) * top_k + choice, mask=inside, other=-1)
        tl.store(used + layer * n_experts + ids, 1, mask=(ids >= 0) & (ids < n_experts))
        block = slot // block_size
        row = tl.load(owner + 3 * block)
        position = tl.load(owner + 3 * block + 1) + slot % block_size
        if (row < n_rows) & (position >= tl.load(owner + 3 * block + 2)):
            place = (row * window + position % window) * n_layers + layer
            held = tl.load(positions + place)
            if position >= held:
                settled = tl.load(latest + place * top_k + choice, mask=inside & (position > held), other=-1)
                known = (settled >= 0) & (settled < n_experts)
                # several tokens of a request may settle at the same time
                tl.atomic_add(counts + (row * n_layers + layer) * n_experts + settled, 1, mask=known)
                tl.store(latest + place * top_k + choice, ids, mask=inside)
                tl.store(positions + place, position.to(tl.int32))


@triton.jit(do_not_specialize=["n_ids"])
def _flag_experts(
    said,
    expert_ids,
    layers,
    tail,
    n_ids,
    n_tail,
    ids_layers,
    n_layers,
    n_experts,
    top_k: tl.constexpr,
    padded_tail: tl.constexpr,
):
    layer = tl.program_id(0)
    expert = tl.program_id(1) * _EXPERTS + tl.arange(0, _EXPERTS)
    at = tl.load(layers + layer)
    used = tl.zeros((_EXPERTS,), tl.int32)
    for begin in range(0, n_ids, _IDS):
        i = begin + tl.arange(0, _IDS)
        place = (i // top_k * ids_layers + at) * top_k + i % top_k
        ids = tl.load(expert_ids + place, mask=i < n_ids, other=-1).to(tl.int32)
        used = tl.maximum(used, tl.max((ids[:, None] == expert[None, :]).to(tl.int32), axis=0))
    tl.store(said + layer * n_experts + expert, used, mask=expert < n_experts)
    if (layer == 0) & (tl.program_id(1) == 0):
        word = tl.arange(0, padded_tail)
        inside = word < n_tail
        tl.store(said + n_layers * n_experts + word, tl.load(tail + word, mask=inside), mask=inside)


@triton.jit
def _sum_up_step(
    report, said, rank, ranks, n_layers, n_experts, padded_ranks: tl.constexpr, padded_experts: tl.constexpr
):
    layer = tl.program_id(0)
    expert = tl.arange(0, padded_experts)
    used = tl.load(said + layer * n_experts + expert, mask=expert < n_experts, other=0) > 0
    tl.store(report + layer, tl.sum(used.to(tl.int64), axis=0))
    if layer == 0:
        other = tl.arange(0, padded_ranks)
        tail = said + n_layers * n_experts
        requests = tl.load(tail + other, mask=other < ranks, other=0).to(tl.int64)
        before = tl.sum(tl.where(other < rank, requests, 0), axis=0)
        own = tl.sum(tl.where(other == rank, requests, 0), axis=0)
        reported = tl.where((own > 0) & (before == 0), tl.sum(requests, axis=0), 0)
        tl.store(report + n_layers, tl.where(tl.load(tail + ranks) > 0, _FAILED, reported))


def count_blocks(table: torch.Tensor, expert_ids: torch.Tensor, slots: torch.Tensor, block_size: int) -> None:
    """Do what :func:`eldr.engine.capture.kernels.count_blocks` does."""
    tokens, layers, top_k = expert_ids.shape
    experts = table.shape[2]
    if tokens:
        _count_blocks[(tokens, layers)](
            table,
            expert_ids,
            slots,
            tokens,
            layers,
            experts,
            block_size,
            top_k=top_k,
            padded_k=triton.next_power_of_2(top_k),
            padded_experts=triton.next_power_of_2(experts),
        )


def count_step(rows: RequestRows, expert_ids: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Do what :func:`eldr.engine.capture.kernels.count_step` does, in one pass."""
    tokens, layers, top_k = expert_ids.shape
    experts = rows.counts.shape[2]
    used = torch.zeros((layers, experts), dtype=torch.int32, device=rows.counts.device)
    if tokens:
        _count_requests[(tokens, layers)](
            rows.counts,
            rows.latest,
            rows.positions,
            used,
            expert_ids,
            slots,
            rows.owner,
            rows.counts.shape[0] - 1,
            rows.latest.shape[1],
            layers,
            experts,
            rows.block_size,
            top_k=top_k,
            padded_k=triton.next_power_of_2(top_k),
        )
    return used.sum(1, dtype=torch.int32)


def flag_experts(
    said: torch.Tensor, expert_ids: torch.Tensor, layers: torch.Tensor, tail: torch.Tensor
) -> None:
    """Do what :func:`eldr.engine.capture.kernels.flag_experts` does; ids must lie in a row."""
    tokens, ids_layers, top_k = expert_ids.shape
    experts = (len(said) - len(tail)) // len(layers)
    sizes = {"top_k": top_k, "padded_tail": triton.next_power_of_2(len(tail))}
    numbers = tokens * top_k, len(tail), ids_layers, len(layers), experts
    grid = len(layers), triton.cdiv(experts, _EXPERTS.value)
    _flag_experts[grid](said, expert_ids, layers, tail, *numbers, **sizes)


def sum_up_step(report: torch.Tensor, said: torch.Tensor, rank: int, ranks: int) -> None:
    """Do what :func:`eldr.engine.capture.kernels.sum_up_step` does."""
    layers = len(report) - 1
    experts = (len(said) - ranks - 1) // layers
    padded = {"padded_ranks": ranks, "padded_experts": experts}
    sizes = {name: triton.next_power_of_2(n) for name, n in padded.items()}
    _sum_up_step[(layers,)](report, said, rank, ranks, layers, experts, **sizes)
