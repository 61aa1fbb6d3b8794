"""The step-time law of a decode worker: ``T(B, A) = t0 + L * b * (a0 + A) + c1 * B``."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of one decode step as a function of the batch and of its active experts.

    Attributes
    ----------
    fixed : float
        t0: attention projections, head, launch overheads, seconds.
    n_layers : int
        L: mixture-of-experts layers.
    per_expert : float
        b: time to load one expert of one layer, seconds.
    layer_experts : float
        a0: fixed cost of a mixture-of-experts layer, in experts.
    per_request : float
        c1: attention over one request's KV cache, seconds.
    n_experts : int
        Experts per layer that the constants were measured with.
    """

    fixed: float
    n_layers: int
    per_expert: float
    layer_experts: float
    per_request: float
    n_experts: int

    def seconds(self, batch: int, active: float) -> float:
        """Return the duration of a step.

        Parameters
        ----------
        batch : int
            Requests in the batch.
        active : float
            Distinct experts that the batch uses, mean over the layers.
        """
        experts = self.n_layers * self.per_expert * (self.layer_experts + active)
        return self.fixed + experts + self.per_request * batch

    def for_experts(self, n_experts: int) -> StepTime:
        """Return the law of a model with another number of experts in which the same *share* costs the same time."""
        ratio = self.n_experts / n_experts
        return replace(
            self,
            per_expert=self.per_expert * ratio,
            layer_experts=self.layer_experts / ratio,
            n_experts=n_experts,
        )


QWEN3_30B_MI300X = StepTime(
    fixed=5.5e-3, n_layers=48, per_expert=3.45e-6, layer_experts=14.27, per_request=12e-6, n_experts=128
)
"""Least-squares fit to published decode times of Qwen3-30B-A3B on MI300X (ELDR's artifact, round-robin runs)."""
