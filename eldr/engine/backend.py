"""Which form of the kernels a device runs."""

from __future__ import annotations

from typing import Any

import torch


def kernels_for(device: torch.device) -> Any:
    """Return the module with ``count_blocks`` and ``count_step`` for a device: Triton on GPUs, torch elsewhere."""
    if device.type == "cuda":  # ROCm calls itself so, too
        from eldr.engine import kernels_triton

        return kernels_triton
    from eldr.engine import kernels

    return kernels


def chooser_for(device: torch.device, ranks: int) -> Any:
    """Return ``choose`` for a device and a number of ranks: Triton on GPUs for up to as many as it takes, torch elsewhere."""
    if device.type == "cuda":
        from eldr.engine import balance_triton

        if ranks <= balance_triton.MOST_RANKS:
            return balance_triton.choose
    from eldr.engine import balance_torch

    return balance_torch.choose
