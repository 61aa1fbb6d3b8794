"""METRO's choice of replicas in plain torch: the reference of the Triton form, and what CPUs run.

Shapes: E logical experts, R ranks, P physical experts of which each rank holds P / R in a row. On an accelerator every function has
static shapes and never waits for the device, so a graph can capture it. The rules are those of docs/development/metro.md, to the letter:
ranks that chose otherwise would compute an expert twice or not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from eldr.engine.balance.agreement import compare

FAR = 1 << 40
"""Larger than any sum of loads, ranks and ids."""


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
    trouble, off : Tensor of int32, shape ()
        See :func:`eldr.engine.balance.agreement.compare`.
    """

    table: torch.Tensor
    count: torch.Tensor
    places: torch.Tensor
    figures: torch.Tensor
    trouble: torch.Tensor
    off: torch.Tensor
    experts_per_rank: int
    ranks: int

    @property
    def total(self) -> int:
        """P."""
        return self.experts_per_rank * self.ranks


def decide(said: torch.Tensor, layer: Layer) -> None:
    """Choose replicas from what all ranks said; leave vLLM's choice where a rank does not choose.

    Parameters
    ----------
    said : Tensor of int32, shape (P + Tails.N,)
        How many ranks would use each physical expert by vLLM's choice, and the sum of their tails.
    """
    total = layer.total
    compare(said[total:], layer.ranks, layer.trouble, layer.off)
    used = said[:total] > 0
    held = replicas_of(layer.table, layer.count, total)
    active = torch.cat((used, used.new_zeros(1)))[held].any(1)
    chosen = choose(active, held, layer.experts_per_rank, layer.ranks)
    same = torch.arange(total + 1, device=said.device)
    found = same.scatter(0, held.reshape(-1), chosen[:, None].expand_as(held).reshape(-1))
    off = layer.off > 0
    layer.places.copy_(torch.where(off, same, found)[:total])
    taken = torch.zeros_like(same).index_fill(0, torch.where(active & (chosen >= 0), chosen, total), 1)
    figures = torch.cat((_figures(taken[:total], layer), _figures(used, layer)))
    layer.figures.copy_(torch.where(off, 0, figures))


