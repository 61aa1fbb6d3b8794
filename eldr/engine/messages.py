"""What the two halves of the connector send each other through vLLM, once per step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from eldr.engine.tracking import Plan


@dataclass
class PrefillOrders(KVConnectorMetadata):
    """Scheduler to worker: prompts whose last chunk is in this step.

    Attributes
    ----------
    finishing : dict
        Request id to the blocks of its prompt that hold counts.
    runs : bool
        Whether the step has tokens.
    """

    finishing: dict[str, list[int]] = field(default_factory=dict)
    runs: bool = False


@dataclass
class DecodeOrders(KVConnectorMetadata):
    """Scheduler to worker: changes of the request rows, and the step's number (None without tokens).

    Attributes
    ----------
    plan : Plan
    step : int or None
    pulls : dict
        Request id to the deadline of its pull, of the pulls in flight that have one.
    """

    plan: Plan = field(default_factory=Plan)
    step: int | None = None
    pulls: dict[str, float] = field(default_factory=dict)


class StepReport(KVConnectorWorkerMetadata):
    """Worker to scheduler.

    Parameters
    ----------
    counts : dict
        Request id to its counts, a Tensor of shape (L, E).
    step : int, optional
        The step that ``union`` belongs to.
    union : Tensor, optional
        Active experts per layer, shape (L,).
    hidden : str
        Why this worker cannot see the routing; empty if it can.
    """

    def __init__(
        self,
        counts: dict[str, Any],
        step: int | None = None,
        union: Any = None,
        hidden: str = "",
    ) -> None:
        self.counts = counts
        self.step = step
        self.union = union
        self.hidden = hidden
        self._copied: Any = None
        tensors = [*counts.values(), *([] if union is None else [union])]
        if any(tensor.device.type == "cuda" for tensor in tensors):
            self._copy_to_host()

    def _copy_to_host(self) -> None:
        """Start the copies; they are waited for where the report leaves the process, off the forward's way."""
        self.counts = {key: value.to("cpu", non_blocking=True) for key, value in self.counts.items()}
        if self.union is not None:
            self.union = self.union.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def arrived(self) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Return counts and union as arrays, after their copies."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        union = None if self.union is None else np.asarray(self.union)
        return {key: np.asarray(value) for key, value in self.counts.items()}, union

    def __getstate__(self) -> dict[str, Any]:
        counts, union = self.arrived()
        return {"counts": counts, "step": self.step, "union": union, "hidden": self.hidden, "_copied": None}

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Return this one: only the first rank of a tensor-parallel group reports."""
        del other
        return self
