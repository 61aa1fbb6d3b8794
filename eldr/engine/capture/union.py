"""What a step is on all ranks together, where each rank has requests of its own: its experts, and how many requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from eldr.engine.capture.backend import kernels_for
from eldr.engine.counting import Counting

MIXED = 1 << 20
"""What a rank adds to its requests in a step that computes prompts: the step is no decode step of any rank then."""


class GroupUnion:
    """A step over ranks that have different tokens, from one sum when the last layer has routed.

    It is formed in the forward pass: a rank without requests takes part in that, and in nothing else. The experts of its dummy
    tokens are counted, as they are loaded like any others. The first rank that has requests reports the step, so that the
    reports of all ranks add up.

    Parameters
    ----------
    buffer : Tensor of int32, shape (T, M, K)
        Where each step's ids are captured.
    layers : sequence of int
        Those of the M layers that have experts.
    experts : int
        Experts per layer.
    add : callable
        Sum a tensor over the ranks; it may return the tensor it was given.
    counting : Counting
        Whether this rank counts. One that does not takes part in the sum all the same, and reports it: the others wait for it.
    rank, ranks : int
        This rank's number in the group, and their number.

    Attributes
    ----------
    last : int
        The layer that routes last.
    report : Tensor of int64, shape (n_layers + 1,)
        Of the latest step: experts that any rank used, by layer, then its requests on all ranks as this one reports them. See
        :func:`eldr.engine.capture.kernels.sum_up_step`.
    """

    def __init__(
        self,
        buffer: torch.Tensor,
        layers: Sequence[int],
        experts: int,
        add: Callable[[torch.Tensor], torch.Tensor],
        counting: Counting,
        *,
        rank: int,
        ranks: int,
    ) -> None:
        self.last = max(layers)
        self._buffer, self._add, self._counting = buffer, add, counting
        self._rank, self._ranks = rank, ranks
        self._kernels = kernels_for(buffer.device)
        with torch.device(buffer.device):
            self._layers = torch.tensor(sorted(layers), dtype=torch.int32)
            self._tail = torch.zeros(ranks + 1, dtype=torch.int32)  # requests of each rank; failed
            self._said = torch.zeros(len(layers) * experts + len(self._tail), dtype=torch.int32)
            self.report = torch.zeros(len(layers) + 1, dtype=torch.int64)

    def clear(self) -> None:
        """Forget everything, whatever the tensors hold."""
        self._tail.zero_()

    def begin(self, requests: int) -> None:
        """Forget the step before, and begin one with some requests of this rank's own."""
        self.report.zero_()
        self._tail[self._rank].fill_(requests)

    def fail(self) -> None:
        """Report from now on that this rank does not count."""
        self._tail[-1].fill_(1)

    def end(self) -> None:
        """Have no requests until the next step begins: the others' steps go on without a report to this rank."""
        self._tail[self._rank].zero_()

    def form(self, tokens: int) -> None:
        """Form the union of a step whose last layer has routed, from the first tokens of the buffer."""
        with self._counting:
            self._kernels.flag_experts(self._said, self._buffer[:tokens], self._layers, self._tail)
        if self._counting.stopped:
            self.fail()
            self._said[-1].fill_(1)
        said = self._add(self._said)
        with self._counting:
            self._kernels.sum_up_step(self.report, said, self._rank, self._ranks)
