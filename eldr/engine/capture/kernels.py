"""The counting kernels in plain torch: the reference, and what CPUs run.

Shapes: T tokens of a step, L mixture-of-experts layers, K experts per token, E experts per layer. Every function has
static shapes for a given T and never waits for the device. Slots are vLLM's: block * block size + offset, or -1 for
padding. Expert ids are 0..E-1; others, as NO_EXPERT, count nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

NO_EXPERT = -1
"""Stands where a layer captured no id."""
FAILED = -1
"""In the place of a step's requests: a rank failed to count, so that the step is unknown."""


def cell_type(block_size: int) -> torch.dtype:
    """Return the smallest type that counts a block's tokens.

    vLLM makes blocks larger than ``--block-size`` where the layers of a hybrid model need pages of one size: Gemma 4's
    full-attention blocks hold twice as many tokens as its sliding ones.
    """
    return torch.uint8 if block_size <= torch.iinfo(torch.uint8).max else torch.int16


def count_blocks(table: torch.Tensor, expert_ids: torch.Tensor, slots: torch.Tensor, block_size: int) -> None:
    """Add a step's routing to the counts of the KV blocks its tokens lie in.

    A token at offset 0 means that its block is (re)used, and clears it first: so a freed block needs no event.

    Parameters
    ----------
    table : Tensor of cell_type(block_size), shape (n_blocks + 1, L, E)
        Counts, changed in place; the last row takes padding.
    expert_ids : Tensor of int32, shape (T, L, K)
        Each token's experts.
    slots : Tensor of int, shape (T,)
        Slot of each token.
    block_size : int
        Tokens per block.
    """
    spare = table.shape[0] - 1
    slots = slots.to(torch.int64)
    real = slots >= 0
    blocks = torch.where(real, slots // block_size, spare)
    table.index_fill_(0, torch.where(real & (slots % block_size == 0), blocks, spare), 0)
    _add(table, blocks, expert_ids)


@dataclass(frozen=True, slots=True)
class RequestRows:
    """Counts per request, and how a token's slot maps to its request and its position.

    The latest tokens of a request are kept apart until no later step can compute their positions again: what is computed last
    at a position is what counts there. So drafts that are rejected, and tokens behind the end of an answer, never count.

    Attributes
    ----------
    counts : Tensor of int32, shape (n_rows + 1, L, E)
        Of all but the latest tokens. The last row takes what is not counted.
    latest : Tensor of int32, shape (n_rows + 1, W, L, K)
        Experts of the latest tokens, by position modulo W.
    positions : Tensor of int32, shape (n_rows + 1, W, L)
        Their positions, -1 for none; the same on all layers, which GPUs count at the same time.
    owner : Tensor of int64, shape (n_blocks + 1, 3)
        Of each block: row of the request that generates into it, else ``n_rows``; position of its first token; and the
        first position that counts.
    block_size : int
        Tokens per block.
    """

    counts: torch.Tensor
    latest: torch.Tensor
    positions: torch.Tensor
    owner: torch.Tensor
    block_size: int

    def clear(self) -> None:
        """Have no requests, whatever the tensors hold."""
        self.counts.zero_()
        self.latest.fill_(NO_EXPERT)
        self.positions.fill_(-1)
        self.owner.zero_()
        self.owner[:, 0].fill_(len(self.counts) - 1)


def request_rows(
    n_rows: int,
    n_blocks: int,
    *,
    window: int,
    layers: int,
    experts: int,
    top_k: int,
    block_size: int,
    device: torch.device | None = None,
) -> RequestRows:
    """Return rows without requests.

    Parameters
    ----------
    window : int
        W: twice the positions that a step computes of a request that generates, as a step may begin before the one before it is known.
    """
    with torch.device(device or "cpu"):
        rows = RequestRows(
            counts=torch.empty(n_rows + 1, layers, experts, dtype=torch.int32),
            latest=torch.empty(n_rows + 1, window, layers, top_k, dtype=torch.int32),
            positions=torch.empty(n_rows + 1, window, layers, dtype=torch.int32),
            owner=torch.empty(n_blocks + 1, 3, dtype=torch.int64),
            block_size=block_size,
        )
    rows.clear()
    return rows


def count_requests(rows: RequestRows, expert_ids: torch.Tensor, slots: torch.Tensor) -> None:
    """Add a step's routing to the counts of the requests whose tokens it generates.

    Parameters
    ----------
    rows : RequestRows
        Changed in place.
    expert_ids : Tensor of int32, shape (T, L, K)
        Each token's experts.
    slots : Tensor of int, shape (T,)
        Slot of each token.
    """
    _, window, layers, top_k = rows.latest.shape
    spare = rows.counts.shape[0] - 1
    slots = slots.to(torch.int64)
    real = slots >= 0
    blocks = torch.where(real, slots // rows.block_size, rows.owner.shape[0] - 1)
    row, begin, first = rows.owner.index_select(0, blocks).unbind(1)
    position = begin + slots % rows.block_size
    places = rows.positions.view(-1, layers)
    place = row * window + position % window
    held = places.index_select(0, place)[:, 0]
    taken = real & (position >= first) & (position >= held)
    settled = torch.where(taken & (position > held), row, spare)
    latest = rows.latest.view(-1, layers, top_k)
    _add(rows.counts, settled, latest.index_select(0, place))
    place = torch.where(taken, place, spare * window)
    latest.index_copy_(0, place, expert_ids.to(torch.int32))
    places.index_copy_(0, place, position.to(torch.int32)[:, None].expand(-1, layers))


def take_requests(rows: RequestRows, ended: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Return the counts of requests that ended, and clear their rows.

    Parameters
    ----------
    ended : Tensor of int64, shape (R,)
        Their rows.
    last : Tensor of int64, shape (R,)
        The last position of each that counts.

    Returns
    -------
    Tensor of int32, shape (R, L, E)
    """
    _, window, layers, top_k = rows.latest.shape
    n = len(ended)
    counts = torch.cat((rows.counts.index_select(0, ended), rows.counts[:1]))  # and a spare row
    held = rows.positions.index_select(0, ended)[:, :, 0]
    row = torch.arange(n, device=ended.device)[:, None].expand(n, window)
    row = torch.where((held >= 0) & (held <= last[:, None]), row, n)
    _add(counts, row.reshape(-1), rows.latest.index_select(0, ended).view(-1, layers, top_k))
    rows.counts.index_fill_(0, ended, 0)
    rows.positions.index_fill_(0, ended, -1)
    rows.latest.index_fill_(0, ended, NO_EXPERT)
    return counts[:n]


def _add(counts: torch.Tensor, rows: torch.Tensor, expert_ids: torch.Tensor) -> None:
    """Count ids of shape (T, L, K) in rows of shape (T,)."""
    cells = _cells(rows, expert_ids, counts.shape[2], counts.shape[0] - 1)
    ones = torch.ones((), dtype=counts.dtype, device=counts.device).expand(cells.numel())
    counts.view(-1).index_add_(0, cells.view(-1), ones)


def active_experts(expert_ids: torch.Tensor, slots: torch.Tensor, n_experts: int) -> torch.Tensor:
    """Count the distinct experts that a step used.

    Parameters
    ----------
    expert_ids : Tensor of int32, shape (T, L, K)
        Each token's experts.
    slots : Tensor of int, shape (T,)
        Slot of each token; negative ones are padding.
    n_experts : int
        E.

    Returns
    -------
    Tensor of int32, shape (L,)
    """
    return _flags(torch.where(slots >= 0, 0, 1), expert_ids, n_experts).sum(1, dtype=torch.int32)


def count_step(rows: RequestRows, expert_ids: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Do :func:`count_requests`, and return :func:`active_experts`."""
    count_requests(rows, expert_ids, slots)
    return active_experts(expert_ids, slots, rows.counts.shape[2])


def flag_experts(
    said: torch.Tensor, expert_ids: torch.Tensor, layers: torch.Tensor, tail: torch.Tensor
) -> None:
    """Write which experts tokens use, and a tail of the rank's own, to be summed over the ranks.

    Parameters
    ----------
    said : Tensor of int32, shape (L * E + N,)
        Overwritten: 1 for each expert that is used, by layer, then the tail.
    expert_ids : Tensor of int, shape (T, M, K)
        Ids outside 0..E-1 name no expert.
    layers : Tensor of int32, shape (L,)
        Which of the M layers.
    tail : Tensor of int32, shape (N,)
    """
    n = len(said) - len(tail)
    every = torch.zeros(len(expert_ids), dtype=torch.int64, device=said.device)
    said[:n] = _flags(every, expert_ids.index_select(1, layers), n // len(layers)).view(-1)
    said[n:] = tail


def sum_up_step(report: torch.Tensor, said: torch.Tensor, rank: int, ranks: int) -> None:
    """Report a step over all ranks, from the sum of their flags.

    Parameters
    ----------
    report : Tensor of int64, shape (L + 1,)
        Overwritten: each layer's active experts, then the requests as this rank reports them: 0 if another one does,
        ``FAILED`` if a rank failed to count.
    said : Tensor of int32, shape (L * E + ranks + 1,)
        Flags, the requests of each rank, how many ranks failed.
    """
    layers = len(report) - 1
    used, requests, failed = said.split((len(said) - ranks - 1, ranks, 1))
    report[:layers] = (used.view(layers, -1) > 0).sum(1)
    first = (requests[rank] > 0) & ~(requests[:rank] > 0).any()
    report[layers] = torch.where(failed[0] > 0, FAILED, torch.where(first, requests.sum(), 0))


def _flags(rows: torch.Tensor, expert_ids: torch.Tensor, n_experts: int) -> torch.Tensor:
    """Return 1 for each expert that a token of row 0 uses, and 0: int32 of shape (L, E)."""
    used = torch.zeros((2, expert_ids.shape[1], n_experts), dtype=torch.int32, device=expert_ids.device)
    used.view(-1).index_fill_(0, _cells(rows, expert_ids, n_experts, 1).view(-1), 1)
    return used[0]


def _cells(rows: torch.Tensor, expert_ids: torch.Tensor, n_experts: int, spare: int) -> torch.Tensor:
    """Return where in (rows, L, E) each id counts; in the spare row if it is no expert's."""
    layers = expert_ids.shape[1]
    known = (expert_ids >= 0) & (expert_ids < n_experts)
    row = torch.where(known, rows[:, None, None], spare)
    layer = torch.arange(layers, device=expert_ids.device)[None, :, None]
    return (row * layers + layer) * n_experts + torch.where(known, expert_ids, 0)