def remap(ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return where physical experts are computed: ids of any shape; negative ones are padding, and stay."""
    return torch.where(ids >= 0, places[ids.clamp(min=0).long()], ids).to(ids.dtype)


def _figures(used: torch.Tensor, layer: Layer) -> torch.Tensor:
    loads = used.view(layer.ranks, layer.experts_per_rank).sum(1)
    return torch.stack((loads.amax(), loads.sum()))


def columns_of(table: torch.Tensor, total: int) -> int:
    """Return how many columns of a map can hold a replica: no expert has more than there are redundant ones, and one."""
    experts, columns = table.shape  # vLLM's has 1024 columns
    return int(min(columns, max(1, total - experts + 1)))


def replicas_of(table: torch.Tensor, count: torch.Tensor, total: int) -> torch.Tensor:
    """Return the physical ids of each expert's replicas, P where there is none: int64, shape (E, C)."""
    ids = table[:, : columns_of(table, total)].to(torch.int64)
    column = torch.arange(ids.shape[1], device=ids.device)
    return torch.where((column < count[:, None]) & (ids >= 0) & (ids < total), ids, total)


def choose(active: torch.Tensor, held: torch.Tensor, experts_per_rank: int, ranks: int) -> torch.Tensor:
    """Return the replica of every expert, so that the fullest rank computes as few experts as can be: int64 of shape (E,).

    Of inactive experts it is the lowest, of those without one -1. On an accelerator it walks at most as many relief paths as there
    are redundant experts, for their number must not depend on data.

    Parameters
    ----------
    active : Tensor of bool, shape (E,)
        Experts that any token of the step uses, on any rank.
    held : Tensor of int64, shape (E, C)
        See :func:`replicas_of`.
    """
    physical = lowest_ids(held, experts_per_rank, ranks)
    state = _place(active, physical, experts_per_rank)
    redundant = max(0, experts_per_rank * ranks - len(active))
    asking_is_free = active.device.type == "cpu"
    rounds: Iterable[int] = itertools.count() if asking_is_free else range(redundant)
    for _ in rounds:
        moved = state.relieve()
        if asking_is_free and not bool(moved):
            break
    ids = physical.gather(1, state.rank_of[:, None])[:, 0]
    return torch.where(ids < experts_per_rank * ranks, ids, -1)


def lowest_ids(held: torch.Tensor, experts_per_rank: int, ranks: int) -> torch.Tensor:
    """Return each expert's lowest physical id on each rank, or P where it has none: int64, shape (E, R)."""
    table = torch.full((len(held), ranks + 1), experts_per_rank * ranks, device=held.device)
    table.scatter_reduce_(1, held // experts_per_rank, held, "amin")
    return table[:, :ranks]


@dataclass(slots=True)
class _State:
    """A choice, and what improving it needs.

    Attributes
    ----------
    held : Tensor of bool, shape (E, R)
    movable : Tensor of bool, shape (E,)
        Active experts that several ranks hold.
    rank_of : Tensor of int64, shape (E,)
        Chosen rank of every expert, the lowest holder of what has no choice.
    load : Tensor of int64, shape (R,)
        Active experts per rank.
    bound : Tensor of int64, shape ()
        No choice has a smaller fullest rank.
    """

    held: torch.Tensor
    movable: torch.Tensor
    rank_of: torch.Tensor
    load: torch.Tensor
    bound: torch.Tensor

    def relieve(self) -> torch.Tensor:
        """Walk the shortest relief path from the fullest rank; return whether there was one to walk, bool of shape ()."""
        experts, ranks = self.held.shape
        rank = torch.arange(ranks, device=self.load.device)
        top = self.load.amax()
        source = rank == torch.where(self.load == top, rank, ranks).amin()
        distance = self._distances(source)
        # the nearest, of these the least loaded, of these the lowest
        key = (distance * (experts + 1) + self.load) * ranks + rank
        key = torch.where((distance < ranks) & (self.load <= top - 2), key, FAR).amin()
        found = (key < FAR) & (top > self.bound)
        goal = rank == key % ranks
        self.load = self.load + (goal.to(torch.int64) - source.to(torch.int64)) * found
        self._walk(distance, key % ranks, found)
        return found

    def _distances(self, source: torch.Tensor) -> torch.Tensor:
        """Return how many moves away each rank is from the source, R where it cannot be reached: int64, shape (R,)."""
        ranks = len(source)
        rank = torch.arange(ranks, device=source.device)
        here = (self.rank_of[:, None] == rank) & self.movable[:, None]
        edge = (here[:, :, None] & self.held[:, None, :]).any(0)
        distance = torch.where(source, 0, ranks)
        level = source
        for step in range(1, ranks):
            level = (level[:, None] & edge).any(0) & (distance == ranks)
            distance = torch.where(level, step, distance)
        return distance

    def _walk(self, distance: torch.Tensor, goal: torch.Tensor, found: torch.Tensor) -> None:
        """Move one expert per edge of the path that ends in ``goal``, from its end."""
        experts, ranks = self.held.shape
        expert = torch.arange(experts, device=goal.device)
        for step in range(ranks - 1, 0, -1):
            here = found & (distance.index_select(0, goal[None])[0] == step)
            before = distance.index_select(0, self.rank_of) == step - 1
            able = self.movable & before & self.held.index_select(1, goal[None])[:, 0]
            # the lowest rank, of its experts the lowest
            key = torch.where(able, self.rank_of * experts + expert, FAR).amin()
            moves = here & (expert == key % experts)
            self.rank_of = torch.where(moves, goal, self.rank_of)
            goal = torch.where(here, key // experts, goal)


def _place(active: torch.Tensor, physical: torch.Tensor, experts_per_rank: int) -> _State:
    """Place every active expert on its least loaded holder: those with one first, then those with few."""
    experts, ranks = physical.shape
    device = active.device
    held = physical < experts_per_rank * ranks
    holders = held.sum(1)
    movable = active & (holders > 1)
    expert = torch.arange(experts, device=device)
    rank = torch.arange(ranks, device=device)
    load = (held & (active & (holders == 1))[:, None]).sum(0)
    placed = (active & (holders > 0)).sum()
    bound = torch.maximum((placed + ranks - 1) // ranks, load.amax())
    choices = min(
        experts, max(0, experts_per_rank * ranks - experts)
    )  # each of them has a replica of its own
    order = torch.where(movable, holders * experts + expert, FAR).argsort()[:choices]
    used = movable[order].to(torch.int64)
    closed = torch.where(held[order], 0, FAR)
    chosen = []
    for i in range(choices):
        best = (load * ranks + rank + closed[i]).amin() % ranks
        load = load + (rank == best) * used[i]
        chosen.append(best)
    lowest = torch.where(held, rank, ranks - 1).amin(1)
    rank_of = lowest
    if chosen:
        rank_of = lowest.index_copy(0, order, torch.where(used > 0, torch.stack(chosen), lowest[order]))
    return _State(held=held, movable=movable, rank_of=rank_of, load=load, bound=bound)
