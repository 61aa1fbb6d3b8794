"""What a step is on all ranks together, where each rank has requests of its own: its experts, and how many requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from eldr.engine.capture.kernels import active_of
from eldr.engine.counting import Counting

FAILED = -1
"""In the place of a step's requests: a rank failed to count, so that nobody knows what the step was."""


class GroupUnion:
    """A step over ranks that have different tokens, from one sum when the last layer has routed.

    It is formed in the forward pass: a rank without requests takes part in that, and in nothing else. The experts of its dummy
    tokens are counted, as they are loaded like any others. The first rank that has requests tells of the step, so that what all
    ranks tell adds up.

    Parameters
    ----------
    layers : sequence of int
        Their numbers.
    experts : int
        Experts per layer.
    add : callable
        Sum a tensor over the ranks; it may return the tensor it was given.
    counting : Counting
        Whether this rank counts. One that does not takes part in the sum all the same, and says so: the others wait for it.
    rank, ranks : int
        This rank's number in the group, and their number.

    Attributes
    ----------
    counts : Tensor of int64, shape (n_layers,)
        Experts that the latest step used on any rank.
    requests : Tensor of int64, shape ()
        Requests of the latest step on all ranks, :data:`FAILED` if a rank failed to count.
    tells : Tensor of bool, shape ()
        Whether this rank tells of the latest step.
    """

    def __init__(
        self,
        layers: Sequence[int],
        experts: int,
        add: Callable[[torch.Tensor], torch.Tensor],
        device: torch.device,
        counting: Counting,
        *,
        rank: int,
        ranks: int,
    ) -> None:
        self._rows = {layer: row for row, layer in enumerate(sorted(layers))}
        self._last = max(layers)
        self._add, self._counting = add, counting
        self._failed = torch.zeros(1, dtype=torch.int32, device=device)
        self._used = torch.zeros(len(layers), experts, dtype=torch.int32, device=device)
        self._all = torch.zeros(ranks, dtype=torch.int32, device=device)
        self._own, self._rank = self._all[rank], rank
        self.counts = torch.zeros(len(layers), dtype=torch.int64, device=device)
        self.requests = torch.zeros((), dtype=torch.int64, device=device)
        self.tells = torch.zeros((), dtype=torch.bool, device=device)

    def clear(self) -> None:
        """Forget everything, whatever the tensors hold."""
        for tensor in (self._used, self._all, self._failed):
            tensor.zero_()

    def begin(self, requests: int) -> None:
        """Forget the step before, and begin one with some requests of this rank's own."""
        self.counts.zero_()
        self.requests.zero_()
        self.tells.zero_()
        self._own.fill_(requests)

    def fail(self) -> None:
        """Say from now on that this rank does not count."""
        self._failed.fill_(1)

    def end(self) -> None:
        """Have no requests until the next step begins: the others' steps go on, and nobody tells this rank of them."""
        self._own.zero_()

    def told(self) -> torch.Tensor:
        """Return the requests of the latest step as this rank tells of them: 0 if another one does."""
        return torch.where(self.tells | (self.requests < 0), self.requests, 0)

    def take(self, layer: int, ids: torch.Tensor) -> None:
        """Take a layer's experts, of shape (T, K)."""
        with self._counting:
            self._used[self._rows[layer]] = active_of(ids, self._used.shape[1])
        if layer != self._last:
            return
        if self._counting.stopped:
            self.fail()
        said = self._add(torch.cat((self._used.view(-1), self._all, self._failed)))
        with self._counting:
            used, requests, failed = said.split((self._used.numel(), len(self._all), 1))
            self.counts.copy_((used.view(self._used.shape) > 0).sum(1))
            self.requests.copy_(torch.where(failed[0] > 0, FAILED, requests.sum()))
            self.tells.copy_((requests[self._rank] > 0) & ~(requests[: self._rank] > 0).any())
