"""The step-time model of a decode engine.

``T(B, A, C) = fixed + per_expert * A + per_request * B + per_token * C``
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of one decode step by its batch and active experts.

    Attributes
    ----------
    fixed : float
        What a step costs before any expert is read: attention projections, head, launches, and each
        mixture-of-experts layer's own overhead; seconds.
    per_expert : float
        One more distinct expert on every layer, seconds.
    per_request : float
        One more request: attention over its KV cache, seconds.
    n_experts : int
        Experts per layer that the constants were measured with.
    per_token : float
        One more token of context of any request: attention over it, seconds. 0 where that is part of ``per_request``.
    """

    fixed: float
    per_expert: float
    per_request: float
    n_experts: int
    per_token: float = 0.0

    def seconds(self, batch: float, active: float, tokens: float = 0.0) -> float:
        """Return the duration of a step.

        Parameters
        ----------
        batch : float
            Requests in the batch.
        active : float
            Distinct experts that the batch uses, mean over the layers.
        tokens : float
            Context of all requests of the batch.
        """
        return self.fixed + self.per_expert * active + self.per_request * batch + self.per_token * tokens

    def for_experts(self, n_experts: int) -> StepTime:
        """Return the model for another number of experts.

        The same *share* of the experts costs the same time.
        """
        return replace(self, per_expert=self.per_expert * self.n_experts / n_experts, n_experts=n_experts)

    def scaled(self, factor: float) -> StepTime:
        """Return the model of an engine that takes so many times as long."""
        return StepTime(
            self.fixed * factor,
            self.per_expert * factor,
            self.per_request * factor,
            self.n_experts,
            self.per_token * factor,
        )


QWEN3_30B_MI300X = StepTime(
    fixed=5.5e-3 + 48 * 3.45e-6 * 14.27, per_expert=48 * 3.45e-6, per_request=12e-6, n_experts=128
)
"""From published decode times of Qwen3-30B-A3B on MI300X (ELDR's artifact, round-robin runs): 48 layers, 3.45 us an expert and
layer, 14.27 experts' time of overhead a layer, 5.5 ms beside them, 12 us a request. Not the least squares of those times, which are
no straight line and leave nothing for a request's KV cache: ``docs/benchmarks/studies.md`` has both."""
