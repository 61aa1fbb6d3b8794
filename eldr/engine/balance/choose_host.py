"""An exchange's decision on the host, as CPUs run it, and the maps that it reads.

Shapes: E logical experts, R ranks, P physical experts of which each rank holds P / R in a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eldr.engine.balance.choose import choose


@dataclass(frozen=True, slots=True)
class Layer:
    """What the decision for a layer reads and writes.

    Attributes
    ----------
    table, count : Tensors of int, shapes (E, M) and (E,)
        vLLM's ``logical_to_physical_map`` and ``logical_replica_count``; what lies behind the latter or is negative does not count.
    places : Tensor of int32, shape (P,)
        Which physical expert computes the tokens of each physical expert.
    figures : Tensor of int32, shape (N_FIGURES,)
    """

    table: torch.Tensor
    count: torch.Tensor
    places: torch.Tensor
    figures: torch.Tensor
    experts_per_rank: int
    ranks: int

    @property
    def total(self) -> int:
        """P."""
        return self.experts_per_rank * self.ranks


def decide(said: torch.Tensor, layer: Layer) -> None:
    """Choose replicas from the flags of all ranks, summed.

    Parameters
    ----------
    said : Tensor of int32, shape (P + 1,)
        How many ranks would use each physical expert by vLLM's choice; the last one does not count.
    """
    total, per_rank = layer.total, layer.experts_per_rank
    used = (said[:total] > 0).tolist()
    replicas = [
        [place for place in row if place < total]
        for row in replicas_of(layer.table, layer.count, total).tolist()
    ]
    lowest: list[dict[int, int]] = [
        {place // per_rank: place for place in sorted(row, reverse=True)} for row in replicas
    ]
    active = [any(used[place] for place in row) for row in replicas]
    load, rank_of = choose(active, [sorted(held) for held in lowest], layer.ranks)
    places = list(range(total))
    for row, held, rank in zip(replicas, lowest, rank_of, strict=True):
        for place in row:
            places[place] = held[rank]
    layer.places.copy_(torch.tensor(places))
    vllms = [sum(used[at : at + per_rank]) for at in range(0, total, per_rank)]
    layer.figures.copy_(torch.tensor([max(load), sum(load), max(vllms), sum(vllms)]))


def remap(ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return where physical experts are computed: ids of any shape; negative ones are padding, and stay."""
    return torch.where(ids >= 0, places[ids.clamp(min=0).long()], ids).to(ids.dtype)


def columns_of(table: torch.Tensor, total: int) -> int:
    """Return how many columns of a map can hold a replica: no expert has more than there are redundant ones, and one."""
    experts, columns = table.shape  # vLLM's has 1024 columns
    return int(min(columns, max(1, total - experts + 1)))


def replicas_of(table: torch.Tensor, count: torch.Tensor, total: int) -> torch.Tensor:
    """Return the physical ids of each expert's replicas, P where there is none: int64, shape (E, C)."""
    ids = table[:, : columns_of(table, total)].to(torch.int64)
    column = torch.arange(ids.shape[1], device=ids.device)
    return torch.where((column < count[:, None]) & (ids >= 0) & (ids < total), ids, total)
