"""Which form of the kernels a device runs."""

from __future__ import annotations

from typing import Any

import torch


def kernels_for(device: torch.device) -> Any:
    """Return the module with ``count_blocks`` and ``count_step`` for a device: Triton on GPUs, torch elsewhere."""
    if device.type == "cuda":  # ROCm calls itself so, too
        from eldr.engine.capture import kernels_triton

        return kernels_triton
    from eldr.engine.capture import kernels

    return kernels
