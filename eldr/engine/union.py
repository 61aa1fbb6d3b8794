"""What a step is on all ranks together, where each rank has requests of its own: its experts, and how many requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from eldr.engine.kernels import active_of


class GroupUnion:
    """A step over ranks that have different tokens, from one sum when the last layer has routed.

    It is formed in the forward pass: a rank without requests takes part in that, and in nothing else. The experts of its dummy
    tokens are counted, as they are loaded like any others.

    Parameters
    ----------
    layers : sequence of int
        Their numbers.
    experts : int
        Experts per layer.
    add : callable
        Sum a tensor over the ranks; it may return the tensor it was given.
    device : torch.device

    Attributes
    ----------
    counts : Tensor of int64, shape (n_layers,)
        Experts that the latest step used on any rank.
    requests : Tensor of int64, shape ()
        Requests of the latest step, on all ranks.
    """

    def __init__(
        self,
        layers: Sequence[int],
        experts: int,
        add: Callable[[torch.Tensor], torch.Tensor],
        device: torch.device,
    ) -> None:
        self._rows = {layer: row for row, layer in enumerate(sorted(layers))}
        self._last = max(layers)
        self._add = add
        self._used = torch.zeros(len(layers), experts, dtype=torch.int32, device=device)
        self._own = torch.zeros(1, dtype=torch.int32, device=device)
        self.counts = torch.zeros(len(layers), dtype=torch.int64, device=device)
        self.requests = torch.zeros((), dtype=torch.int64, device=device)

    def begin(self, requests: int) -> None:
        """Forget the step before, and begin one with some requests of this rank's own."""
        self.counts.zero_()
        self.requests.zero_()
        self._own.fill_(requests)

    def end(self) -> None:
        """Have no requests until the next step begins: the others' steps go on, and nobody tells this rank of them."""
        self._own.zero_()

    def take(self, layer: int, ids: torch.Tensor) -> None:
        """Take a layer's experts, of shape (T, K)."""
        self._used[self._rows[layer]] = active_of(ids, self._used.shape[1])
        if layer == self._last:
            said = self._add(torch.cat((self._used.view(-1), self._own)))
            self.counts.copy_((said[:-1].view(self._used.shape) > 0).sum(1))
            self.requests.copy_(said[-1])
