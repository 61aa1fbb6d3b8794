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

from eldr.engine.errors import RanksDisagreeError

N_WORDS = 6
"""Words of a digest that are compared."""
WORD_BITS = 8
"""Small enough for the squares of 30,000 ranks to add up in an int32."""
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


def table_digest(table: torch.Tensor) -> torch.Tensor:
    """Return a digest of a table of integers, int64 of shape (): the same on every device, and without waiting for it.

    Sums of integers that wrap around do not depend on the order in which a device adds them.
    """
    cells = table.reshape(-1).to(torch.int64)
    weights = torch.arange(1, cells.numel() + 1, device=cells.device) * _GOLDEN
    weights = (weights ^ (weights >> 29)) * _ODD
    return ((cells + 2) * (weights | 1)).sum()


def words(digest: torch.Tensor) -> torch.Tensor:
    """Return what a rank adds to the group's sum: its words and their squares, int32 of shape (2 * N_WORDS,)."""
    shift = torch.arange(N_WORDS, device=digest.device) * WORD_BITS + _DROPPED
    word = (digest >> shift) & (2**WORD_BITS - 1)
    return torch.cat((word, word * word)).to(torch.int32)


def is_capturing(device: torch.device) -> bool:
    """Tell whether a graph is being captured, which must not wait for the device."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def disagree(said: torch.Tensor, ranks: int) -> torch.Tensor:
    """Tell from the sum of all ranks' words whether any differ: bool of shape ()."""
    total = said.to(torch.int64)
    return (ranks * total[N_WORDS:] != total[:N_WORDS] ** 2).any()


class Tail:
    """What a rank says behind what it has to add: its words, whether it failed to choose, and whether its maps are broken.

    A rank takes part in the sum whatever happened to it, or the others would wait for it.

    Attributes
    ----------
    said : Tensor of int32, shape (N,)
        Its first 2 * N_WORDS numbers are the words.
    """

    N = 2 * N_WORDS + 2

    def __init__(self, device: torch.device) -> None:
        self.said = torch.zeros(self.N, dtype=torch.int32, device=device)
        self.hold(torch.zeros((), dtype=torch.int64, device=device))
        self._broken = ""

    def hold(self, digest: torch.Tensor) -> None:
        """Say this digest from now on."""
        self.said[:-2] = words(digest)

    def fail(self) -> None:
        """Say from now on that this rank does not choose."""
        self.said[-2] = 1

    def break_off(self, why: str) -> None:
        """Say that the engine must end."""
        self._broken = self._broken or why
        self.said[-1] = 1

    def compare(self, said: torch.Tensor, ranks: int, trouble: torch.Tensor, why: str, *, wait: bool) -> None:
        """Look for a difference in the sum of all ranks' tails; as :func:`note`."""
        wrong = disagree(said[:-2], ranks) | (said[-1] > 0)
        note(trouble, wrong, self._broken or why, wait=wait or bool(self._broken))


def note(trouble: torch.Tensor, wrong: torch.Tensor, why: str, *, wait: bool) -> None:
    """Remember that something is wrong, and end the engine at once where that is known without waiting for a device.

    Parameters
    ----------
    trouble : Tensor of bool, shape ()
        Becomes true, and stays so.
    wrong : Tensor of bool, shape ()
    wait : bool
        Whether waiting for an accelerator is harmless now.

    Raises
    ------
    RanksDisagreeError
        On CPUs, and on accelerators where waiting is harmless.
    """
    trouble.logical_or_(wrong)
    if (wait or trouble.device.type == "cpu") and bool(trouble):
        raise RanksDisagreeError(disagreement(why))


def disagreement(why: str) -> str:
    """Return the message of an engine that ends because its ranks disagree."""
    return (
        f"ELDR: {why}. Answers would be wrong without anybody noticing, so the engine ends. Start all ranks with the same image "
        "and the same ELDR_BALANCE; if they are the same, unset it and report this"
    )
