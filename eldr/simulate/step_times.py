"""Step-time models of accelerators."""

from __future__ import annotations

from eldr.core.step_time import QWEN3_30B_MI300X, StepTime

GPT_OSS_120B_MI300X = StepTime(
    fixed=4.18e-3 + 36 * 9.78e-6 * 14.27, per_expert=36 * 9.78e-6, per_request=31.8e-6, n_experts=128
)
"""Fit to published decode times of GPT-OSS-120B on MI300X (ELDR's artifact, round-robin runs): 36 layers, 9.78 us an expert
and layer, 14.27 experts' time of overhead a layer, 4.18 ms beside them, 31.8 us a request."""

GEMMA_4_26B_MI300X = StepTime(
    fixed=30 * 6.41e-6 * 14.27, per_expert=30 * 6.41e-6, per_request=0.0, n_experts=128
)
"""The same for Gemma-4-26B-A4B: 30 layers, 6.41 us an expert and layer. Its published times are no straight line (60 requests/s
are slower than 100), so that nothing is left for requests and for what is beside the experts."""

QWEN3_30B_H200 = StepTime(fixed=2.856e-3, per_expert=103.6e-6, per_request=17.95e-6, n_experts=128)
"""Least squares of the four decode steps of Qwen3-30B-A3B on an NVIDIA H200 in ``docs/benchmarks/gpu-check.md``, 0.13 ms off at most. Their
weights are random, so that each token's 8 experts are taken as drawn evenly from 128: a batch of B has 128 (1 - (15/16)^B). Three constants
of four points whose batch and experts rise together: the cost of an expert cannot be separated from that of a request."""

_SHORTEST, _LONGEST = 1e-6, 1e3

STEP_TIMES = {
    "qwen3-30b-mi300x": QWEN3_30B_MI300X,
    "gpt-oss-120b-mi300x": GPT_OSS_120B_MI300X,
    "gemma-4-26b-mi300x": GEMMA_4_26B_MI300X,
    "qwen3-30b-h200": QWEN3_30B_H200,
}
"""By name. Those of MI300X are fitted to published times, see docs/benchmarks/studies.md."""


def parse_step_time(text: str, n_experts: int) -> StepTime:
    """Return a step-time model by its name or its three constants.

    Parameters
    ----------
    text : str
        A name of :data:`STEP_TIMES`, whose experts' share of a layer then costs the same in a model with another number; or
        ``FIXED_MS,PER_EXPERT_US,PER_REQUEST_US``.
    n_experts : int
        Experts per layer of the model that is simulated.

    Raises
    ------
    ValueError
        If it is neither, or takes no time.
    """
    if text in STEP_TIMES:
        return STEP_TIMES[text].for_experts(n_experts)
    try:
        fixed, per_expert, per_request = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"{text!r}: expected {', '.join(STEP_TIMES)}, or FIXED_MS,PER_EXPERT_US,PER_REQUEST_US"
        ) from None
    return make_step_time(fixed * 1e-3, per_expert * 1e-6, per_request * 1e-6, n_experts)


def make_step_time(fixed: float, per_expert: float, per_request: float, n_experts: int) -> StepTime:
    """Return a step-time model of these constants, seconds; ValueError if they are no times of decode steps."""
    constants = fixed, per_expert, per_request
    if not (all(constant >= 0 for constant in constants) and _SHORTEST <= sum(constants) <= _LONGEST):
        raise ValueError(
            f"step time: expected constants of at least 0 whose sum is {_SHORTEST:g} to {_LONGEST:g} s, got {constants}"
        )
    return StepTime(*constants, n_experts)
