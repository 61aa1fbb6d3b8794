"""What a worker reports to the scheduler through vLLM, once per step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata

from eldr.engine.counting import Counting
from eldr.wire import ExpertCounts, encode_counts


class StepReport(KVConnectorWorkerMetadata):
    """Worker to scheduler.

    Parameters
    ----------
    counts : dict
        Request id to the counts of its answer, request id and number to those of its prompt, each a Tensor of shape (L, E).
    step : int, optional
        The step that the figures belong to.
    counting : Counting, optional
        Of the worker that made it; stopped where the counts do not arrive on the host, too.
    **figures : Tensor or None
        Of the step, left out where None. ``union``: active experts per layer, shape (L,). ``drafted``: experts that layers which draft
        have loaded since the report before, shape (). ``balance``: what the choice of replicas brought, shape (L, N_FIGURES).
        ``requests``: those of the step on all ranks, shape (), 0 where another rank reports the step; left out if this
        engine's scheduler has them all.

    Attributes
    ----------
    hidden : str
        Why the worker counts no more; empty while it does.
    """

    def __init__(
        self,
        counts: dict[Any, Any],
        step: int | None = None,
        *,
        counting: Counting | None = None,
        **figures: Any,
    ) -> None:
        self._counting = counting or Counting("activations")
        self.step = step
        self.hidden = self._counting.stopped
        self._counts = counts
        self._figures = {name: figure for name, figure in figures.items() if figure is not None}
        self._copied: Any = None
        if any(tensor.device.type == "cuda" for tensor in (*counts.values(), *self._figures.values())):
            self._copy_to_host()

    def _copy_to_host(self) -> None:
        """Start the copies; they are waited for where the report leaves the process, off the forward's way."""
        self._counts, self._figures = (
            {key: value.to("cpu", non_blocking=True) for key, value in tensors.items()}
            for tensors in (self._counts, self._figures)
        )
        self._copied = torch.cuda.Event()
        self._copied.record()

    def counts(self) -> dict[Any, np.ndarray]:
        """Return the counts as arrays, after their copies."""
        return self._arrived(self._counts)

    def figures(self) -> dict[str, np.ndarray]:
        """Return the figures as arrays, after their copies."""
        return self._arrived(self._figures)

    def _arrived(self, tensors: dict[Any, Any]) -> dict[Any, np.ndarray]:
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        return {key: np.asarray(value) for key, value in tensors.items()}

    def __getstate__(self) -> dict[str, Any]:
        sent: dict[str, Any] = {"_counts": {}, "_figures": {}}
        with self._counting:  # it is vLLM that asks, for all that the step brought
            sent |= {"_counts": self.counts(), "_figures": self.figures()}
        hidden = self.hidden or self._counting.stopped
        return sent | {"step": self.step, "hidden": hidden, "_copied": None}

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Return this one: only the first rank of a tensor-parallel group reports."""
        del other
        return self


def encoded(counts: np.ndarray, top_k: int, tokens: int, *, complete: bool) -> dict[str, Any]:
    """Return counts as readers get them; they are exact if complete, and each token has its top k experts in every layer."""
    exact = complete and bool((counts.sum(1, dtype=np.int64) == tokens * top_k).all())
    kind = np.uint16 if counts.max(initial=0) <= np.iinfo(np.uint16).max else np.uint32
    return encode_counts(ExpertCounts(counts.astype(kind), top_k, tokens, exact))
