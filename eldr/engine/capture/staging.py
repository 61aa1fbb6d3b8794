"""How numbers that a step decides on the host reach the device without a wait."""

from __future__ import annotations

from collections.abc import Sequence

import torch

SIZE = 1 << 14
"""Numbers of a step that have pinned memory from the start; steps that send more wait for theirs."""
_STEPS = 3
"""Steps whose copies may be under way at once."""


class Staging:
    """Sends integers to a device through pinned memory.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # torch keeps pinned memory that is let go, and gives it out again once the copies from it are done
        held = [self._host(SIZE) for _ in range(_STEPS)]
        del held

    def send(self, values: Sequence[int]) -> torch.Tensor:
        """Return the values on the device, int64 of shape (n,); what is queued there before may still run."""
        host = self._host(max(SIZE, len(values)))[: len(values)]
        host.numpy()[:] = values
        return host.to(self._device, non_blocking=True)

    def _host(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int64, pin_memory=self._device.type == "cuda")
