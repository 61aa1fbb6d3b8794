"""Whether the ranks of an expert-parallel group have the same in hand, asked along with a sum that they form anyway.

Ranks that choose replicas by different maps, settings or versions compute an expert twice or not at all, and nothing
tells: the answers are just wrong. So every decision carries a digest. A group that adds up each word of it and the
word's square sees on *every* rank whether all are equal: n * sum(word^2) = sum(word)^2 holds exactly then, by Cauchy and Schwarz.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed

N_WORDS = 6
"""Words of a digest that are compared."""
WORD_BITS = 8
"""Small enough for the squares of 30,000 ranks to add up in an int32."""
N_TAIL = 2 * N_WORDS + 1
"""What a rank says of a layer behind what it has to add: its words, and whether its maps are broken."""
BROKEN = -1
"""Its place in a tail."""
_DROPPED = 64 - N_WORDS * WORD_BITS  # low bits of a product say little
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_ODD = 0xBF58476D1CE4E5B9 - 2**64


def gather(said: object, group: Any) -> list[Any]:
    """Return what each rank of a group says; all of them have to ask.

    Parameters
    ----------
    said : object
        To be pickled.
    group : vllm.distributed.parallel_state.GroupCoordinator
    """
    every: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(every, said, group=group.cpu_group)
    return every


def digest_of(*parts: str) -> int:
    """Return a digest of texts, a signed 64-bit integer."""
    text = "\0".join(parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def table_digests(tables: torch.Tensor) -> torch.Tensor:
    """Return a digest of each table of integers, int64 of shape (L,): the same on every device, and without waiting for it.

    Sums of integers that wrap around do not depend on the order in which a device adds them.

    Parameters
    ----------
    tables : Tensor of int, shape (L, ...)
    """
    cells = tables.flatten(1).to(torch.int64)
    weights = torch.arange(1, cells.shape[1] + 1, device=cells.device) * _GOLDEN
    weights = (weights ^ (weights >> 29)) * _ODD
    return ((cells + 2) * (weights | 1)).sum(1)


def words(digests: torch.Tensor) -> torch.Tensor:
    """Return what a rank adds to the group's sums: words and their squares, int32 of shape (L, 2 * N_WORDS)."""
    shift = torch.arange(N_WORDS, device=digests.device) * WORD_BITS + _DROPPED
    word = (digests[:, None] >> shift) & (2**WORD_BITS - 1)
    return torch.cat((word, word * word), dim=1).to(torch.int32)


def disagree(said: torch.Tensor, ranks: int) -> torch.Tensor:
    """Tell from the sum of all ranks' words whether any differ: bool of shape ()."""
    total = said.to(torch.int64)
    return (ranks * total[N_WORDS:] != total[:N_WORDS] ** 2).any()


def compare(said: torch.Tensor, ranks: int, trouble: torch.Tensor) -> None:
    """Note what the sum of all ranks' tails of a layer says, int32 of shape (N_TAIL,).

    ``trouble``, int32 of shape (), becomes 1 where ranks differ or one must end, and stays so.
    """
    trouble.logical_or_(disagree(said[: 2 * N_WORDS], ranks) | (said[BROKEN] > 0))


def disagreement(why: str) -> str:
    """Return the message of an engine that ends because its ranks disagree."""
    return (
        f"ELDR: {why}. Answers would be wrong without an error, so the engine ends. Start all ranks with the same image "
        "and the same ELDR_BALANCE; if they are the same, unset it and report this"
    )
