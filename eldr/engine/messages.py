"""What a worker tells the scheduler through vLLM, once per step."""

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
        The step that ``union`` belongs to.
    union : Tensor, optional
        Active experts per layer, shape (L,).
    figures : Tensor, optional
        What the choice of replicas brought, of shape (L, N_FIGURES); None where vLLM chooses.
    requests : Tensor, optional
        Requests of the step on all ranks, shape (), 0 where another rank tells of the step; None if this engine's
        scheduler knows them all.
    counting : Counting, optional
        Of the worker that made it; stopped where the counts do not arrive on the host, too.

    Attributes
    ----------
    hidden : str
        Why the worker counts no more; empty while it does.
    """

    def __init__(
        self,
        counts: dict[Any, Any],
        step: int | None = None,
        union: Any = None,
        *,
        figures: Any = None,
        requests: Any = None,
        counting: Counting | None = None,
    ) -> None:
        self._counting = counting or Counting("activations")
        self.counts = counts
        self.step = step
        self.union = union
        self.hidden = self._counting.stopped
        self.figures = figures
        self._requests = requests
        self._copied: Any = None
        tensors = [*counts.values(), *([] if union is None else [union])]
        tensors += [] if figures is None else [figures]
        if any(tensor.device.type == "cuda" for tensor in tensors):
            self._copy_to_host()

    def _copy_to_host(self) -> None:
        """Start the copies; they are waited for where the report leaves the process, off the forward's way."""
        self.counts = {key: value.to("cpu", non_blocking=True) for key, value in self.counts.items()}
        if self.union is not None:
            self.union = self.union.to("cpu", non_blocking=True)
        if self._requests is not None:
            self._requests = self._requests.to("cpu", non_blocking=True)
        if self.figures is not None:
            self.figures = self.figures.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def arrived(self) -> tuple[dict[Any, np.ndarray], np.ndarray | None]:
        """Return counts and union as arrays, after their copies."""
        self._wait()
        union = None if self.union is None else np.asarray(self.union)
        return {key: np.asarray(value) for key, value in self.counts.items()}, union

    def requests(self) -> int | None:
        """Return the requests of the step on all ranks, after their copy: 0 or None as in the parameter."""
        self._wait()
        return None if self._requests is None else int(self._requests)

    def _wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None

    def __getstate__(self) -> dict[str, Any]:
        sent: dict[str, Any] = {"counts": {}, "union": None, "figures": None, "_requests": None}
        with self._counting:  # it is vLLM that asks, for all that the step brought
            sent["counts"], sent["union"] = self.arrived()
            sent["figures"] = None if self.figures is None else np.asarray(self.figures)
            sent["_requests"] = self.requests()
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
